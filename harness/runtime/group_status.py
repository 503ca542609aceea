"""The status of a group, and requests to it: what each node last reported, who leads, who agrees.

The same for every world; only the way to ask a node differs. Requests are repeated until they
succeed: transfers, membership changes.

Each node's log end and clocks are sampled (samples.jsonl). Samples are taken from the answers to
status polls, so one costs one line. Each is one row:

    {"time_ns": ..., "node": "n1", "committed_index": 41, "end_index": 43,
     "wall_offset_ms": 0.2, "monotonic_offset_ms": 0.2, "doubt_ms": 0.4}

The last three are there only for nodes whose target reports their clocks
(`contracts.plugins.NodeStatus.wall_ms`), or whose world knows them; an offset is how far the node's
clock is ahead of the harness's, plus or minus `doubt_ms`. If nodes form several groups, a row has
its `group` too.

Source: Cristian, Probabilistic clock synchronization (1989): the midpoint between request and
answer stands for the moment at which the clock was read.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import trio

from shaketable.harness.contracts.abilities import ChangesMembers, LimitsStatus
from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.harness.contracts.plugins import NO_ROLE, Json, NodeLayout, NodeStatus
from shaketable.harness.contracts.simulation import SteersSimulated
from shaketable.harness.runtime.ledger import Lines
from shaketable.harness.runtime.observer import Observer

STATUS_INTERVAL_S = 0.1
STATUS_TIMEOUT_S = 0.3


def status_timeout_s(target: object) -> float:
    """Return how long a node of this target, or group, may take to answer."""
    return target.status_timeout_s if isinstance(target, LimitsStatus) else STATUS_TIMEOUT_S


class Nodes(Protocol):
    """What a world knows of its nodes' processes."""

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        ...

    def last_line(self, node: str) -> str:
        """Return the last line of the node's output; "" if none."""
        ...


class GroupStatus:
    """Polls the status of a group's nodes, and reports changes.

    Args:
        names: the nodes.
        nodes: what the world knows of their processes.
        ask: asks one node within `timeout_s`; an exception is reported once.
        status_log: receives changes of role and term.
        observer: is notified of leader changes.
        now_ns: returns the time since the run's start.
        timeout_s: how long an answer may take.
    """

    def __init__(
        self,
        names: Sequence[str],
        nodes: Nodes,
        ask: Callable[[str], Awaitable[NodeStatus | None]],
        status_log: Lines,
        observer: Observer,
        now_ns: Callable[[], int],
        timeout_s: float = STATUS_TIMEOUT_S,
    ) -> None:
        self.names = tuple(names)
        self.leader_changes = 0
        self.is_ending = False
        """Set when the nodes are stopped: status is not updated from then on."""
        self.undisturbed_s = 0.0
        """When the last fault or recovery action ended (trio's clock); set by the caller."""
        self.on_elected: Callable[[], None] = _ignore
        """Called when a node leads a new term."""
        self.samples: Samples | None = None
        """Records answers periodically, changed or not."""
        self._nodes = nodes
        self._ask = ask
        self._timeout_s = timeout_s
        self._status_log = status_log
        self._elected_term = -1
        self._observer = observer
        self._now_ns = now_ns
        self._status: dict[str, NodeStatus | None] = dict.fromkeys(self.names)
        self._asked = dict.fromkeys(self.names, -math.inf)  # when the last answer was requested
        self._written: dict[str, tuple[object, ...]] = {}
        self._led: tuple[str | None, int] = (None, 0)
        self._last_leader: tuple[str, int] | None = None
        self._reported: set[str] = set()

    async def poll(self, node: str) -> None:
        """Poll a node until cancelled."""
        nodes = self._nodes
        while True:
            asked, asked_of = trio.current_time(), nodes.incarnation(node)
            shown = None if self.samples is None else self.samples.begin(node)
            status = await self.ask(node)
            if asked_of == nodes.incarnation(node) and nodes.is_running(node):
                self._asked[node] = asked
                if self.samples is not None and shown is not None and status is not None:
                    self.samples.end(node, status, shown)
                self.learn(node, status)
            await trio.sleep(STATUS_INTERVAL_S)

    async def ask(self, node: str) -> NodeStatus | None:
        """Ask a node once; None if it does not answer."""
        try:
            with trio.move_on_after(2 * self._timeout_s):  # whatever the target does
                return await self._ask(node)
        except Exception as error:
            if node not in self._reported:
                self._reported.add(node)
                what = f"{type(error).__name__}: {error}"
                self._observer.note(f"the status of {node} failed: {what}")
        return None

    def learn(self, node: str, status: NodeStatus | None) -> None:
        """Store a node's status; log and report it if it changed."""
        if self.is_ending:
            return
        self._status[node] = status
        state = () if status is None else (status.role, status.term, status.leader)
        if self._written.get(node) != state:
            self._written[node] = state
            self._status_log.append(self._row(node, status))
        led = self.leading()
        if led != self._led:
            self._led = led
            if led[0] is not None and (led[0], led[1]) != self._last_leader:
                self.leader_changes += self._last_leader is not None
                self._last_leader = (led[0], led[1])
                if led[1] > self._elected_term:  # not an old leader after its successor fell silent
                    self._elected_term = led[1]
                    self.on_elected()
            self._observer.leader_changed(*led, self._now_ns())

    def leading(self) -> tuple[str | None, int]:
        """Return (node, term) of the leader of the highest term; (None, last term) without one."""
        leaders = [
            (status.term, node)
            for node, status in self._status.items()
            if status is not None and status.role == "leader"
        ]
        if not leaders:
            return None, self._led[1]
        term, node = max(leaders)
        return node, term

    def leader(self, order: Sequence[str] = ()) -> str | None:
        """Return the leader; if several groups have leaders, the first of these in `order`."""
        leads = {led for led in self._leaders().values() if led is not None}
        return next((node for node in order if node in leads), self.leading()[0])

    def _leaders(self) -> dict[str, str | None]:
        """Return the leader of each group in its highest term, by the last answers."""
        found: dict[str, tuple[int, str]] = {}
        for node, status in self._status.items():
            if status is not None and status.role == "leader":
                found[status.group] = max(found.get(status.group, (-1, "")), (status.term, node))
        return {group: node for group, (_, node) in found.items()}

    def statuses(self) -> dict[str, NodeStatus | None]:
        """Return what each node last reported; None if it did not answer."""
        return dict(self._status)

    def is_ready(self, since: float) -> bool:
        """True if every running node answers, and all nodes of a group agree on its leader.

        A node that shows no role has no leader to agree on. Answers to requests sent before
        `since` (trio's clock) do not count.
        """
        names = [node for node in self.names if self._nodes.is_running(node)]
        if not all(self._asked[node] >= since for node in names):
            return False
        leaders = self._leaders()
        for node in names:
            status = self._status[node]
            if status is None:
                return False
            if not self._follows_its_leader(status, leaders):
                return False
        return bool(names)

    def _follows_its_leader(self, status: NodeStatus, leaders: Mapping[str, str | None]) -> bool:
        if status.role == NO_ROLE:
            return True
        leader = leaders.get(status.group)
        led = None if leader is None else self._status[leader]
        return led is not None and (status.leader, status.term) == (leader, led.term)

    async def until_ready(self, timeout_s: float) -> bool:
        """Wait until the group is ready, by requests sent from now on; False if not in time."""
        since = trio.current_time()
        with trio.move_on_after(timeout_s):
            while not self.is_ready(since):  # noqa: ASYNC110 - polled: no event
                await trio.sleep(STATUS_INTERVAL_S / 2)
            return True
        return False

    def is_settled(self, since: float) -> bool:
        """True if the group is ready and every log is committed to its end, since then."""
        if not self.is_ready(since):
            return False
        running = [self._status[node] for node in self.names if self._nodes.is_running(node)]
        known = [status for status in running if status is not None]
        # One pair a group: all its nodes have the same end, and have committed up to it.
        indexes = {
            (status.group, index)
            for status in known
            for index in (status.committed_index, status.end_index)
        }
        return len(indexes) == len({status.group for status in known})

    def lagging(self) -> tuple[str, ...]:
        """Return running nodes that keep their group from being settled, least responsive first."""
        leaders, ends = self._leaders(), self._ends()
        rank: dict[str, int] = {}
        for node in self.names:
            if not self._nodes.is_running(node):
                continue
            status = self._status[node]
            if status is None:
                rank[node] = 0
                continue
            if not self._follows_its_leader(status, leaders):
                rank[node] = 1
            elif {status.committed_index, status.end_index} != {ends[status.group]}:
                rank[node] = 2
        return tuple(sorted(rank, key=lambda node: (rank[node], node)))

    def _ends(self) -> dict[str, int]:
        """Return the end of each group's log, by the last answers."""
        ends: dict[str, int] = {}
        for status in self._status.values():
            if status is not None:
                ends[status.group] = max(ends.get(status.group, -1), status.end_index)
        return ends

    def why_not_ready(self) -> str:
        """Describe each node's state, to explain why the group is not ready."""
        return "; ".join(self.state_of(node) for node in self.names)

    def state_of(self, node: str) -> str:
        """Describe a node's state in a few words."""
        status = self._status[node]
        if not self._nodes.is_running(node):
            return f"{node} does not run"
        if status is None:
            line = self._nodes.last_line(node)
            return f"{node} does not answer" + (f" (its last line: {line})" if line else "")
        if status.role == NO_ROLE:
            return f"{node} answers"
        follows = f"follows {status.leader}" if status.leader else "knows no leader"
        return (
            f"{node} is {status.role} of term {status.term}, {follows}, "
            f"committed {status.committed_index} of {status.end_index}"
        )

    def _row(self, node: str, status: NodeStatus | None) -> Json:
        row: Json = {"time_ns": self._now_ns(), "node": node}
        for name in ("role", "term", "leader", "committed_index", "end_index"):
            row[name] = None if status is None else getattr(status, name)
        return row


def _ignore() -> None:
    """Ignore the event."""


# Requests that are repeated until they succeed.

TRANSFER_TIMEOUT_S = 3.0
"""How long to wait for a leadership transfer."""
TRANSFER_POLL_S = 0.01
MEMBERS_TIMEOUT_S = 8.0
"""How long to wait for a membership change: less than a fault may take to start."""


async def wait_until(
    is_so: Callable[[], bool], timeout_s: float, interval_s: float = STATUS_INTERVAL_S / 2
) -> bool:
    """Poll until `is_so()`; False if it is not within `timeout_s`. Its exceptions propagate."""
    deadline = trio.current_time() + timeout_s
    while not is_so():
        if trio.current_time() >= deadline:
            return False
        await trio.sleep(interval_s)
    return True


async def transfer(
    group_status: GroupStatus, ask: Callable[[str, str, float], Awaitable[None]], to: str
) -> Json:
    """Ask the leader to transfer leadership to `to`; see `World.transfer`.

    `ask(leader, to, timeout_s)` sends the request, and raises as the target's
    `transfer_leadership`.
    """
    was, term = group_status.leading()
    answer: Json = {"from": was, "took_ms": None, "error": None}
    if was is None or was == to:
        return answer
    asked_s = trio.current_time()
    with trio.move_on_after(TRANSFER_TIMEOUT_S):
        try:
            await ask(was, to, TRANSFER_TIMEOUT_S)
        except IndefiniteError as error:  # it may still happen
            answer["error"] = str(error)
        except DefiniteError as error:
            return {**answer, "error": str(error)}
        while not _leads_after(await group_status.ask(to), term):  # noqa: ASYNC110 - polled: no event
            await trio.sleep(TRANSFER_POLL_S)
        answer["took_ms"] = round((trio.current_time() - asked_s) * 1e3, 1)
    return answer


def _leads_after(status: NodeStatus | None, term: int) -> bool:
    return status is not None and status.role == "leader" and status.term > term


async def remove_member(
    target: ChangesMembers, layouts: Mapping[str, NodeLayout], node: str
) -> Json:
    """Have the target remove a node from its group; see `MovesMembers.remove_member`."""
    return await _change(partial(target.remove_member, layouts, node))


async def add_member(target: ChangesMembers, layouts: Mapping[str, NodeLayout], node: str) -> Json:
    """Have the target add a node to its group; see `MovesMembers.add_member`.

    Raises:
        IndefiniteError: it did not become a voter in time.
    """
    answer = await _change(partial(target.add_member, layouts, node))
    if answer["error"] is not None:
        raise IndefiniteError(answer["error"])
    return answer


async def _change(ask: Callable[[float], Awaitable[tuple[str, ...]]]) -> Json:
    asked_s = trio.current_time()
    try:
        with trio.fail_after(MEMBERS_TIMEOUT_S):
            members = await ask(MEMBERS_TIMEOUT_S)
    except (DefiniteError, IndefiniteError) as error:
        return {"took_ms": None, "members": [], "error": str(error)}
    except trio.TooSlowError:
        why = f"no answer within {MEMBERS_TIMEOUT_S:g} s"
        return {"took_ms": None, "members": [], "error": why}
    took_ms = round((trio.current_time() - asked_s) * 1e3, 1)
    return {"took_ms": took_ms, "members": list(members), "error": None}


# Samples over time.

SAMPLE_EVERY_NS: Final = 500_000_000
"""The minimum interval between samples of a node."""
SAMPLES_EVEN_MAX: Final = 2_000
"""After this many samples of a node the interval grows: it becomes the run's age divided by this,
so a run of a week has 15,000 samples of a node.
"""
ROWS_MAX: Final = 200_000
"""Limit of rows in a run; further samples are dropped."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the harness's own clocks showed at one instant, in milliseconds."""

    wall_ms: float
    monotonic_ms: float


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """How far a node's clocks are ahead of the harness's, plus or minus `doubt_ms`."""

    wall_ms: float
    monotonic_ms: float
    doubt_ms: float


class Clocks(Protocol):
    """How a world measures its nodes' clocks."""

    def shown(self) -> Shown:
        """Return what the harness's own clocks show now."""
        ...

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets | None:
        """Measure the clocks of a node that was asked at `asked` and answers now; None: unknown."""
        ...


class AnsweredClocks:
    """Clocks of nodes that report them in their status."""

    def shown(self) -> Shown:
        """Return what this machine's clocks show."""
        return Shown(time.time_ns() / 1e6, time.monotonic_ns() / 1e6)

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets | None:
        """Compare a node's report with the midpoint between request and answer."""
        if status.wall_ms is None or status.monotonic_ms is None:
            return None
        answered = self.shown()
        doubt_ms = (answered.monotonic_ms - asked.monotonic_ms) / 2
        return ClockOffsets(
            status.wall_ms - (asked.wall_ms + answered.wall_ms) / 2,
            status.monotonic_ms - (asked.monotonic_ms + doubt_ms),
            doubt_ms,
        )


class SimulatedClocks:
    """Clocks of simulated nodes, known without asking. `now_ns` returns the world's time."""

    def __init__(self, machines: SteersSimulated, now_ns: Callable[[], int]) -> None:
        self._machines = machines
        self._now_ns = now_ns

    def shown(self) -> Shown:
        """Return the world's time, which a correct wall clock shows too."""
        now_ms = self._now_ns() / 1e6
        return Shown(now_ms, now_ms)

    def offsets(self, status: NodeStatus, asked: Shown) -> ClockOffsets:
        """Read the clocks of the node."""
        del asked
        reading = self._machines.reading(status.node)
        return ClockOffsets(reading.wall_error_ms, reading.ahead_ms, 0.0)


class Samples:
    """Writes the samples of one run.

    Args:
        lines: samples.jsonl, open.
        clocks: measures the nodes' clocks.
        now_ns: returns the time since the run's start.
    """

    def __init__(self, lines: Lines, clocks: Clocks, now_ns: Callable[[], int]) -> None:
        self._lines = lines
        self._clocks = clocks
        self._now_ns = now_ns
        self._due_ns: dict[str, int] = {}
        self._rows = 0

    def begin(self, node: str) -> Shown | None:
        """Call before a node is asked; returns None if no sample of it is due."""
        if self._now_ns() < self._due_ns.get(node, 0) or self._rows >= ROWS_MAX:
            return None
        return self._clocks.shown()

    def end(self, node: str, status: NodeStatus, asked: Shown) -> None:
        """Write a sample of the node's answer. `asked` is from `begin`."""
        now_ns = self._now_ns()
        self._due_ns[node] = now_ns + max(SAMPLE_EVERY_NS, now_ns // SAMPLES_EVEN_MAX)
        row: Json = {
            "time_ns": now_ns,
            "node": node,
            "committed_index": status.committed_index,
            "end_index": status.end_index,
        }
        if status.group:
            row["group"] = status.group
        offsets = self._clocks.offsets(status, asked)
        if offsets is not None:
            row["wall_offset_ms"] = round(offsets.wall_ms, 1)
            row["monotonic_offset_ms"] = round(offsets.monotonic_ms, 1)
            row["doubt_ms"] = round(offsets.doubt_ms, 1)
        self._rows += 1
        self._lines.append(row)
