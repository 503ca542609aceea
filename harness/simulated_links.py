"""What a simulated group may be able to do to its links: behind `ShapesLinks` in world sim.

Source: as `harness.simulation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from shaketable.harness.plugins import Json
from shaketable.harness.words import Link, LinkShape


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
