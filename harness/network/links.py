"""The interface of a group's network: the links among its nodes.

`harness.network.proxy` implements it for streams, `harness.network.netns` for packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import Json


class Network(Protocol):
    """The links among the nodes of one group. Each cut and shape has an id and counts effects."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry traffic until cancelled."""
        ...

    def close(self) -> None:
        """Release all resources (idempotent)."""
        ...

    def cut(self, links: Sequence[Link]) -> str:
        """Block all traffic from a to b, for each (a, b); return the cut's id."""
        ...

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut (idempotent): "deliver" what it held, or "reset" its connections."""
        ...

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        ...

    def held(self, cut: str) -> Json:
        """Return what the cut held or dropped so far; see `World.held`."""
        ...

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; return the shape's id. See `contracts.capabilities.ShapesLinks`."""
        ...

    def unshape(self, shape: str) -> None:
        """Remove one shape (idempotent)."""
        ...

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far; also after it was removed."""
        ...

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        ...
