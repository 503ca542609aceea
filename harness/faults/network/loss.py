"""Lose packets between nodes: what TCP sends again is late, and more of it is later.

Source: `tc netem loss`; nft's numgen; HARNESSES.md section 5.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, judge_count

SHARES = (0.05, 0.15, 0.4)


def _draw(rng: Random) -> Json:
    return {"loss": rng.choice(SHARES)}


def _tell(shape: LinkShape) -> str:
    return f"lose {shape.loss:.0%} of the packets"


PLUGIN = LinkFault(
    name="loss",
    summary="Lose some of the packets between nodes.",
    needs=frozenset({Word.LOSS}),
    draw=_draw,
    tell=_tell,
    judge=judge_count("dropped", "packets lost"),
)
