"""The clock and disk capabilities of a world, delegated to the objects that steer its nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from shaketable.harness.contracts.capabilities import (
    ClockChange,
    ClockReading,
    DiskFaultSpec,
    SkewsClocks,
)
from shaketable.harness.contracts.plugins import Json


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
