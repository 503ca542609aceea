"""What a world asks of the links among its nodes, whatever carries what flows over them.

`harness.network.proxy` implements it for streams, `harness.network.netns` for packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import Json


class Network(Protocol):
    """The links among the nodes of one group. Cuts and shapes have ids, and are counted by them."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry what flows until cancelled."""
        ...

    def close(self) -> None:
        """Leave nothing behind (idempotent)."""
        ...

    def cut(self, links: Sequence[Link]) -> str:
        """Let nothing from a to b, for each (a, b); return the cut's id."""
        ...

    def heal(self, cut: str, how: str) -> None:
        """Mend one cut (idempotent): "deliver", or "reset" the connections that crossed it."""
        ...

    def open_cuts(self) -> tuple[str, ...]:
        """The cuts that are not mended."""
        ...

    def held(self, cut: str) -> Json:
        """What that cut held, or dropped, so far; see `World.held`."""
        ...

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; return the shape's id. See `contracts.capabilities.ShapesLinks`."""
        ...

    def unshape(self, shape: str) -> None:
        """Take one shape away (idempotent)."""
        ...

    def shaped(self, shape: str) -> Json:
        """What that shape did so far; also after it was taken away."""
        ...

    def open_shapes(self) -> tuple[str, ...]:
        """The shapes in force."""
        ...
