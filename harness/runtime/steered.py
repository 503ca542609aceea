"""Clocks and disks of nodes that obey orders: what stands behind those words for processes.

Each node has a folder with its orders and with what it counted (`harness.abilities.SteersNodes`).
Orders of several faults add up, and each is taken back by its own number. A node that is told to
fail its own disk calls may end of that: such an end is the fault's, and not the node's own.

Source: DESIGN.md decisions 9 to 11.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import trio

from harness.abilities import NodeSteering, SteersNodes
from harness.errors import IndefiniteError
from harness.plugins import UNTOUCHED, Json, Target
from harness.runtime.disks import Member
from harness.words import ClockChange, ClockReading, DiskHarm

OBEY_TIMEOUT_S = 2.0
"""A node that runs obeys within a hundredth of a second; one that is stopped, when it goes on."""
OBEY_POLL_S = 0.005
READING_GAP_S = 0.15
"""Between the two readings that a rate is measured by."""
READING_AGE_MAX_S = 1.0
FALL_TIMEOUT_S = 3.0
"""How long a node is waited for that has to end of a failed call."""
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
    harms: dict[int, Json] = field(default_factory=dict)
    trips: dict[int, Json] = field(default_factory=dict)

    @property
    def is_awake(self) -> bool:
        process = self.member.process
        return process.is_running and not process.is_paused


@dataclass(slots=True)
class _Harm:
    """A harm in force, or what it had done when it was healed."""

    node: str
    number: int
    is_deadly: bool
    done: Json | None = None


class SteeredNodes:
    """The clocks and disks of a world of processes."""

    def __init__(self, target: Target, members: Mapping[str, Member], starter: Starter) -> None:
        self._starter = starter
        self._numbers = count(1)
        self._harms: dict[str, _Harm] = {}
        self._nodes: dict[str, _Node] = {}
        if isinstance(target, SteersNodes):
            self._nodes = {
                node: _Node(member, target.steering(member.layout))
                for node, member in members.items()
            }

    # ---- clocks (harness.words.SkewsClocks) -------------------------------------------

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Change a node's clocks; see `SkewsClocks.skew`."""
        number = next(self._numbers)
        steered = self._nodes[node]
        steered.clocks[number] = {"number": number, **change.to_json()}
        await self._order(steered)
        return {"number": number}

    async def unskew(self, node: str, undo: Json) -> None:
        """Undo that change (idempotent)."""
        steered = self._nodes[node]
        if steered.clocks.pop(undo["number"], None) is not None:
            await self._order(steered)

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks, by what it wrote down of them at two instants."""
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

    # ---- disks (harness.words.HurtsDisks, LosesPower, CountsEffects) ------------------

    async def hurt_disk(self, node: str, harm: DiskHarm) -> str:
        """Do that to a node's disk; see `HurtsDisks.hurt_disk`."""
        number = next(self._numbers)
        steered = self._nodes[node]
        # A node ends where it cannot know any more what is on its disk.
        is_deadly = harm.error == "EIO" or (bool(harm.error) and harm.op in ("sync", "any"))
        if is_deadly:
            steered.member.process.excuse()
        steered.harms[number] = {"number": number, **harm.to_json()}
        name = f"harm-{number}"
        self._harms[name] = _Harm(node, number, is_deadly)
        await self._order(steered)
        return name

    async def heal_disk(self, harm: str) -> None:
        """End that harm, and start again the node that ended of it (idempotent)."""
        known = self._harms.get(harm)
        if known is None or known.done is not None:
            return
        steered = self._nodes[known.node]
        process = steered.member.process
        has_struck = known.is_deadly and self.disk_harm(harm)["errors"] > 0
        if has_struck:
            with trio.move_on_after(FALL_TIMEOUT_S):
                while process.is_running:  # noqa: ASYNC110 - what ends it is no event of ours
                    await trio.sleep(OBEY_POLL_S)
        known.done = self.disk_harm(harm)
        steered.harms.pop(known.number, None)
        await self._order(steered)
        if known.is_deadly:
            process.excuse_no_more(but_this_one=has_struck)
        if known.done["ended"]:
            await self._starter.restart(known.node, process.incarnation)

    def disk_harm(self, harm: str) -> Json:
        """What it did so far; see `HurtsDisks.disk_harm`."""
        known = self._harms[harm]
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
            "ended": process.has_fallen,
        }

    def effects(self, node: str) -> Mapping[str, int]:
        """How often what happened in that node so far; see `CountsEffects.effects`."""
        return self._nodes[node].steering.effects() if node in self._nodes else {}

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Let nodes lose power; see `LosesPower.lose_power`."""
        struck = {
            node: self._nodes[node].member.process.incarnation
            for node in nodes
            if self._nodes[node].member.process.is_running
        }
        if on:
            await self._trip(list(struck), on)
        async with trio.open_nursery() as nursery:  # every signal is sent before one is waited for
            for node in struck:
                nursery.start_soon(self._starter.kill, node)
        lost = {node: self._nodes[node].steering.effects() for node in struck}
        return {
            "incarnations": {node: struck.get(node, UNTOUCHED) for node in nodes},
            "lost_bytes": {node: found.get("unsynced_bytes", 0) for node, found in lost.items()},
        }

    async def _trip(self, nodes: Sequence[str], on: str) -> None:
        """Let nodes kill themselves at an event; wait until they have, or for a while."""
        event, _, nth = on.rpartition(":")
        number = next(self._numbers)
        trip = {"number": number, "on": event, "nth": int(nth), "what": "kill"}
        processes = [self._nodes[node].member.process for node in nodes]
        for process in processes:
            process.excuse()
        for node in nodes:
            self._nodes[node].trips[number] = trip
        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(self._order, self._nodes[node])
        with trio.move_on_after(TRIP_TIMEOUT_S):
            while any(process.is_running for process in processes):  # noqa: ASYNC110 - no event
                await trio.sleep(OBEY_POLL_S)
        for node in nodes:
            del self._nodes[node].trips[number]
            await self._order(self._nodes[node])
        for process in processes:
            process.excuse_no_more(but_this_one=True)

    async def _order(self, steered: _Node) -> None:
        """Write a node's orders; wait until it obeys, if it can."""
        version = steered.steering.order(
            [*steered.clocks.values()], [*steered.harms.values()], [*steered.trips.values()]
        )
        with trio.move_on_after(OBEY_TIMEOUT_S):
            while steered.is_awake:
                if steered.steering.effects().get("control_version", 0) >= version:
                    return
                await trio.sleep(OBEY_POLL_S)
