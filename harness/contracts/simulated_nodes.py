"""Clocks, disks and links of simulated nodes: optional protocols of a simulated group.

`harness.runtime.simulated.steered` builds the capabilities of `contracts.capabilities` on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import Json


@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """A node's clocks at one instant: world time, and by how much the node's clocks are ahead."""

    now_ms: float
    ahead_ms: float
    wall_error_ms: float


@dataclass(slots=True, eq=False)
class SimulatedDiskFault:
    """A disk fault: calls of one kind fail ("EIO", "ENOSPC") or, with "power", end the machine.

    Fields as in `contracts.capabilities.DiskFaultSpec`; `calls` and `errors` count while in force.
    """

    op: str
    error: str = ""
    nth: int = 0
    times: int = 0
    calls: int = 0
    errors: int = 0


@runtime_checkable
class SteersSimulated(Protocol):
    """A `contracts.simulation.SimulatedGroup` whose nodes' clocks and disks can be changed."""

    def set_rate(self, node: str, rate: float) -> None:
        """Set the rate of a node's clocks from now on (0: frozen)."""
        ...

    def advance(self, node: str, ahead_ms: float) -> None:
        """Advance a node's monotonic clock by `ahead_ms`."""
        ...

    def set_wall_error(self, node: str, error_ms: float) -> None:
        """Set by how much a node's wall clock is ahead."""
        ...

    def reading(self, node: str) -> SimulatedReading:
        """Read a node's clocks."""
        ...

    def set_disk_faults(self, node: str, faults: Sequence[SimulatedDiskFault]) -> None:
        """Replace the disk faults in force on a node."""
        ...

    def set_lateness(self, node: str, late_ms: float) -> None:
        """Delay each disk operation of a node by `late_ms`."""
        ...

    def stall(self, node: str, until_ms: float) -> None:
        """Let no disk operation of a node complete before `until_ms` (world time)."""
        ...

    def effects(self, node: str) -> Mapping[str, int]:
        """Return how many calls a node's disk got: "read", "write", "sync", "name", "work"."""
        ...

    def lost_bytes(self) -> int:
        """Return how many unsynced bytes crashes discarded so far, on all nodes."""
        ...


# Optional: shaping of links. Implements `ShapesLinks` in world sim.
#
# Source: as `contracts.simulation`.


class SimulatedShape(Protocol):
    """One shape in force."""

    def end(self) -> None:
        """Remove the shape. Called once."""
        ...

    def did(self) -> Json:
        """Return its effects so far; see `ShapesLinks.shaped`."""
        ...


@runtime_checkable
class ShapesSimulatedLinks(Protocol):
    """A simulated group whose links can be shaped."""

    def shape(self, links: Sequence[Link], shape: LinkShape) -> SimulatedShape:
        """Shape these links from now on."""
        ...
