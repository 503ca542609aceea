"""The words for clocks and disks, as both worlds have them: left to whoever gives the orders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import ClockChange, ClockReading, DiskHarm, SkewsClocks


class HarmsDisks(Protocol):
    """Who does to disks, and to power, what a world is asked for."""

    async def hurt_disk(self, node: str, harm: DiskHarm) -> str:
        """Do that to a node's disk; return an id."""
        ...

    async def heal_disk(self, harm: str) -> None:
        """End exactly that harm (idempotent)."""
        ...

    def disk_harm(self, harm: str) -> Json:
        """What it did so far."""
        ...

    def effects(self, node: str) -> Mapping[str, int]:
        """How often what happened in that node so far."""
        ...

    async def lose_power(self, nodes: Sequence[str], on: str) -> Json:
        """Let nodes lose power, all at once."""
        ...


class ObeyedWords:
    """The part of a world that `SkewsClocks`, `HurtsDisks` and `LosesPower` ask for.

    The world sets `_clocks` and `_harms`.
    """

    _clocks: SkewsClocks
    _harms: HarmsDisks

    async def skew(self, node: str, change: ClockChange) -> Json:
        """Change a node's clocks; see `SkewsClocks.skew`."""
        return await self._clocks.skew(node, change)

    async def unskew(self, node: str, undo: Json) -> None:
        """Undo exactly that change (idempotent)."""
        await self._clocks.unskew(node, undo)

    async def read_clock(self, node: str) -> ClockReading:
        """Measure a node's clocks; see `SkewsClocks.read_clock`."""
        return await self._clocks.read_clock(node)

    async def hurt_disk(self, node: str, harm: DiskHarm) -> str:
        """Do that to a node's disk; see `HurtsDisks.hurt_disk`."""
        return await self._harms.hurt_disk(node, harm)

    async def heal_disk(self, harm: str) -> None:
        """End exactly that harm (idempotent), and start the node that ended of it."""
        await self._harms.heal_disk(harm)

    def disk_harm(self, harm: str) -> Json:
        """What it did so far, as the node itself counted; see `HurtsDisks.disk_harm`."""
        return self._harms.disk_harm(harm)

    def effects(self, node: str) -> Mapping[str, int]:
        """How often what happened in that node so far; see `CountsEffects.effects`."""
        return self._harms.effects(node)

    async def lose_power(self, nodes: Sequence[str], on: str = "") -> Json:
        """Let nodes lose power, all at once; see `LosesPower.lose_power`."""
        return await self._harms.lose_power(nodes, on)
