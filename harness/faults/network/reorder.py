"""Let packets between nodes overtake each other.

Source: `tc netem reorder`.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, judge_count

SHARES = (0.1, 0.3, 0.5)


def _draw(rng: Random) -> Json:
    return {"reorder": rng.choice(SHARES)}


def _tell(shape: LinkShape) -> str:
    return f"reorder {shape.reorder:.0%} of the packets"


PLUGIN = LinkFault(
    name="reorder",
    summary="Let packets between nodes overtake each other.",
    needs=frozenset({Word.REORDER}),
    draw=_draw,
    tell=_tell,
    judge=judge_count("reordered", "packets overtaken"),
)
