"""The clocks and disks of simulated nodes: what a simulated group may offer beside its words.

`harness.runtime.simulated.steered` makes the words of `contracts.words` of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import Link, LinkShape


@dataclass(frozen=True, slots=True)
class SimulatedReading:
    """A node's clocks at one instant: the world's time, and what the node's clocks are ahead by."""

    now_ms: float
    ahead_ms: float
    wall_error_ms: float


@dataclass(slots=True, eq=False)
class SimulatedHarm:
    """Calls of a kind that fail ("EIO", "ENOSPC") or, with "power", end the machine; counted.

    As in `contracts.words.DiskHarm`; `calls` and `errors` grow while it is in force.
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
        """Let a node's clocks run at a rate, from now on (0: they stand still)."""
        ...

    def advance(self, node: str, ahead_ms: float) -> None:
        """Let a node's monotonic clock jump ahead."""
        ...

    def set_wall_error(self, node: str, error_ms: float) -> None:
        """Let a node's wall clock be ahead by that much now."""
        ...

    def reading(self, node: str) -> SimulatedReading:
        """Read a node's clocks."""
        ...

    def follow_harms(self, node: str, harms: Sequence[SimulatedHarm]) -> None:
        """These harms of a node's disk are in force from now on."""
        ...

    def set_lateness(self, node: str, late_ms: float) -> None:
        """Let each piece of a node's disk work take that much longer."""
        ...

    def stall(self, node: str, until_ms: float) -> None:
        """Let no disk work of a node end before that time of the world."""
        ...

    def effects(self, node: str) -> Mapping[str, int]:
        """What a node's disk was called for so far: "read", "write", "sync", "name", "work"."""
        ...

    def lost_bytes(self) -> int:
        """How many unsynced bytes crashes took so far, of all nodes."""
        ...


# What a simulated group may be able to do to its links: behind `ShapesLinks` in world sim.
#
# Source: as `contracts.simulation`.


class SimulatedShape(Protocol):
    """One shape in force."""

    def end(self) -> None:
        """Take it away. Called once."""
        ...

    def did(self) -> Json:
        """What it did so far; see `ShapesLinks.shaped`."""
        ...


@runtime_checkable
class ShapesSimulatedLinks(Protocol):
    """A simulated group whose links can be shaped."""

    def shape(self, links: Sequence[Link], shape: LinkShape) -> SimulatedShape:
        """Shape these links from now on."""
        ...
