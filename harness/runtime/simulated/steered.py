"""Clocks and disks of simulated nodes: the capabilities of the simulated world.

The same capabilities as those of `harness.runtime.processes.steered` for processes; readings are
taken from the simulated machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import trio

from shaketable.harness.contracts.capabilities import ClockChange, ClockReading, DiskFaultSpec
from shaketable.harness.contracts.plugins import UNTOUCHED, Json
from shaketable.harness.contracts.simulation import SimulatedDiskFault, SteersSimulated

READING_GAP_S = 0.15
STALL_STEP_MS = 20.0
"""A stalled disk is stalled for one such step after another."""
FALL_TIMEOUT_S = 3.0
REFUSED_TIMEOUT_S = 1.0
"""How long to wait for the end of a node that may end of a refused call."""
TOLD_TIMEOUT_S = 0.25
"""Within this time the world has asked whether the end of a node is excused."""
FULL = "no space left"
TRIP_TIMEOUT_S = 2.0
POLL_S = 0.005


class Processes(Protocol):
    """What the world knows of its nodes' processes, and can do to them."""

    def incarnation(self, node: str) -> int:
        """Return how often the node was started."""
        ...

    def is_running(self, node: str) -> bool:
        """True while the node has a process."""
        ...

    async def cut_power(self, node: str) -> Json:
        """Cut the power of the node's machine: unsynced writes may be lost, whatever its disk."""
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start it again; see `World.restart`."""
        ...


@dataclass(slots=True)
class _DiskFault:
    """A disk fault in force, or its effects when it was healed."""

    node: str
    fault: DiskFaultSpec
    counts: SimulatedDiskFault
    begun: int
    """Disk operations that had started before the fault."""
    at_s: float
    done: Json | None = None
    errors: dict[int, int] = field(default_factory=dict)
    """The failed calls by incarnation, at the last look."""

    def has_struck(self, incarnation: int) -> bool:
        """True if calls of that incarnation, the last one so far, failed by this fault.

        Uses `counts`, which the group updates when it is asked for effects.
        """
        self.errors[incarnation] = now = self.counts.errors
        before = [seen for other, seen in self.errors.items() if other < incarnation]
        return now > max(before, default=0)

    @property
    def is_deadly(self) -> bool:
        """True if a node that meets it can no longer know what is on its disk."""
        fault = self.fault
        return fault.error == "EIO" or (bool(fault.error) and fault.op in ("sync", "any"))


@dataclass(slots=True)
class _Clocks:
    """The changes of one node's clocks, by their numbers."""

    changes: dict[int, ClockChange] = field(default_factory=dict)


class SimSteered:
    """The clocks and disks of a simulated world. Start `run` beside its nodes."""

    def __init__(self, group: SteersSimulated, processes: Processes, nodes: Sequence[str]) -> None:
        self._group = group
        self._processes = processes
        self._clocks = {node: _Clocks() for node in nodes}
        self._numbers = count(1)
        self._disk_faults: dict[str, _DiskFault] = {}
        self._excused: set[tuple[str, int]] = set()
        self._nursery: trio.Nursery | None = None
        self._strobes: dict[int, trio.CancelScope] = {}

    async def run(self) -> None:
        """Strobe clocks and stall disks until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._hold_stalls)
            await trio.sleep_forever()

    def is_excused(self, node: str, incarnation: int, said: str) -> bool:
        """True if a fault ended that incarnation; `said` is its last message.

        A node must end of a failing disk, and may end of a full one while it starts.
        """
        self._group.effects(node)  # updates the counts
        mine = [
            each for each in self._disk_faults.values() if each.node == node and each.done is None
        ]
        struck = [each for each in mine if each.has_struck(incarnation)]
        if any(each.is_deadly or FULL in said.lower() for each in struck):
            self._excused.add((node, incarnation))
        return (node, incarnation) in self._excused

    def has_disk_fault(self, node: str, incarnation: int) -> bool:
        """True if a disk fault is in force there, or made calls of that incarnation fail.

        A node that ends then may have ended because of it, whatever its message.
        """
        self._group.effects(node)  # updates the counts
        mine = [each for each in self._disk_faults.values() if each.node == node]
        struck = [each.has_struck(incarnation) for each in mine]  # evaluate all of them
        return any(struck) or any(each.done is None for each in mine)

    def ends(self, node: str) -> None:
        """Record the effects of disk faults on a node that is being ended, before it starts again.

        Its next incarnation is responsible for its own end, unless its own calls fail too.
        """
        self._group.effects(node)  # updates the counts
        for each in self._disk_faults.values():
            if each.node == node and each.done is None:
                each.has_struck(self._processes.incarnation(node))

    # ---- clocks -----------------------------------------------------------------------

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Skew a node's clocks; see `SkewsClocks.skew`."""
        await trio.lowlevel.checkpoint()
        number = next(self._numbers)
        self._clocks[node].changes[number] = change
        if change.strobe_ms:
            assert self._nursery is not None, "the world does not run"
            self._strobes[number] = trio.CancelScope()
            self._nursery.start_soon(self._strobe, node, number, change)
            return {"number": number}
        if change.which != "wall" and change.offset_ms > 0:
            self._group.advance(node, change.offset_ms)
        self._set_clocks(node)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Revert that skew (idempotent)."""
        await trio.lowlevel.checkpoint()
        number = undo["number"]
        if self._clocks[node].changes.pop(number, None) is None:
            return
        if number in self._strobes:
            self._strobes.pop(number).cancel()
        self._set_clocks(node)

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks at two instants."""
        first = self._group.reading(node)
        await trio.sleep(READING_GAP_S)
        last = self._group.reading(node)
        passed_ms = last.now_ms - first.now_ms
        gained_ms = last.ahead_ms - first.ahead_ms
        return ClockReading(
            offset_ms=last.wall_error_ms,
            monotonic_offset_ms=last.ahead_ms,
            rate=1.0 + gained_ms / passed_ms,
        )

    def _set_clocks(self, node: str) -> None:
        """Set a node's clocks to the sum of all changes."""
        changes = [each for each in self._clocks[node].changes.values() if not each.strobe_ms]
        self._group.set_rate(node, math.prod(each.rate for each in changes))
        if all(each.rate == 1.0 for each in changes):  # else it continues from where it is
            wall = (each.offset_ms for each in changes if each.which != "monotonic")
            self._group.set_wall_error(node, sum(wall))

    async def _strobe(self, node: str, number: int, change: ClockChange) -> None:
        """Alternate between the offset and the correct time; a monotonic clock waits meanwhile."""
        group, ahead_ms = self._group, abs(change.offset_ms)
        right_ms = group.reading(node).ahead_ms
        with self._strobes[number]:
            while True:
                if change.which != "wall":
                    jump_ms = right_ms + ahead_ms - group.reading(node).ahead_ms
                    group.advance(node, max(0.0, jump_ms))
                if change.which != "monotonic":
                    group.set_wall_error(node, change.offset_ms)
                await trio.sleep(change.strobe_ms / 1000)
                standing_ms = min(change.strobe_ms, ahead_ms) if change.which != "wall" else 0.0
                if standing_ms:
                    group.set_rate(node, 0.0)
                    await trio.sleep(standing_ms / 1000)
                self._set_clocks(node)
                await trio.sleep((change.strobe_ms - standing_ms) / 1000)

    # ---- disks ------------------------------------------------------------------------

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Inject a disk fault into a node; see `InjectsDiskFaults.inject_disk_fault`."""
        await trio.lowlevel.checkpoint()
        name = f"disk-fault-{next(self._numbers)}"
        counts = SimulatedDiskFault(fault.op, fault.error, fault.nth, fault.times)
        begun = self._group.effects(node)["work"]
        self._disk_faults[name] = _DiskFault(node, fault, counts, begun, trio.current_time())
        self._set_disk(node)
        return name

    async def heal_disk(self, fault: str) -> None:
        """End that disk fault, and start the node that ended because of it (idempotent)."""
        known = self._disk_faults.get(fault)
        if known is None or known.done is not None:
            return
        node = known.node
        self._group.effects(node)
        if known.has_struck(self._processes.incarnation(node)):
            with trio.move_on_after(FALL_TIMEOUT_S if known.is_deadly else REFUSED_TIMEOUT_S):
                while self._processes.is_running(node):  # noqa: ASYNC110 - no event of ours
                    await trio.sleep(POLL_S)
                await trio.sleep(TOLD_TIMEOUT_S)
        known.done = self.disk_fault_effects(fault)
        if known.done["ended"]:
            self._excused.add((node, self._processes.incarnation(node)))
        self._set_disk(node)
        if known.done["ended"]:
            await self._processes.restart(node, self._processes.incarnation(node))

    def disk_fault_effects(self, fault: str) -> Json:
        """Return what it did so far; see `InjectsDiskFaults.disk_fault_effects`."""
        known = self._disk_faults[fault]
        if known.done is not None:
            return known.done
        works = self._group.effects(known.node)["work"] - known.begun
        is_slow = bool(known.fault.delay_ms or known.fault.stall)
        waited_ms = works * known.fault.delay_ms
        if known.fault.stall and works:
            waited_ms = (trio.current_time() - known.at_s) * 1000
        return {
            "calls": works if is_slow else known.counts.calls,
            "errors": known.counts.errors,
            "slowed": works if is_slow else 0,
            "waited_ms": round(waited_ms if is_slow else 0.0, 1),
            "ended": self._ended_by_fault(known),
        }

    def _ended_by_fault(self, known: _DiskFault) -> bool:
        """True if its node does not run, and ended because of it as far as is known."""
        incarnation = self._processes.incarnation(known.node)
        if self._processes.is_running(known.node) or not known.has_struck(incarnation):
            return False
        return known.is_deadly or (known.node, incarnation) in self._excused

    def effects(self, node: str) -> Mapping[str, int]:
        """Return the node's event counts; see `CountsEffects.effects`."""
        return self._group.effects(node)

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes; see `LosesPower.lose_power`. Losses are counted one by one."""
        event, _, nth = on.rpartition(":")
        struck = {
            node: self._processes.incarnation(node)
            for node in nodes
            if self._processes.is_running(node)
        }
        lost: dict[str, int] = {}
        for node in struck:
            before = self._group.lost_bytes()
            if on:
                await self._trip(node, SimulatedDiskFault(event, "power", int(nth), 1))
            await self._processes.cut_power(node)
            self.ends(node)  # it may have tripped, and then no kill recorded its effects
            lost[node] = self._group.lost_bytes() - before
        incarnations = {node: struck.get(node, UNTOUCHED) for node in nodes}
        return {"incarnations": incarnations, "lost_bytes": lost}

    async def _trip(self, node: str, trip: SimulatedDiskFault) -> None:
        """Let a machine lose power at a call of its disk; wait for that."""
        self._excused.add((node, self._processes.incarnation(node)))
        self._set_disk(node, trip)
        with trio.move_on_after(TRIP_TIMEOUT_S):
            while self._processes.is_running(node):  # noqa: ASYNC110 - no event of ours
                await trio.sleep(POLL_S)
        self._set_disk(node)

    def give_up(self) -> list[str]:
        """Revert everything, without starting anything; return what was still in force."""
        left = []
        for node, clocks in self._clocks.items():
            if clocks.changes:
                left.append(f"the clock of {node} was still wrong")
                for number in clocks.changes:
                    if number in self._strobes:
                        self._strobes.pop(number).cancel()
                clocks.changes.clear()
                self._set_clocks(node)
        for name, known in self._disk_faults.items():
            if known.done is None:
                known.done = self.disk_fault_effects(name)
                left.append(f"{name} of {known.node} was still in force")
                self._set_disk(known.node)
        return left

    def _set_disk(self, node: str, trip: SimulatedDiskFault | None = None) -> None:
        """Set a node's disk to the sum of all its disk faults."""
        mine = [
            each for each in self._disk_faults.values() if each.node == node and each.done is None
        ]
        self._group.set_disk_faults(
            node, [*(each.counts for each in mine), *([] if trip is None else [trip])]
        )
        self._group.set_lateness(node, sum(each.fault.delay_ms for each in mine))
        self._stall(node)

    def _stall(self, node: str) -> None:
        stands = any(
            each.fault.stall and each.done is None and each.node == node
            for each in self._disk_faults.values()
        )
        self._group.stall(node, trio.current_time() * 1000 + STALL_STEP_MS if stands else 0.0)

    async def _hold_stalls(self) -> None:
        while True:
            for node in self._clocks:
                self._stall(node)
            await trio.sleep(STALL_STEP_MS / 2000)
