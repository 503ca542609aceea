"""Wall clocks of nodes that are programs of others: libfaketime under each of them.

What a node's clock shows is asked of the node (`harness.abilities.ShowsClock`), never assumed: a
program that asks the kernel itself, as Go's do, does not notice, and the fault is without effect.
Changes of one clock add up, and each is taken back by its own number.

Source: DESIGN.md decisions 9 to 11; `harness.runtime.faketime`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import count

import trio

from shaketable.harness.abilities import ShowsClock
from shaketable.harness.errors import IndefiniteError
from shaketable.harness.plugins import Json
from shaketable.harness.runtime import faketime
from shaketable.harness.runtime.disks import Member
from shaketable.harness.words import ClockChange, ClockReading

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
