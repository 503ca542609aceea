"""How a run is told that a rule of the nodes was broken: by the world, or by a node that ended.

Words in a log are never read for that: a program may print anything. What counts is the exit
status, of targets that say what theirs mean (`contracts.abilities.ExplainsEnds`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BROKE_RULE: Final = "broke-rule"
"""A rule of its own is broken (an invariant of its protocol): it stopped rather than go on."""
FOUND_DAMAGE: Final = "found-damage"
"""It found what it had stored damaged, and would not start on it."""
ENDED_UNHARMED: Final = "ended-unharmed"
"""It ended by itself, and its world knows that nothing had been done to it that ends a node."""


@dataclass(frozen=True, slots=True)
class Broken:
    """An invariant that a world saw broken while a campaign ran in it.

    Attributes:
        invariant: its name.
        finding: what was seen, when it was first broken.
        node: at which node; "" where it is of the whole group.
        at_ns: when, since the run's start.
        promise: what it promises, in a sentence; `matters`: why that matters, or "".
        operations: of the history, that show it.
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
