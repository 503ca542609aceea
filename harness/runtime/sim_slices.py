"""Processor time taken from simulated nodes: each runs for its share of each slice of time.

Source: `harness.runtime.taking`, which does the same to processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import trio

from shaketable.harness.plugins import Json
from shaketable.harness.resources import Resources
from shaketable.harness.simulation import SimulatedGroup


@dataclass(slots=True)
class _Taken:
    node: str
    incarnation: int
    resources: Resources
    began: float
    stops: int = 0
    stopped_s: float = 0.0
    wall_s: float | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class Slices:
    """What was taken from the nodes of a simulated group.

    Args:
        group: the nodes.
        is_held: whether a pause holds a node: that is not ended here.
    """

    def __init__(self, group: SimulatedGroup, is_held: Callable[[str], bool]) -> None:
        self._group = group
        self._is_held = is_held
        self._taken: dict[str, _Taken] = {}
        self._numbers = count()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Be there for as long as the world runs."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def take(self, node: str, resources: Resources) -> str:
        """Let a node run for its share of the time; "" if it does not run."""
        assert self._nursery is not None, "the world does not run"
        if not self._group.is_running(node):
            return ""
        incarnation = self._group.incarnation(node)
        taken = _Taken(node, incarnation, resources, trio.current_time())
        name = f"taken-{next(self._numbers)}"
        self._taken[name] = taken
        self._nursery.start_soon(self._slice, taken)
        return name

    def give_back(self, name: str) -> None:
        """Let the node run all the time again (idempotent)."""
        taken = self._taken.get(name)
        if taken is not None and taken.wall_s is None:
            taken.wall_s = trio.current_time() - taken.began
            taken.scope.cancel()

    def give_up(self) -> list[str]:
        """Give everything back that was not; say what that was."""
        left = [name for name, taken in self._taken.items() if taken.wall_s is None]
        for name in left:
            self.give_back(name)
        return [f"resources of {self._taken[name].node} were not given back" for name in left]

    def taken(self, name: str) -> Json:
        """What that did so far; see `TakesResources.taken`."""
        taken = self._taken.get(name)
        if taken is None:
            return {"node": None, "ended": None}
        wall_s = trio.current_time() - taken.began if taken.wall_s is None else taken.wall_s
        return {
            "node": taken.node,
            "ended": None,
            "stops": taken.stops,
            "stopped_ms": taken.stopped_s * 1e3,
            "wall_ms": wall_s * 1e3,
            "cpu_ms": None,
        }

    async def _slice(self, taken: _Taken) -> None:
        slice_s, share = taken.resources.slice_ms / 1e3, taken.resources.cpu_share
        with taken.scope:
            while self._is_it(taken):
                await self._nap(taken, slice_s * (1 - share))
                await trio.sleep(slice_s * share)

    async def _nap(self, taken: _Taken, seconds: float) -> None:
        group, node = self._group, taken.node
        if group.is_paused(node):  # by a pause, or by another slice
            await trio.sleep(seconds)
            return
        began = trio.current_time()
        group.pause(node)
        try:
            await trio.sleep(seconds)
            if self._is_it(taken) and group.is_paused(node):
                taken.stops += 1
                taken.stopped_s += trio.current_time() - began
        finally:
            if self._is_it(taken) and group.is_paused(node) and not self._is_held(node):
                group.resume(node)

    def _is_it(self, taken: _Taken) -> bool:
        is_same = self._group.incarnation(taken.node) == taken.incarnation
        return is_same and self._group.is_running(taken.node)
