"""Change a bit of packets between nodes: checksums find it, and they count as lost.

A bit alone never gets past TCP's checksum; what is shown is that the group lives with the loss, and
that nobody turned checksums off.

Source: `tc netem corrupt`; HARNESSES.md section 5.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, judge_count

SHARES = (0.02, 0.1, 0.3)


def _draw(rng: Random) -> Json:
    return {"corrupt": rng.choice(SHARES)}


def _tell(shape: LinkShape) -> str:
    return f"corrupt {shape.corrupt:.0%} of the packets"


PLUGIN = LinkFault(
    name="corrupt",
    summary="Change a bit in some of the packets between nodes.",
    needs=frozenset({Word.CORRUPT}),
    draw=_draw,
    tell=_tell,
    judge=judge_count("corrupted", "packets with a bit changed"),
)
