"""Reset all connections between nodes now and then: what was under way is lost with them.

Source: toxiproxy's reset_peer; HARNESSES.md section 5.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault

EVERY_MS = (150.0, 400.0, 1000.0)


def _draw(rng: Random) -> Json:
    return {"reset_every_ms": rng.choice(EVERY_MS)}


def _judge(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    resets = did.get("resets", 0)
    return resets > 0, f"{resets} connections reset"


def _tell(shape: LinkShape) -> str:
    return f"resets every {shape.reset_every_ms:g} ms"


PLUGIN = LinkFault(
    name="reset",
    summary="Reset the connections between nodes, again and again.",
    needs=frozenset({Word.RESET}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
    directions=("both",),
)
