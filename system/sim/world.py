"""The core world: a group of simulated nodes, their clients and faults, on one event heap.

Everything follows from the schedule and its seed: no real clock, socket, thread or randomness.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from shaketable.system.invariants.saved_files import check_equal_states
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.raft.protocol import InvariantError, Message, Role, RoleChange, Write
from shaketable.system.sim.broken_starts.broken_folders import (
    Folder,
    check_bit_flips,
    check_broken_starts,
    check_out_of_range,
    check_recovery,
)
from shaketable.system.sim.broken_starts.broken_hints import check_hints
from shaketable.system.sim.clients import TOPIC_BYTES, Clients, stored_numbers
from shaketable.system.sim.disk import PowerLoss
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.fault_actions import RESTART_AFTER_MS, FaultActions
from shaketable.system.sim.group_operator import REFUSED_CONNECTION, Operator
from shaketable.system.sim.initial_disks.older_stores import OlderStores
from shaketable.system.sim.initial_disks.plain_messages import PlainMessages
from shaketable.system.sim.key_queries import CONNECTION as VIEWS
from shaketable.system.sim.key_queries import KeyQueries, PositionViews, random_group_key
from shaketable.system.sim.member import PLAIN_FOLDER, ROOT, SimMember
from shaketable.system.sim.network import Network
from shaketable.system.sim.rules.client_history import (
    APPEND,
    OK,
    Operation,
    check_delivered,
    check_history,
    check_refusals,
)
from shaketable.system.sim.rules.invariants import Invariants
from shaketable.system.sim.rules.kept_files import check_blames_no_disk
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Counts, Trace
from shaketable.system.sim.schedules.faults import (
    ALWAYS_DETECTED,
    REBUILT,
    ClockOffset,
    DamageFile,
    damage_file,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams
from shaketable.system.sim.schedules.schedule import (
    Options,
    Schedule,
    broker_config,
    draw_schedule,
    raft_config,
)
from shaketable.system.store.disk import DiskFailed, DiskFull, StoreError
from shaketable.system.store.log_writer import AckPolicy

BROKEN = 0.4
"""Share of the seeds that try starts on broken folders."""
RECOVERIES = 2
"""Copies of a disk that are started with a torn tail."""
HINTS = 2
"""Copies of a disk that are started with broken hints (checkpoints, key index)."""
HINTS_WITH_KEYS = 5
"""The same of a node with a key index."""
CROWD_MS = 4500.0
"""Time before the end of a run in which a group comes to its limit of members."""
SETTLE_MS_MAX = 4000.0
"""Time in which a group must acknowledge a new append after the last fault is healed."""
CATCH_UP_MS = 500.0
"""What is committed later than this before the end need not be applied everywhere by then. Clients
are quiet for longer, but the operator's last change may end at any time."""


def delayed_due_by_ms(schedule: Schedule) -> float:
    """Return by when delayed messages have to be due, to be delivered at the end of a run.

    Where wall clocks jump, which say when one is due, that is not known.
    """
    if any(isinstance(fault, ClockOffset) for fault in schedule.faults):
        return -math.inf
    return schedule.settings.run_ms - SETTLE_MS_MAX


class World:
    """One run. `run` returns the first violated invariant, or None."""

    def __init__(
        self, schedule: Schedule, *, mutant: Mutant = HEALTHY, trace: Trace | None = None
    ) -> None:
        settings = schedule.settings
        self.settings = settings
        self.mutant = mutant
        self.trace = trace or Trace()
        self.rngs = RandomStreams(schedule.seed)
        self.heap = EventHeap()
        self.counts = Counts()
        self.invariants = Invariants(self.counts)
        self.ack = cast("AckPolicy", settings.ack)
        self.raft_config = raft_config(settings)
        self.broker_config = broker_config(settings)
        self.network = Network(
            self.heap, self.rngs, self._deliver, settings.link_delay_ms, settings.link_jitter_ms
        )
        self.plain_log = PlainMessages(
            self.rngs, settings.plain_log, settings.data_file_bytes, TOPIC_BYTES
        )
        self.bootstrap = tuple(f"n{number}" for number in range(settings.members))
        self.older = OlderStores(self.rngs, settings, self.bootstrap, self.plain_log, TOPIC_BYTES)
        self.invariants.older_index = self.older.committed_index
        queues = self.invariants.queues
        queues.update({queue: [*held] for queue, held in self.plain_log.queues.items()})
        self.key_queries = None
        if settings.key_items_max:
            self.key_queries = KeyQueries(self.rngs, TOPIC_BYTES, queues)
        self.members = {name: SimMember(self, name) for name in self.bootstrap}
        self.client_targets: list[str] = list(self.bootstrap)
        self.clients = Clients(self, settings.clients)
        self.operator = Operator(self)
        self.position_views = PositionViews(self)
        self.acting: SimMember | None = None
        self.actions = FaultActions(self)
        self.healed_ms = float(max((fault.end_ms for fault in schedule.faults), default=0))
        self._delayed_due_by_ms = delayed_due_by_ms(schedule)
        for member in self.members.values():
            self.heap.push(0.0, self.restart, member)
        for fault in schedule.faults:
            self.heap.push(fault.start_ms, self.actions.apply, fault)
        if settings.crowded:
            crowd_ms = max(self.healed_ms, settings.run_ms - CROWD_MS)
            self.heap.push(crowd_ms, self.operator.crowd)
        for call in schedule.calls:
            self.heap.push(call.at_ms, self.clients.call, call)
        self._due_index = -1
        """What is committed in time to be applied everywhere at the end."""
        self.heap.push(max(0.0, settings.run_ms - CATCH_UP_MS), self._note_due)

    # ---- running ----------------------------------------------------------------------

    def run(self) -> Violation | None:
        """Run to the end, or to the first violated invariant."""
        try:
            self._run_events()
            self._check_end()
        except Violated as found:
            node = found.node or (self.acting.name if self.acting else "")
            return Violation(found.invariant, found.finding, self.heap.now_ms, node)
        finally:
            self._finish_counts()
        return None

    def clear(self) -> None:
        """Break reference cycles, so that a run's memory is freed without the garbage collector."""
        for part in (*self.members.values(), self.clients, self.operator, self.actions):
            vars(part).clear()
        vars(self).clear()

    def _run_events(self) -> None:
        heap, until_ms = self.heap, float(self.settings.run_ms)
        pop = heap.pop
        while (event := pop(until_ms)) is not None:
            self.acting = None
            action, args = event
            try:
                action(*args)
            except (PowerLoss, StoreError, InvariantError, AssertionError) as error:
                self._ended(error)

    def _ended(self, error: Exception) -> None:
        """End the process of a node that raised. Raises Violated unless a fault explains it."""
        member = self.acting
        if member is None or not member.is_up or _is_of_another_disk(error, member):
            raise error
        if isinstance(error, PowerLoss):
            self.counts.fault("crash_at_operation")
            self.crash(member, loses_unsynced=member.loses_unsynced)
            return
        if isinstance(error, DiskFailed | DiskFull):
            self.counts.stopped_by_disk += 1
            self.crash(member, loses_unsynced=False)
            self.heap.push(self.heap.now_ms + RESTART_AFTER_MS, self.restart, member)
            return
        if member.is_damaged and isinstance(error, StoreError):
            self.crash(member, loses_unsynced=False)
            return
        raise Violated("node-runs-on", _describe_error(error), member.name) from error

    def crash(self, member: SimMember, *, loses_unsynced: bool) -> None:
        """Kill a member's process; with `loses_unsynced`, crash the machine."""
        self.counts.crashes += 1
        self.trace.event(self.heap.now_ms, member.name, loses_unsynced)
        if self.trace.write is not None:
            text = f"crash{' with loss of what was not synced' if loses_unsynced else ''}"
            self.trace.line(self.heap.now_ms, member.name, text)
        member.crash(loses_unsynced=loses_unsynced)
        self.heap.push(
            self.heap.now_ms + self.settings.client_delay_ms, self.clients.disconnected, member.name
        )

    def stop(self, member: SimMember, *, loses_power: bool) -> None:
        """Stop a member's process in order."""
        self.acting = member
        self.trace.event(self.heap.now_ms, member.name, 2)
        if self.trace.write is not None:
            self.trace.line(self.heap.now_ms, member.name, "stops in order")
        member.stop(loses_power=loses_power)
        self.counts.stops += 1
        self.heap.push(
            self.heap.now_ms + self.settings.client_delay_ms, self.clients.disconnected, member.name
        )

    def restart(self, member: SimMember) -> None:
        """Start a member that is down. Raises Violated if it cannot and no fault explains it."""
        if member.is_up or member.is_removed:
            return
        try:
            member.start()
        except (StoreError, InvariantError, AssertionError, PowerLoss) as error:
            self._not_started(member, error)
            return
        if member.must_detect:
            raise Violated("damage-is-noticed", "it starts on what is damaged", member.name)
        if member.incarnation > 1:
            self.counts.restarts += 1
        self.trace.event(self.heap.now_ms, member.name, member.log.end.index)
        if self.trace.write is not None:
            text = f"starts, log up to {member.log.end.index}, {member.log.state}"
            self.trace.line(self.heap.now_ms, member.name, text)

    def _not_started(self, member: SimMember, error: Exception) -> None:
        platter = member.disk.platter
        if _is_of_another_disk(error, member):
            raise error
        if isinstance(error, PowerLoss):
            self.counts.fault("crash_at_operation")
            platter.stop_at = None
            member.disk = member.disk.restart(
                loses_unsynced=member.loses_unsynced, rng=self.rngs.stream(f"crash/{member.name}")
            )
        elif member.is_damaged and not member.disk.explains(error):
            if isinstance(error, StoreError):
                check_blames_no_disk(member.name, error, platter)
            self.counts.damage_noticed += member.must_detect
            self.lose_disk(member)  # as its error says: restore it from the group
            return
        elif not isinstance(error, DiskFailed | DiskFull):
            raise Violated("node-starts", _describe_error(error), member.name) from error
        self.heap.push(self.heap.now_ms + RESTART_AFTER_MS, self.restart, member)

    # ---- for faults and the operator ------------------------------------------------------

    def _deliver(self, source: str, target: str, message: Message) -> None:
        member = self.members.get(target)
        if member is not None:
            member.receive(source, message)

    def leader(self) -> str | None:
        """Return the leader; if several members claim to lead, the one of the highest term."""
        leaders = [member for member in self.members.values() if member.is_up and leads(member)]
        return max(leaders, key=lambda member: member.core.term).name if leaders else None

    @property
    def present(self) -> dict[str, SimMember]:
        """All members except those removed for good, in the order they were added."""
        return {name: member for name, member in self.members.items() if not member.is_removed}

    def new_member(self) -> SimMember:
        """Start an empty node that waits to be added to the group."""
        name = f"n{len(self.members)}"
        member = self.members[name] = SimMember(self, name, is_joining=True)
        self.heap.push(self.heap.now_ms, self.restart, member)
        self.client_targets.append(name)
        return member

    def shut_down(self, name: str) -> None:
        """Stop a node for good."""
        member = self.members[name]
        if member.is_removed:
            return
        if member.is_up:
            self.crash(member, loses_unsynced=False)
        member.is_removed = True
        self.client_targets.remove(name)

    def lose_disk(self, member: SimMember) -> None:
        """Lose a node's disk: a new node with a new id replaces it."""
        self.shut_down(member.name)
        self.operator.replace(member.name)

    def flip_log_bit(self, member: SimMember, place: float, bit: int) -> bool:
        """Kill a node and flip one bit of its log before the durable watermark.

        Return False where there is no such bit. After the watermark it would be a torn tail.
        """
        self.acting = member  # its disk may fail in this
        member.log.advance_watermark()
        first, end = member.log.start.position, member.log.synced.position
        if end - first < 1:
            return False
        position = first + int(place * (end - first))
        file_bytes = self.settings.data_file_bytes
        start = position // file_bytes * file_bytes
        path = f"{ROOT}/dledger-{member.name}/data/{start:020}"
        platter = member.disk.platter
        if position - start >= platter.written_size(path):
            return False  # after a file's last entry
        self.crash(member, loses_unsynced=False)
        if position - start >= platter.written_size(path):
            return False  # the process was about to replace its log by a snapshot
        platter.flip_bit(path, position - start, bit)
        member.is_damaged = True
        member.saved_index = -1
        return True

    def damage(self, member: SimMember, fault: DamageFile) -> bool:
        """Kill a node and damage one of its files; return False where there is none."""
        self.acting = member  # its disk may fail in this
        member.log.advance_watermark()
        self.crash(member, loses_unsynced=False)
        platter = member.disk.platter
        if not damage_file(platter, ROOT, member.name, fault.file, fault.way, fault.place):
            return False
        self.counts.files_damaged += 1
        member.saved_index = -1
        member.is_damaged = member.is_damaged or fault.file not in REBUILT
        member.must_detect = fault.file in ALWAYS_DETECTED
        return True

    # ---- for members ------------------------------------------------------------------

    def answer(self, member: SimMember, connection: int, replies: list[bytes]) -> None:
        """Carry a member's replies to the client or operator of that connection."""
        if connection >= 0:
            self.clients.reply(member, connection, replies)
        elif connection == REFUSED_CONNECTION:
            self.operator.answered(replies)
        elif connection == VIEWS:
            self.position_views.answered(replies)
        # The operator checks the committed membership, not answers.

    def changed_role(self, member: SimMember, change: RoleChange) -> None:
        """A member's role, term or leader changed."""
        self.actions.changed_role(member.name, change)
        self.counts.states.add((change.role.value, "entered"))
        if self.trace.write is not None:
            text = f"is {change.role.value} of term {change.term}, leader {change.leader}"
            self.trace.line(self.heap.now_ms, member.name, text)

    def ordered(self, member: SimMember, writes: Sequence[Write]) -> None:
        """A member is about to hand writes to its disk."""
        self.actions.ordered(member, writes)

    # ---- the end ----------------------------------------------------------------------

    def _check_end(self) -> None:
        self.acting = None
        history = self.clients.history
        check_history(history)
        check_refusals(history, stored_numbers(self.older.newer(self.invariants.queues)))
        self._check_live()
        self._check_broken()
        self._check_recoveries()

    def _check_broken(self) -> None:
        """Break copies of one node's disk, and check that every start refuses them."""
        rng = self.rngs.stream("broken_folders")
        up = [member for member in self.members.values() if member.is_up]
        if up and rng.chance(BROKEN):
            member = rng.choice(up)
            try:
                check_bit_flips(member.log, rng)
                check_out_of_range(member.log, self.settings.data_file_bytes)
            except DiskFailed:
                return  # its disk is failing: nothing can be read
            args = (member.disk, ROOT, member.name, PLAIN_FOLDER, self.settings, rng)
            key = random_group_key(rng) if self.key_queries else None
            is_upgraded = member.log.plain_log is not None
            self.counts.broken += check_broken_starts(*args, is_upgraded=is_upgraded)
            for _ in range(HINTS if key is None else HINTS_WITH_KEYS):
                self.counts.broken += check_hints(Folder(*args), key)

    def _check_recoveries(self) -> None:
        """Start repeatedly on copies of one node's disk that have a torn tail."""
        rng = self.rngs.stream("broken_recovery")
        up = [member for member in self.members.values() if member.is_up]
        if not up or not rng.chance(BROKEN):
            return
        member, settings = rng.choice(up), self.settings
        folder = Folder(member.disk, ROOT, member.name, PLAIN_FOLDER, settings, rng)
        for _ in range(RECOVERIES):
            self.counts.broken += check_recovery(
                member.disk,
                folder.end_on,
                f"{folder.path}/data",
                settings.data_file_bytes,
                rng,
                member.name,
            )

    def _check_live(self) -> None:
        """Check that after the last fault appends succeed and all members catch up."""
        healed_ms = max(self.healed_ms, self.network.late_until_ms)
        due_ms = healed_ms + SETTLE_MS_MAX
        if due_ms > self.settings.run_ms - self.settings.idle_ms:
            return  # a schedule that leaves no time to settle promises nothing
        asked = False
        for operation in self.clients.history:
            if operation.kind == APPEND and healed_ms <= operation.invoke_ms <= due_ms:
                asked = True
                if operation.outcome == OK and operation.end_ms <= due_ms:
                    break
        else:
            if asked:
                raise Violated(
                    "appends-succeed",
                    f"none was acknowledged within {SETTLE_MS_MAX:.0f} ms after the last fault",
                )
        self._check_caught_up()
        queues = self.invariants.queues
        check_delivered(
            self.clients.history,
            queues,
            stored_numbers(self.older.newer(queues)),
            from_position=self.invariants.expired_position,
            due_by_ms=self._delayed_due_by_ms,
        )

    def _note_due(self) -> None:
        self._due_index = self.invariants.committed_index

    def _check_caught_up(self) -> None:
        self.operator.check_done()
        committed = self.invariants.committed_index
        for member in self.members.values():
            if member.is_removed:
                continue
            if not member.is_up:
                raise Violated("every-node-runs", "still down at the end", member.name)
            index = member.broker.applied_index
            if not self._due_index <= index <= committed:
                raise Violated(
                    "every-node-catches-up",
                    f"applied {index} of {committed} committed entries at the end",
                    member.name,
                )
            self.older.config.check(member.broker, member.name)
        check_equal_states(
            {
                member.name: member.broker
                for member in self.members.values()
                if member.is_up and not member.is_removed
            }
        )
        self.older.check_kept(self.invariants.queues)

    def _finish_counts(self) -> None:
        counts = self.counts
        counts.events = self.heap.popped
        counts.messages = self.network.sent
        counts.messages_lost = self.network.lost
        counts.disk_operations = sum(
            member.disk.platter.operations for member in self.members.values()
        )


def _is_of_another_disk(error: Exception, member: SimMember) -> bool:
    """Whether a power loss is not the member's own: an invariant read a disk that is dead."""
    return isinstance(error, PowerLoss) and not member.disk.is_dead


def _describe_error(error: Exception) -> str:
    """Return what a node's code raised, and in which function: asserts often have no text."""
    frame = error.__traceback__
    assert frame is not None
    while frame.tb_next is not None:
        frame = frame.tb_next
    text = f"{type(error).__name__} in {frame.tb_frame.f_code.co_qualname}"
    return f"{text}: {error}" if str(error) else text


def leads(member: SimMember) -> bool:
    """Whether a running member is leader."""
    return member.core.role is Role.LEADER


@dataclass(frozen=True, slots=True)
class SeedResult:
    """The outcome of one seed. `digest` is the same whenever and wherever the run is repeated."""

    seed: int
    violation: Violation | None
    counts: Counts
    digest: str
    history: tuple[Operation, ...]


def run_seed(
    seed: int,
    options: Options | None = None,
    *,
    schedule: Schedule | None = None,
    mutant: Mutant | None = None,
    trace: Callable[[str], None] | None = None,
) -> SeedResult:
    """Run a seed's schedule, or the given one, to its end or the first violation.

    `mutant` plants a bug; `trace` is called with each line of the trace.
    """
    schedule = schedule or draw_schedule(seed, options)
    recorder = Trace(trace)
    with _gc_paused():
        world = World(schedule, mutant=mutant or HEALTHY, trace=recorder)
        violation = world.run()
    ends = (
        f"{name} {shadow.end_index} {shadow.end_crc} {shadow.commit_index}"
        for name, shadow in world.invariants.shadows.items()
    )
    digest = recorder.final_digest(ends, violation)
    counts, history = world.counts, tuple(world.clients.history)
    world.clear()
    return SeedResult(schedule.seed, violation, counts, digest, history)


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Disable garbage collection during a run: it makes millions of objects and hardly a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
