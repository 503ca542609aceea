"""Clocks and disks of steered nodes: the capabilities for processes.

Each node has a folder with its orders and its counts (`contracts.abilities.SteersNodes`), or a disk
of the harness that takes them (`harness.volatile_disk`). Orders of
several faults add up, and each is withdrawn by its own number. A node that has to fail its own disk
calls may end because of that: if calls of an incarnation failed, the fault ended it. It must end of
a failing disk, and may end of a full one while it starts; then its crash message must show that.
For nodes that cannot be steered, only the wall clock can be faked from outside (`FakedClocks`).

Source: DESIGN.md decisions 9 to 11.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Protocol

import trio

from shaketable.harness.contracts.abilities import NodeSteering, ShowsClock, SteersNodes
from shaketable.harness.contracts.capabilities import (
    ClockChange,
    ClockReading,
    DiskFaultSpec,
    SkewsClocks,
)
from shaketable.harness.contracts.errors import HarnessError, IndefiniteError, all_of
from shaketable.harness.contracts.plugins import UNTOUCHED, Json, Target
from shaketable.harness.runtime.processes import crash_message, faketime
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import NodeProcess

OBEY_TIMEOUT_S = 2.0
"""A running node follows orders within a hundredth of a second, a stopped one when it resumes."""
OBEY_POLL_S = 0.005
READING_GAP_S = 0.15
"""The time between the two readings that a rate is measured from."""
READING_AGE_MAX_S = 1.0
FALL_TIMEOUT_S = 3.0
"""How long to wait for the end of a node that must end of a failed call."""
REFUSED_TIMEOUT_S = 1.0
"""How long to wait for the end of a node that may end of a refused call."""
FULL = re.compile(rb"[Nn]o space left|ENOSPC|[Dd]isk (is )?full")
TRIP_TIMEOUT_S = 2.0
US = 1_000_000


class Starter(Protocol):
    """Starts and ends nodes."""

    async def kill(self, node: str) -> Json:
        """Kill the node's process; see `World.kill`."""
        ...

    async def restart(self, node: str, incarnation: int) -> None:
        """Start it again; see `World.restart`."""
        ...


@dataclass(slots=True)
class _Node:
    """One node's orders, by their numbers."""

    member: Member
    steering: NodeSteering
    clocks: dict[int, Json] = field(default_factory=dict)
    disk_faults: dict[int, Json] = field(default_factory=dict)
    trips: dict[int, Json] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        return self.member.process.is_running

    @property
    def is_awake(self) -> bool:
        process = self.member.process
        return process.is_running and not process.is_paused


@dataclass(slots=True, eq=False)
class _DiskFault:
    """A disk fault in force, or its effects when it was healed."""

    node: str
    number: int
    is_deadly: bool  # the node must end of a failed call
    is_foreign: bool  # it may end of any, or go on: nothing says what it does
    log_bytes: int = 0  # the log's size at the start
    errors: dict[int, int] = field(default_factory=dict)  # counts of ended incarnations
    done: Json | None = None
    ended_incarnation: int = UNTOUCHED  # the incarnation that it ended, when it is healed
    is_healed: bool = False

    @property
    def dying_s(self) -> float:
        """Return how long to wait for the node's end."""
        return FALL_TIMEOUT_S if self.is_deadly else REFUSED_TIMEOUT_S


class SteeredNodes:
    """The clocks and disks of nodes in a world of processes."""

    def __init__(self, target: Target, members: Mapping[str, Member], starter: Starter) -> None:
        self.nursery: trio.Nursery | None = None
        """Tasks of a running world are started here; None before."""
        self._starter = starter
        self._numbers = count(1)
        self._disk_faults: dict[str, _DiskFault] = {}
        self._nodes: dict[str, _Node] = {}
        self._faked = None
        if isinstance(target, ShowsClock) and not isinstance(target, SteersNodes):
            self._faked = FakedClocks(target, members)
        for node, member in members.items():
            if isinstance(target, SteersNodes):
                self._nodes[node] = _Node(member, target.steering(member.layout))
            elif member.disk is not None:
                self._nodes[node] = _Node(member, member.disk)

    # ---- clocks (contracts.capabilities.SkewsClocks) -------------------------------------------

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Skew a node's clocks; see `SkewsClocks.skew`."""
        if self._faked is not None:
            return await self._faked.skew(node, change)
        number = next(self._numbers)
        steered = self._nodes[node]
        steered.clocks[number] = {"number": number, **change.to_json()}
        await self._order(steered)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Revert that skew (idempotent)."""
        if self._faked is not None:
            await self._faked.unskew(node, undo)
            return
        steered = self._nodes[node]
        await self._withdraw(steered, steered.clocks, undo["number"])

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks, by two readings in its files."""
        if self._faked is not None:
            return await self._faked.read_clock(node)
        first = await self._fresh(node)
        await trio.sleep(READING_GAP_S)
        last = await self._fresh(node)
        passed_us = last["machine_mono_us"] - first["machine_mono_us"]
        shown_us = last["node_mono_us"] - first["node_mono_us"]
        return ClockReading(
            offset_ms=(last["node_wall_us"] - last["machine_wall_us"]) / 1000,
            monotonic_offset_ms=(last["node_mono_us"] - last["machine_mono_us"]) / 1000,
            rate=shown_us / passed_us if passed_us > 0 else math.nan,
        )

    async def _fresh(self, node: str) -> Mapping[str, int]:
        """Return a fresh reading of a node's clocks. Raises IndefiniteError: it writes none."""
        steering = self._nodes[node].steering
        before = steering.effects().get("reading", 0)
        with trio.move_on_after(READING_AGE_MAX_S):
            while (effects := steering.effects()).get("reading", 0) <= before:  # noqa: ASYNC110
                await trio.sleep(OBEY_POLL_S)
            return effects
        raise IndefiniteError(f"{node} writes down no clocks")

    # ---- disks (InjectsDiskFaults, LosesPower, CountsEffects) ------------------

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Inject a disk fault into a node; see `InjectsDiskFaults.inject_disk_fault`."""
        number = next(self._numbers)
        steered = self._nodes[node]
        # A node ends if it can no longer know what is on its disk.
        is_foreign = steered.member.disk is not None
        is_deadly = fault.error == "EIO" or (bool(fault.error) and fault.op in ("sync", "any"))
        name = f"disk-fault-{number}"
        process = steered.member.process
        log_bytes = crash_message.size_bytes(process.log)
        self._disk_faults[name] = injected = _DiskFault(
            node, number, is_deadly and not is_foreign, is_foreign, log_bytes
        )
        if fault.error:
            process.excuse(injected, partial(self._caused_by, injected))
        steered.disk_faults[number] = {"number": number, **fault.to_json()}
        await self._order(steered)
        return name

    async def heal_disk(self, fault: str) -> None:
        """End that disk fault, and start the node that ended because of it (idempotent)."""
        injected = self._disk_faults.get(fault)
        if injected is None or injected.is_healed:
            return
        steered = self._nodes[injected.node]
        process = steered.member.process
        # no call fails from here on
        await self._withdraw(steered, steered.disk_faults, injected.number)
        if injected.done is None:
            with trio.move_on_after(injected.dying_s):
                while process.is_running and self._has_struck(injected, process.incarnation):  # noqa: ASYNC110 - no event
                    await trio.sleep(OBEY_POLL_S)
            done = self.disk_fault_effects(fault)
            injected.ended_incarnation = process.incarnation if done["ended"] else UNTOUCHED
            injected.done = done
        is_held = process.is_paused and self._has_struck(injected, process.incarnation)
        if is_held and self.nursery is not None:
            self.nursery.start_soon(self._wait_out_pause, injected)  # it ends when it resumes
        else:
            process.withdraw_excuse(injected)
        if injected.ended_incarnation != UNTOUCHED:
            await self._starter.restart(injected.node, injected.ended_incarnation)
        injected.is_healed = True  # only now: a failed step above is retried

    async def _wait_out_pause(self, injected: _DiskFault) -> None:
        """Wait out the pause, start the node if it ended by the fault, withdraw the excuse."""
        process = self._nodes[injected.node].member.process
        incarnation = process.incarnation
        await process.run_for(incarnation, injected.dying_s)
        is_same = process.incarnation == incarnation
        ended_by_fault = (
            is_same and process.ended_by_fault and self._caused_by(injected, incarnation)
        )
        process.withdraw_excuse(injected)
        if ended_by_fault:
            with suppress(HarnessError):  # `restore` starts it and reports it
                await self._starter.restart(injected.node, incarnation)

    def _has_struck(self, injected: _DiskFault, incarnation: int) -> bool:
        """True if calls of that incarnation, the last one so far, failed by this fault."""
        injected.errors[incarnation] = errors = (
            self._nodes[injected.node].steering.disk_fault(injected.number).get("errors", 0)
        )
        before = [seen for other, seen in injected.errors.items() if other < incarnation]
        return errors > max(before, default=0)

    def _caused_by(self, injected: _DiskFault, incarnation: int) -> bool:
        """True if that incarnation ended because its calls failed by this fault."""
        if not self._has_struck(injected, incarnation):
            return False
        log = self._nodes[injected.node].member.process.log
        return (
            injected.is_deadly
            or injected.is_foreign
            or bool(FULL.search(crash_message.in_log(log, injected.log_bytes)))
        )

    def disk_fault_effects(self, fault: str) -> Json:
        """Return what it did so far; see `InjectsDiskFaults.disk_fault_effects`."""
        injected = self._disk_faults[fault]
        if injected.done is not None:
            return injected.done
        steered = self._nodes[injected.node]
        found = steered.steering.disk_fault(injected.number)
        process = steered.member.process
        return {
            "calls": found.get("calls", 0),
            "errors": found.get("errors", 0),
            "slowed": found.get("slowed", 0),
            "waited_ms": round(found.get("waited_us", 0) / 1000, 1),
            "ended": process.ended_by_fault and self._caused_by(injected, process.incarnation),
        }

    def effects(self, node: str) -> Mapping[str, int]:
        """Return the node's event counts; see `CountsEffects.effects`."""
        return self._nodes[node].steering.effects() if node in self._nodes else {}

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes; see `LosesPower.lose_power`."""
        struck: dict[str, int] = {}
        lost: dict[str, Mapping[str, int]] = {}
        try:
            if on:
                await self._trip(nodes, on, struck)
            await self._cut_power(nodes, struck)
            for node in struck:
                lost[node] = self._lost(node)
        except BaseException:  # also when cancelled: only this task knows what was struck so far
            with trio.CancelScope(shield=True):
                for node, incarnation in struck.items():
                    await self._starter.restart(node, incarnation)
            raise
        losses: Json = {
            "incarnations": {node: struck.get(node, UNTOUCHED) for node in nodes},
            "lost_bytes": {node: found.get("bytes", 0) for node, found in lost.items()},
        }
        if any("entries" in found for found in lost.values()):
            losses["lost_entries"] = {node: found["entries"] for node, found in lost.items()}
        return losses

    def _lost(self, node: str) -> Mapping[str, int]:
        """Return what a node that was killed has lost: {"bytes"}, and "entries" if known.

        Its disk forgets that now, unless another fault has started the node again.
        """
        steered = self._nodes[node]
        disk = steered.member.disk
        if disk is None:
            return {"bytes": steered.steering.effects().get("unsynced_bytes", 0)}
        return {"bytes": 0, "entries": 0} if steered.is_running else disk.lose()

    async def _cut_power(self, nodes: Sequence[str], struck: dict[str, int]) -> None:
        """Kill the running ones; all signals are sent before the first end is waited for."""
        failed: dict[str, Exception] = {}

        async def kill(node: str) -> None:
            try:
                with trio.CancelScope(shield=True):  # record every kill that was started
                    killed = await self._starter.kill(node)
            except Exception as error:  # kill the others all the same
                failed[node] = error
                return
            if killed["incarnation"] != UNTOUCHED:
                struck[node] = killed["incarnation"]

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(kill, node)
        if failed:
            raise all_of(failed)

    async def _trip(self, nodes: Sequence[str], on: str, struck: dict[str, int]) -> None:
        """Let nodes kill themselves at an event; wait; record which ones did."""
        event, _, nth = on.rpartition(":")
        number = next(self._numbers)
        trip = {"number": number, "on": event, "nth": int(nth), "what": "kill"}
        steered: dict[str, _Node] = {}
        incarnations: dict[str, int] = {}
        for node in nodes:
            process = self._nodes[node].member.process
            pid = process.pid
            if pid is None:
                continue
            steered[node], incarnations[node] = self._nodes[node], process.incarnation
            process.excuse(number, partial(_killed_itself, process, process.incarnation))
            # Another fault may start the node again before its order is withdrawn: that process
            # must not kill itself, as nothing would explain its end.
            steered[node].trips[number] = {**trip, "pid": pid}
        try:
            async with trio.open_nursery() as nursery:
                for each in steered.values():
                    nursery.start_soon(self._order, each)
            with trio.move_on_after(TRIP_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for node, each in steered.items():
                        nursery.start_soon(self._await_trip, each, number, incarnations[node])
        finally:
            with trio.CancelScope(shield=True):
                await self._withdraw_trips(steered, number, incarnations, struck)

    async def _await_trip(self, steered: _Node, number: int, incarnation: int) -> None:
        """Wait for that process's end, and withdraw its order at once."""
        while steered.is_running and steered.member.process.incarnation == incarnation:  # noqa: ASYNC110 - no event
            await trio.sleep(OBEY_POLL_S)
        with suppress(OSError):  # `_withdraw_trips` tries again, and reports it
            await self._withdraw(steered, steered.trips, number)

    async def _withdraw_trips(
        self,
        steered: Mapping[str, _Node],
        number: int,
        incarnations: Mapping[str, int],
        struck: dict[str, int],
    ) -> None:
        """Withdraw all trips; record which of the ordered incarnations tripped."""
        failed: dict[str, Exception] = {}
        for node, each in steered.items():
            process = each.member.process
            try:
                await self._withdraw(each, each.trips, number)
            except Exception as error:  # withdraw the others all the same
                each.trips.pop(number, None)
                failed[node] = error
            if process.ended_by_fault and _killed_itself(
                process, incarnations[node], process.incarnation
            ):
                struck[node] = incarnations[node]
            process.withdraw_excuse(number)
        if failed:
            raise all_of(failed)

    async def _withdraw(self, steered: _Node, orders: dict[int, Json], number: int) -> None:
        """Withdraw one order (idempotent); it is kept until the node's orders are rewritten."""
        order = orders.pop(number, None)
        if order is None:
            return
        try:
            await self._order(steered)
        except BaseException:
            orders[number] = order
            raise

    def give_up(self) -> list[str]:
        """Withdraw all orders, without starting or waiting; return what these were."""
        left = [] if self._faked is None else self._faked.give_up()
        for node, steered in self._nodes.items():
            kinds = {"clocks": steered.clocks, "disk": steered.disk_faults, "trips": steered.trips}
            found = [kind for kind, orders in kinds.items() if orders]
            for orders in kinds.values():
                orders.clear()
            if found:
                left.append(f"orders to {node} were still in force: {', '.join(found)}")
                self._write(steered)
        for fault, injected in self._disk_faults.items():
            if not injected.is_healed:
                injected.done = injected.done or self.disk_fault_effects(fault)
                self._nodes[injected.node].member.process.withdraw_excuse(injected)
                injected.is_healed = True
        return left

    def _write(self, steered: _Node) -> int:
        return steered.steering.order(
            [*steered.clocks.values()], [*steered.disk_faults.values()], [*steered.trips.values()]
        )

    async def _order(self, steered: _Node) -> None:
        """Write a node's orders; wait until it follows them, if it can."""
        version = self._write(steered)
        with trio.move_on_after(OBEY_TIMEOUT_S):
            while steered.is_awake:
                if steered.steering.effects().get("control_version", 0) >= version:
                    return
                await trio.sleep(OBEY_POLL_S)


def _killed_itself(process: NodeProcess, incarnation: int, ended: int) -> bool:
    """True if the incarnation killed itself on order, with SIGKILL; any other end is its own."""
    return ended == incarnation and process.returncode == -signal.SIGKILL


# Wall clocks of third-party programs: libfaketime under each of them.
#
# The node itself is asked for its time (`contracts.abilities.ShowsClock`): a program that makes the
# system call itself, as Go's do, does not notice, and then the fault has no effect. Changes of one
# clock add up, and each is withdrawn by its own number.
#
# Source: DESIGN.md decisions 9 to 11; `harness.runtime.processes.faketime`.

ANSWER_TIMEOUT_S = 0.3
TICK_WAIT_S = 1.5
"""How long to poll a clock with whole seconds until it changes."""
LOOK_INTERVAL_S = 0.01


class FakedClocks:
    """The wall clocks of the nodes that have a `Member.clock`."""

    def __init__(self, target: ShowsClock, members: Mapping[str, Member]) -> None:
        self._target = target
        self._members = members
        self._numbers = count(1)
        self._changes: dict[str, dict[int, ClockChange]] = {node: {} for node in members}

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Skew a node's wall clock, the only one that can be; see `SkewsClocks.skew`."""
        await trio.lowlevel.checkpoint()
        number = next(self._numbers)
        self._changes[node][number] = change
        self._set(node)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Revert that skew (idempotent)."""
        await trio.lowlevel.checkpoint()
        if self._changes[node].pop(undo["number"], None) is not None:
            self._set(node)

    async def read_clock(self, node: str) -> ClockReading:
        """Ask the node for its time, if need be until it changes: then it is exact."""
        first = await self._shown_s(node)
        shown = first
        with trio.move_on_after(TICK_WAIT_S):
            while shown == first:
                await trio.sleep(LOOK_INTERVAL_S)
                shown = await self._shown_s(node)
        return ClockReading(offset_ms=(shown - time.time()) * 1000, is_wall_only=True)

    async def _shown_s(self, node: str) -> float:
        """Return the time that a node reports. Raises IndefiniteError: it does not answer."""
        layout = self._members[node].layout
        with trio.move_on_after(2 * ANSWER_TIMEOUT_S):  # whatever the target does
            try:
                return await self._target.wall_clock(layout, ANSWER_TIMEOUT_S)
            except Exception as error:  # whatever a target's own library raises
                raise IndefiniteError(f"{node}: {type(error).__name__}: {error}") from error
        raise IndefiniteError(f"{node} does not tell the time")

    def give_up(self) -> list[str]:
        """Withdraw all changes; return what these were."""
        left = [node for node, changes in self._changes.items() if changes]
        for node in left:
            self._changes[node].clear()
            self._set(node)
        return [f"the clock of {node} was still wrong" for node in left]

    def _set(self, node: str) -> None:
        """Set a node's clock to the sum of all changes in force."""
        member, changes = self._members[node], self._changes[node].values()
        assert member.clock is not None, "the fault was not available"
        wanted = [change for change in changes if change.which != "monotonic"]
        if not wanted:
            member.clock.heal()
            return
        pid = member.process.pid
        member.clock.change(
            sum(change.offset_ms for change in wanted),
            math.prod(change.rate for change in wanted),
            age_s=None if pid is None else faketime.age_s(pid),
        )


# ---- the clock and disk capabilities of a world, delegated to what steers its nodes ------------


class DiskFaultInjector(Protocol):
    """Injects disk faults and power losses for a world."""

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Inject a fault into a node's disk; return an id."""
        ...

    async def heal_disk(self, fault: str) -> None:
        """End exactly that disk fault (idempotent)."""
        ...

    def disk_fault_effects(self, fault: str) -> Json:
        """Return what the fault did so far."""
        ...

    def effects(self, node: str) -> Mapping[str, int]:
        """Return the node's event counts so far."""
        ...

    async def lose_power(self, nodes: Sequence[str], on: str) -> Json:
        """Cut the power of nodes, all at once."""
        ...


class SteeredCapabilities:
    """The part of a world that implements `SkewsClocks`, `InjectsDiskFaults` and `LosesPower`.

    The world sets `_clocks` and `_disk_faults`.
    """

    _clocks: SkewsClocks
    _disk_faults: DiskFaultInjector

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Skew a node's clocks; see `SkewsClocks.skew`."""
        return await self._clocks.skew(node, change)

    async def unskew(self, node: str, undo: Json) -> None:
        """Revert exactly that skew (idempotent)."""
        await self._clocks.unskew(node, undo)

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks; see `SkewsClocks.read_clock`."""
        return await self._clocks.read_clock(node)

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Inject a disk fault into a node; see `InjectsDiskFaults.inject_disk_fault`."""
        return await self._disk_faults.inject_disk_fault(node, fault)

    async def heal_disk(self, fault: str) -> None:
        """End exactly that disk fault (idempotent), and start the node that ended because of it."""
        await self._disk_faults.heal_disk(fault)

    def disk_fault_effects(self, fault: str) -> Json:
        """Return what the fault did so far; see `InjectsDiskFaults.disk_fault_effects`."""
        return self._disk_faults.disk_fault_effects(fault)

    def effects(self, node: str) -> Mapping[str, int]:
        """Return the node's event counts so far; see `CountsEffects.effects`."""
        return self._disk_faults.effects(node)

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Cut the power of nodes, all at once; see `LosesPower.lose_power`."""
        return await self._disk_faults.lose_power(nodes, on)
