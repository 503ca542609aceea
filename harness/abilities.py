"""What a target may be able to do besides what every target must: optional protocols.

A fault or command that needs such an ability says in one line that a target lacks it.

Source: jepsen.db (`Pause`, `Primary`), optional protocols of a database.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.plugins import NodeLayout


@runtime_checkable
class TransfersLeadership(Protocol):
    """A target whose leader can be asked to hand leadership over."""

    async def transfer_leadership(self, layout: NodeLayout, to: str, timeout_s: float) -> None:
        """Ask the node, which leads, to hand leadership to node `to`.

        Returns when it was agreed to; `to` may come to lead only later, or never.

        Raises:
            DefiniteError: refused: leadership stays where it is.
            IndefiniteError: no answer: it may be handed over.
        """
        ...
