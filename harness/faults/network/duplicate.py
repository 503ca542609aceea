"""Let packets between nodes come twice.

Source: `tc netem duplicate`.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, judge_count

SHARES = (0.1, 0.3, 0.6)


def _draw(rng: Random) -> Json:
    return {"duplicate": rng.choice(SHARES)}


def _tell(shape: LinkShape) -> str:
    return f"duplicate {shape.duplicate:.0%} of the packets"


PLUGIN = LinkFault(
    name="duplicate",
    summary="Let some of the packets between nodes come twice.",
    needs=frozenset({Word.DUPLICATE}),
    draw=_draw,
    tell=_tell,
    judge=judge_count("duplicated", "packets doubled"),
)
