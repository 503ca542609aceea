"""Runs a schedule again and records all events as data, for a story.

The world and its behaviour are the same (a test checks that); its network, trace and invariants are
replaced by recording ones. That is too slow for thousands of seeds and cheap for one.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import (
    Append,
    Compact,
    Install,
    Message,
    Role,
    RoleChange,
    SaveState,
    Truncate,
    Write,
)
from shaketable.system.sim.network import Network
from shaketable.system.sim.rules.client_history import Operation
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.shadow import Shadow
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.schedules.faults import (
    FOLLOWER,
    LEADER,
    OTHERS,
    AnyFault,
    LinkFault,
    NodeFault,
)
from shaketable.system.sim.schedules.schedule import Schedule
from shaketable.system.sim.world import World
from shaketable.system.store.commit_log import CommitLog

_REQUESTS = re.compile(r"<- client (\d+) requests (\d+)\.\.(\d+)")


class Kind(enum.Enum):
    """The kind of an event."""

    START = "starts"
    CRASH = "crashes"
    FAULT = "fault begins"
    FAULT_ENDED = "fault ends"
    ROLE = "role changes"
    VOTE = "votes"
    APPEND = "entries are written"
    TRUNCATE = "entries are removed"
    INSTALL = "a snapshot replaces the log"
    COMPACT = "a snapshot replaces entries"
    DURABLE = "entries are durable"
    COMMIT = "entries are committed"
    ASK = "a client's requests arrive"
    ANSWER = "a client learns what became of an operation"
    BROKEN = "an invariant breaks"


@dataclass(frozen=True, slots=True)
class Event:
    """One event at a node, or of the world (`node` is ""); `text` describes it."""

    at_ms: float
    node: str
    kind: Kind
    text: str
    index: int = -1
    """The last entry that it concerns, or the number of the fault."""
    term: int = -1
    """The term that it concerns, if any."""
    first: int = -1
    """The first entry that it concerns, if there are several."""


@dataclass(slots=True)
class Sending:
    """One message. `arrives_ms` is None until it has arrived; a lost one never does."""

    sent_ms: float
    source: str
    target: str
    message: Message
    is_lost: bool
    arrives_ms: float | None = None


@dataclass(slots=True)
class Watched:
    """A recorded run. `asked` lists (time, client, node, first and last operation)."""

    schedule: Schedule
    violation: Violation | None = None
    events: list[Event] = field(default_factory=list)
    sendings: list[Sending] = field(default_factory=list)
    asked: list[tuple[float, int, str, int, int]] = field(default_factory=list)
    history: Sequence[Operation] = ()
    members: Sequence[str] = ()


def watch(schedule: Schedule, mutant: Mutant | None = None) -> Watched:
    """Run a schedule and record everything."""
    seen = Watched(schedule)
    trace = _WatchedTrace(seen)
    world = World(schedule, mutant=mutant or HEALTHY, trace=trace)
    trace.world = world
    world.invariants = _WatchedInvariants(world, seen)
    world.network = _WatchedNetwork(world, seen)
    seen.violation = world.run()
    seen.history = tuple(world.clients.history)
    seen.members = tuple(world.members)
    if seen.violation is not None:
        broken = seen.violation
        text = f"{broken.invariant}: {broken.finding}"
        seen.events.append(Event(broken.at_ms, broken.node, Kind.BROKEN, text))
    return seen


class _WatchedNetwork(Network):
    """Records every message when it is sent and when it first arrives."""

    __slots__ = ("_on_the_way", "_seen", "_world")

    def __init__(self, world: World, seen: Watched) -> None:
        settings = world.settings
        delay_ms, jitter_ms = settings.link_delay_ms, settings.link_jitter_ms
        super().__init__(world.heap, world.rngs, self._arrive, delay_ms, jitter_ms)
        self._world = world
        self._seen = seen
        self._on_the_way: dict[tuple[str, str, int], list[Sending]] = {}

    def send(self, source: str, target: str, message: Message) -> None:
        lost = self.lost
        super().send(source, target, message)
        sending = Sending(self._world.heap.now_ms, source, target, message, self.lost > lost)
        self._seen.sendings.append(sending)
        if not sending.is_lost:
            self._on_the_way.setdefault((source, target, id(message)), []).append(sending)

    def _arrive(self, source: str, target: str, message: Message) -> None:
        waiting = self._on_the_way.get((source, target, id(message)))
        if waiting:  # else it arrives a second time
            waiting.pop(0).arrives_ms = self._world.heap.now_ms
        member = self._world.members.get(target)
        if member is not None:
            member.receive(source, message)


class _WatchedTrace(Trace):
    """Records faults, crashes and clients' requests from the lines of the trace."""

    __slots__ = ("_faults", "_seen", "world")

    def __init__(self, seen: Watched) -> None:
        super().__init__(self._read)
        self._seen = seen
        self._faults = sorted(enumerate(seen.schedule.faults), key=_fault_order)
        self.world: World

    def _read(self, text: str) -> None:
        """Do nothing: `line` has what is needed."""

    def line(self, at_ms: float, node: str, text: str) -> None:
        note = self._seen.events.append
        if text.startswith("fault "):
            number, fault = self._faults.pop(0)
            if isinstance(fault, LinkFault):
                instead = self.world.actions.stand_ins()
                links = tuple((instead.get(a, a), instead.get(b, b)) for a, b in fault.links)
                fault = msgspec.structs.replace(fault, links=links)
            target = self._target(fault)
            where = target or ""
            text = describe_fault(fault, target)
            if isinstance(fault, LinkFault) and any(LEADER in pair for pair in fault.links):
                text += f" ({self.world.leader() or 'none'} leads)"
            note(Event(at_ms, where, Kind.FAULT, text, number))
            if fault.end_ms > self.world.settings.run_ms:
                return
            ends = f"{fault.kind.replace('_', ' ')} is over"
            note(Event(float(fault.end_ms), where, Kind.FAULT_ENDED, ends, number))
        elif text.startswith("crash"):
            note(Event(at_ms, node, Kind.CRASH, text))
        elif (found := _REQUESTS.match(text)) is not None:
            client, first, last = map(int, found.groups())
            self._seen.asked.append((at_ms, client, node, first, last))

    def _target(self, fault: AnyFault) -> str | None:
        """Return the node that a fault's "leader" or "follower" means at this moment."""
        if not isinstance(fault, NodeFault):
            return None
        member = self.world.actions.member_of(fault.node)
        return member.name if member else fault.node


def _fault_order(numbered: tuple[int, AnyFault]) -> int:
    return numbered[1].start_ms


class _WatchedInvariants(Invariants):
    """Records what the members report, then checks it."""

    def __init__(self, world: World, seen: Watched) -> None:
        super().__init__(world.counts)
        self.queues = world.invariants.queues  # they hold what was stored before the run
        self.older_index = world.invariants.older_index
        self._heap = world.heap
        self._seen = seen

    def _note(self, node: str, kind: Kind, text: str, index: int = -1, term: int = -1) -> None:
        event = Event(self._heap.now_ms, node, kind, text, index, term)
        self._seen.events.append(event)

    def started(self, name: str, core: RaftCore, log: CommitLog, now_ms: float) -> Shadow:
        state = log.state
        vote = f", voted for {state.voted_for}" if state.voted_for else ""
        holds = (
            f"its log ends at entry {log.end.index}" if log.end.index >= 0 else "its log is empty"
        )
        self._note(name, Kind.START, f"starts: {holds}, term {state.term}{vote}", log.end.index)
        return super().started(name, core, log, now_ms)

    def ordered(self, shadow: Shadow, writes: Sequence[Write]) -> None:
        for write in writes:
            self._note_write(shadow, write)
        super().ordered(shadow, writes)

    def _note_write(self, shadow: Shadow, write: Write) -> None:
        name = shadow.name
        if isinstance(write, Append):
            batch = write.batch
            what = entries(batch.first_index, batch.last_index)
            text = f"writes {what} of term {batch.term}"
            first, last = batch.first_index, batch.last_index
            event = Event(self._heap.now_ms, name, Kind.APPEND, text, last, batch.term, first)
            self._seen.events.append(event)
        elif isinstance(write, Truncate):
            what = entries(write.end_index + 1, max(write.end_index + 1, shadow.end_index))
            self._note(name, Kind.TRUNCATE, f"removes {what} from its log", write.end_index)
        elif isinstance(write, SaveState):
            if write.voted_for is not None:
                text = f"votes for {write.voted_for} in term {write.term}"
                self._note(name, Kind.VOTE, text, term=write.term)
        elif isinstance(write, Install):
            end = write.snapshot.end.index
            self._note(name, Kind.INSTALL, f"a snapshot up to entry {end} replaces its log", end)
        elif isinstance(write, Compact):
            end = write.snapshot.end.index
            self._note(name, Kind.COMPACT, f"a snapshot replaces the entries up to {end}", end)

    def synced(self, shadow: Shadow, writes: Sequence[Write]) -> None:
        before = shadow.durable_index
        super().synced(shadow, writes)
        if shadow.durable_index > before:
            what = entries(before + 1, shadow.durable_index)
            self._note(shadow.name, Kind.DURABLE, f"has {what} on its disk", shadow.durable_index)

    def changed_role(self, shadow: Shadow, change: RoleChange) -> None:
        text = {
            Role.LEADER: f"leads term {change.term}",
            Role.CANDIDATE: f"campaigns for election, term {change.term}",
            Role.FOLLOWER: f"follows {change.leader or 'no vote yet'}, term {change.term}",
        }[change.role]
        self._note(shadow.name, Kind.ROLE, text, term=change.term)
        super().changed_role(shadow, change)

    def committed(self, shadow: Shadow, index: int) -> None:
        if index > shadow.commit_index:
            what = entries(shadow.commit_index + 1, index)
            self._note(shadow.name, Kind.COMMIT, f"calls {what} committed", index)
        super().committed(shadow, index)


def entries(first: int, last: int) -> str:
    """Describe entries: `entry 3` or `entries 3..5`."""
    return f"entry {first}" if first == last else f"entries {first}..{last}"


_LEFT_OUT = ("start_ms", "duration_ms", "node", "links")


def describe_fault(fault: AnyFault, target: str | None = None) -> str:
    """Describe a fault in a few words: `crash n1 for 300 ms, loses_unsynced=True`."""
    words = [fault.kind.replace("_", " ")]
    if isinstance(fault, NodeFault):
        words.append("the others" if fault.node == OTHERS else target or fault.node)
        if target is not None and fault.node not in (target, OTHERS):
            is_role = fault.node in (LEADER, FOLLOWER)
            words.append(f"(the {fault.node})" if is_role else f"(in place of {fault.node})")
    elif isinstance(fault, LinkFault):
        words.append(", ".join(f"{a}→{b}" for a, b in fault.links))
    words.append(f"for {fault.duration_ms} ms")
    for name in fault.__struct_fields__:
        if name not in _LEFT_OUT:
            words[-1] += ","
            words += [name.removesuffix("_ms").replace("_", " "), _plain(getattr(fault, name))]
    return " ".join(words)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
