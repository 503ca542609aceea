"""What a target may be able to do besides what every target must: optional protocols.

A fault or command that needs such an ability says in one line that a target lacks it.

Source: jepsen.db (`Pause`, `Primary`), optional protocols of a database.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from harness.plugins import Address, Launch, NodeLayout

if TYPE_CHECKING:  # faults import this module, and client workers them
    import pyarrow as pa


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


@runtime_checkable
class NamesBrokers(Protocol):
    """A target whose clients can find its nodes by name servers, and join consumer groups.

    A name server is a process of the run beside the nodes: no fault strikes it.
    """

    def name_server(self, address: Address) -> Launch:
        """Say how to start a name server that listens there."""
        ...


@runtime_checkable
class SegmentedLog(Protocol):
    """A target whose nodes' logs consist of parts that can be read apart, at the same time."""

    def log_segments(self, directory: Path, node: str) -> tuple[str, ...]:
        """Return the names of the parts, in the log's order.

        Raises:
            OSError: the files cannot be read.
        """
        ...

    def read_segment(self, directory: Path, node: str, segment: str) -> Iterator[pa.RecordBatch]:
        """Decode one part: all parts in their order give the rows of `Target.read_log`.

        Raises:
            OSError: the files cannot be read.
        """
        ...
