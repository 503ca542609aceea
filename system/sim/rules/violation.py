"""A violated invariant of a simulated group."""

from __future__ import annotations

import msgspec


class Violation(msgspec.Struct, frozen=True):
    """The violated invariant, the finding, the virtual time in milliseconds and the node."""

    invariant: str
    finding: str
    at_ms: float
    node: str

    def __str__(self) -> str:
        where = f" at {self.node}" if self.node else ""
        return f"{self.invariant}: {self.finding} ({self.at_ms:.3f} ms{where})"
