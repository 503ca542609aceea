"""Clocks and disks of nodes that obey orders: what stands behind those words for processes.

Each node has a folder with its orders and with what it counted (`contracts.abilities.SteersNodes`).
Orders of several faults add up, and each is taken back by its own number. A node that is told to
fail its own disk calls may end of that: where calls of an incarnation were made to fail, its end is
the fault's, and not the node's own. It must end of a disk that fails, and may of one that is full,
while it starts; then it has to say so with its last words. Nodes that take no orders have wall
clocks at most, which are faked from outside (`harness.runtime.processes.steered`).

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
from shaketable.harness.contracts.capabilities import ClockChange, ClockReading, DiskFaultSpec
from shaketable.harness.contracts.errors import HarnessError, IndefiniteError, all_of
from shaketable.harness.contracts.plugins import UNTOUCHED, Json, Target
from shaketable.harness.runtime.processes import crash_message, faketime
from shaketable.harness.runtime.processes.disks import Member
from shaketable.harness.runtime.processes.nodes import NodeProcess

OBEY_TIMEOUT_S = 2.0
"""A node that runs obeys within a hundredth of a second; one that is stopped, when it goes on."""
OBEY_POLL_S = 0.005
READING_GAP_S = 0.15
"""Between the two readings that a rate is measured by."""
READING_AGE_MAX_S = 1.0
FALL_TIMEOUT_S = 3.0
"""How long a node is waited for that has to end of a failed call."""
REFUSED_TIMEOUT_S = 1.0
"""How long a node is waited for that may end of a call that was refused, but need not."""
FULL = re.compile(rb"[Nn]o space left|ENOSPC|[Dd]isk (is )?full")
TRIP_TIMEOUT_S = 2.0
US = 1_000_000


class Starter(Protocol):
    """What starts and ends nodes."""

    async def kill(self, node: str) -> Json:
        """End the node's process; see `World.kill`."""
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
    """A harm in force, or what it had done when it was healed."""

    node: str
    number: int
    is_deadly: bool
    log_bytes: int = 0  # how long the node's log was when it began
    errors: dict[int, int] = field(default_factory=dict)  # counted by the end of incarnations
    done: Json | None = None
    fallen: int = UNTOUCHED  # the incarnation that ended of it, when it is healed
    is_healed: bool = False

    @property
    def dying_s(self) -> float:
        """How long its node is waited for, which may or must end of it."""
        return FALL_TIMEOUT_S if self.is_deadly else REFUSED_TIMEOUT_S


class SteeredNodes:
    """The clocks and disks of a world of processes."""

    def __init__(self, target: Target, members: Mapping[str, Member], starter: Starter) -> None:
        self.nursery: trio.Nursery | None = None
        """Where a world that runs has tasks waited for; none before."""
        self._starter = starter
        self._numbers = count(1)
        self._disk_faults: dict[str, _DiskFault] = {}
        self._nodes: dict[str, _Node] = {}
        self._faked = None
        if isinstance(target, ShowsClock) and not isinstance(target, SteersNodes):
            self._faked = FakedClocks(target, members)
        if isinstance(target, SteersNodes):
            self._nodes = {
                node: _Node(member, target.steering(member.layout))
                for node, member in members.items()
            }

    # ---- clocks (contracts.capabilities.SkewsClocks) -------------------------------------------

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Change a node's clocks; see `SkewsClocks.skew`."""
        if self._faked is not None:
            return await self._faked.skew(node, change)
        number = next(self._numbers)
        steered = self._nodes[node]
        steered.clocks[number] = {"number": number, **change.to_json()}
        await self._order(steered)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Undo that change (idempotent)."""
        if self._faked is not None:
            await self._faked.unskew(node, undo)
            return
        steered = self._nodes[node]
        await self._take_back(steered, steered.clocks, undo["number"])

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks, by what it wrote down of them at two instants."""
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
        """What a node's clocks showed just now. Raises IndefiniteError: it writes nothing down."""
        steering = self._nodes[node].steering
        before = steering.effects().get("reading", 0)
        with trio.move_on_after(READING_AGE_MAX_S):
            while (effects := steering.effects()).get("reading", 0) <= before:  # noqa: ASYNC110
                await trio.sleep(OBEY_POLL_S)
            return effects
        raise IndefiniteError(f"{node} writes down no clocks")

    # ---- disks (InjectsDiskFaults, LosesPower, CountsEffects) ------------------

    async def inject_disk_fault(self, node: str, fault: DiskFaultSpec) -> str:
        """Do that to a node's disk; see `InjectsDiskFaults.inject_disk_fault`."""
        number = next(self._numbers)
        steered = self._nodes[node]
        # A node ends where it cannot know any more what is on its disk.
        is_deadly = fault.error == "EIO" or (bool(fault.error) and fault.op in ("sync", "any"))
        name = f"harm-{number}"
        process = steered.member.process
        log_bytes = crash_message.size_bytes(process.log)
        self._disk_faults[name] = known = _DiskFault(node, number, is_deadly, log_bytes)
        if fault.error:
            process.excuse(known, partial(self._ended_of_it, known))
        steered.disk_faults[number] = {"number": number, **fault.to_json()}
        await self._order(steered)
        return name

    async def heal_disk(self, fault: str) -> None:
        """End that harm, and start again the node that ended of it (idempotent)."""
        known = self._disk_faults.get(fault)
        if known is None or known.is_healed:
            return
        steered = self._nodes[known.node]
        process = steered.member.process
        await self._take_back(
            steered, steered.disk_faults, known.number
        )  # no call fails from here on
        if known.done is None:
            with trio.move_on_after(known.dying_s):
                while process.is_running and self._has_struck(known, process.incarnation):  # noqa: ASYNC110 - no event
                    await trio.sleep(OBEY_POLL_S)
            done = self.disk_fault_effects(fault)
            known.fallen = process.incarnation if done["ended"] else UNTOUCHED
            known.done = done
        is_held = process.is_paused and self._has_struck(known, process.incarnation)
        if is_held and self.nursery is not None:
            self.nursery.start_soon(self._outlive_pause, known)  # it ends when it goes on
        else:
            process.excuse_no_more(known)
        if known.fallen != UNTOUCHED:
            await self._starter.restart(known.node, known.fallen)
        known.is_healed = True  # only now: what failed on the way is done again

    async def _outlive_pause(self, known: _DiskFault) -> None:
        """Wait for as long as it is paused; start it if it ends of it, then excuse it no more."""
        process = self._nodes[known.node].member.process
        incarnation = process.incarnation
        await process.run_for(incarnation, known.dying_s)
        is_same = process.incarnation == incarnation
        has_fallen = is_same and process.has_fallen and self._ended_of_it(known, incarnation)
        process.excuse_no_more(known)
        if has_fallen:
            with suppress(HarnessError):  # whoever puts right what is left starts it, and tells
                await self._starter.restart(known.node, incarnation)

    def _has_struck(self, known: _DiskFault, incarnation: int) -> bool:
        """Whether calls of that incarnation, which is the last one so far, were made to fail."""
        known.errors[incarnation] = errors = (
            self._nodes[known.node].steering.harm(known.number).get("errors", 0)
        )
        before = [seen for other, seen in known.errors.items() if other < incarnation]
        return errors > max(before, default=0)

    def _ended_of_it(self, known: _DiskFault, incarnation: int) -> bool:
        """Whether that incarnation ended because calls of it were made to fail."""
        if not self._has_struck(known, incarnation):
            return False
        log = self._nodes[known.node].member.process.log
        return known.is_deadly or bool(FULL.search(crash_message.in_log(log, known.log_bytes)))

    def disk_fault_effects(self, fault: str) -> Json:
        """What it did so far; see `InjectsDiskFaults.disk_fault_effects`."""
        known = self._disk_faults[fault]
        if known.done is not None:
            return known.done
        steered = self._nodes[known.node]
        found = steered.steering.harm(known.number)
        process = steered.member.process
        return {
            "calls": found.get("calls", 0),
            "errors": found.get("errors", 0),
            "slowed": found.get("slowed", 0),
            "waited_ms": round(found.get("waited_us", 0) / 1000, 1),
            "ended": process.has_fallen and self._ended_of_it(known, process.incarnation),
        }

    def effects(self, node: str) -> Mapping[str, int]:
        """How often what happened in that node so far; see `CountsEffects.effects`."""
        return self._nodes[node].steering.effects() if node in self._nodes else {}

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Let nodes lose power; see `LosesPower.lose_power`."""
        struck: dict[str, int] = {}
        try:
            if on:
                await self._trip(nodes, on, struck)
            await self._cut_power(nodes, struck)
        except BaseException:  # also when cancelled: nobody else knows what was struck so far
            with trio.CancelScope(shield=True):
                for node, incarnation in struck.items():
                    await self._starter.restart(node, incarnation)
            raise
        lost = {node: self._nodes[node].steering.effects() for node in struck}
        return {
            "incarnations": {node: struck.get(node, UNTOUCHED) for node in nodes},
            "lost_bytes": {node: found.get("unsynced_bytes", 0) for node, found in lost.items()},
        }

    async def _cut_power(self, nodes: Sequence[str], struck: dict[str, int]) -> None:
        """Kill those that run; every signal is sent before one end is waited for."""
        failed: dict[str, Exception] = {}

        async def kill(node: str) -> None:
            try:
                with trio.CancelScope(shield=True):  # what is begun is known in the end
                    killed = await self._starter.kill(node)
            except Exception as error:  # the others are not left half dead
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
        """Let nodes kill themselves at an event; wait for a while; note which ones did."""
        event, _, nth = on.rpartition(":")
        number = next(self._numbers)
        trip = {"number": number, "on": event, "nth": int(nth), "what": "kill"}
        steered = {node: self._nodes[node] for node in nodes if self._nodes[node].is_running}
        told = {node: each.member.process.incarnation for node, each in steered.items()}
        for node, each in steered.items():
            process = each.member.process
            process.excuse(number, partial(_killed_itself, process, told[node]))
            each.trips[number] = trip
        try:
            async with trio.open_nursery() as nursery:
                for each in steered.values():
                    nursery.start_soon(self._order, each)
            with trio.move_on_after(TRIP_TIMEOUT_S):
                while any(each.is_running for each in steered.values()):  # noqa: ASYNC110 - no event
                    await trio.sleep(OBEY_POLL_S)
        finally:
            with trio.CancelScope(shield=True):
                await self._trip_no_more(steered, number, told, struck)

    async def _trip_no_more(
        self,
        steered: Mapping[str, _Node],
        number: int,
        told: Mapping[str, int],
        struck: dict[str, int],
    ) -> None:
        """Take trips back, all of them; note which of the incarnations that were told tripped."""
        failed: dict[str, Exception] = {}
        for node, each in steered.items():
            process = each.member.process
            try:
                await self._take_back(each, each.trips, number)
            except Exception as error:  # the others are taken back all the same
                each.trips.pop(number, None)
                failed[node] = error
            if process.has_fallen and _killed_itself(process, told[node], process.incarnation):
                struck[node] = told[node]
            process.excuse_no_more(number)
        if failed:
            raise all_of(failed)

    async def _take_back(self, steered: _Node, orders: dict[int, Json], number: int) -> None:
        """Take one order back (idempotent); it stands until the node's orders are written anew."""
        order = orders.pop(number, None)
        if order is None:
            return
        try:
            await self._order(steered)
        except BaseException:
            orders[number] = order
            raise

    def give_up(self) -> list[str]:
        """Take all orders back, without starting anything or waiting; say what these were."""
        left = [] if self._faked is None else self._faked.give_up()
        for node, steered in self._nodes.items():
            kinds = {"clocks": steered.clocks, "disk": steered.disk_faults, "trips": steered.trips}
            found = [kind for kind, orders in kinds.items() if orders]
            for orders in kinds.values():
                orders.clear()
            if found:
                left.append(f"orders to {node} were still in force: {', '.join(found)}")
                self._write(steered)
        for fault, known in self._disk_faults.items():
            if not known.is_healed:
                known.done = known.done or self.disk_fault_effects(fault)
                self._nodes[known.node].member.process.excuse_no_more(known)
                known.is_healed = True
        return left

    def _write(self, steered: _Node) -> int:
        return steered.steering.order(
            [*steered.clocks.values()], [*steered.disk_faults.values()], [*steered.trips.values()]
        )

    async def _order(self, steered: _Node) -> None:
        """Write a node's orders; wait until it obeys, if it can."""
        version = self._write(steered)
        with trio.move_on_after(OBEY_TIMEOUT_S):
            while steered.is_awake:
                if steered.steering.effects().get("control_version", 0) >= version:
                    return
                await trio.sleep(OBEY_POLL_S)


def _killed_itself(process: NodeProcess, incarnation: int, ended: int) -> bool:
    """Whether the incarnation that was told to ended by SIGKILL; any other end is its own."""
    return ended == incarnation and process.returncode == -signal.SIGKILL


# Wall clocks of nodes that are programs of others: libfaketime under each of them.
#
# What a node's clock shows is asked of the node (`contracts.abilities.ShowsClock`), never assumed:
# a program that asks the kernel itself, as Go's do, does not notice, and the fault is without
# effect. Changes of one clock add up, and each is taken back by its own number.
#
# Source: DESIGN.md decisions 9 to 11; `harness.runtime.processes.faketime`.

ANSWER_TIMEOUT_S = 0.3
TICK_WAIT_S = 1.5
"""A clock in whole seconds is looked at until it shows another one, for so long at most."""
LOOK_INTERVAL_S = 0.01


class FakedClocks:
    """The wall clocks of those nodes that have a `Member.clock`."""

    def __init__(self, target: ShowsClock, members: Mapping[str, Member]) -> None:
        self._target = target
        self._members = members
        self._numbers = count(1)
        self._changes: dict[str, dict[int, ClockChange]] = {node: {} for node in members}

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Change a node's wall clock; see `SkewsClocks.skew`. It has no other that could be."""
        await trio.lowlevel.checkpoint()
        number = next(self._numbers)
        self._changes[node][number] = change
        self._set(node)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Undo that change (idempotent)."""
        await trio.lowlevel.checkpoint()
        if self._changes[node].pop(undo["number"], None) is not None:
            self._set(node)

    async def read_clock(self, node: str) -> ClockReading:
        """Ask the node for its time, if need be until that changes: then it is exact."""
        first = await self._shown_s(node)
        shown = first
        with trio.move_on_after(TICK_WAIT_S):
            while shown == first:
                await trio.sleep(LOOK_INTERVAL_S)
                shown = await self._shown_s(node)
        return ClockReading(offset_ms=(shown - time.time()) * 1000, is_wall_only=True)

    async def _shown_s(self, node: str) -> float:
        """The time that a node shows. Raises IndefiniteError: it does not answer."""
        layout = self._members[node].layout
        with trio.move_on_after(2 * ANSWER_TIMEOUT_S):  # even if the target forgets its own
            try:
                return await self._target.wall_clock(layout, ANSWER_TIMEOUT_S)
            except Exception as error:  # whatever a target's own library raises
                raise IndefiniteError(f"{node}: {type(error).__name__}: {error}") from error
        raise IndefiniteError(f"{node} does not tell the time")

    def give_up(self) -> list[str]:
        """Take all changes back; say what these were."""
        left = [node for node, changes in self._changes.items() if changes]
        for node in left:
            self._changes[node].clear()
            self._set(node)
        return [f"the clock of {node} was still wrong" for node in left]

    def _set(self, node: str) -> None:
        """Let a node's clock be what all changes in force make of it."""
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
