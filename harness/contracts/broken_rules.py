"""How a run learns that a node or its world broke an invariant.

Log output is not searched for this, since a program may print anything. Only the exit status
counts, for targets that declare what theirs mean (`contracts.abilities.ExplainsEnds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BROKE_RULE: Final = "broke-rule"
"""The node found an invariant of its protocol broken and stopped rather than go on."""
FOUND_DAMAGE: Final = "found-damage"
"""The node found its stored data damaged and refused to start."""
ENDED_UNHARMED: Final = "ended-unharmed"
"""The node exited by itself, and its world knows of no fault that would make a node exit."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that a world saw broken during a campaign.

    Attributes:
        invariant: its name.
        finding: what was seen when it was first broken.
        node: the node; "" for the whole group.
        at_ns: when, in ns since the start of the run.
        promise: what the invariant guarantees, in a sentence.
        matters: why that matters; may be empty.
        operations: ids of the history's operations that show it.
    """

    invariant: str
    finding: str
    node: str
    at_ns: int
    promise: str = ""
    matters: str = ""
    operations: tuple[int, ...] = ()

    def __str__(self) -> str:
        at = f" at {self.node}" if self.node else ""
        return f"invariant {self.invariant} broken{at}: {self.finding}"
