"""Let what flows between nodes be late, by a fixed time and a jitter; nothing overtakes.

Source: `tc netem delay`; toxiproxy's latency; jepsen.nemesis.combined (`:slow`).
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, crossed

DELAYS_MS = (30.0, 80.0, 150.0, 300.0)
"""From a link to the next town to one around the world, with more than an election timeout."""
JITTER_SHARES = (0.0, 0.2, 0.5)
FELT_SHARE_MIN = 0.5
"""A mean delay below this share of what was asked is not what was asked."""


def _draw(rng: Random) -> Json:
    delay_ms = rng.choice(DELAYS_MS)
    return {"delay_ms": delay_ms, "jitter_ms": round(delay_ms * rng.choice(JITTER_SHARES), 1)}


def _tell(shape: LinkShape) -> str:
    jitter = f" ± {shape.jitter_ms:g}" if shape.jitter_ms else ""
    return f"delay {shape.delay_ms:g}{jitter} ms"


def _judge(shape: LinkShape, did: Json) -> tuple[bool, str]:
    mean_ms = did.get("delay_ms_mean", 0.0)
    bit = did.get("delayed", 0) > 0 and mean_ms >= shape.delay_ms * FELT_SHARE_MIN
    return bit, f"{did.get('delayed', 0)} late by {mean_ms:.0f} ms (mean), {crossed(did)}"


PLUGIN = LinkFault(
    name="delay",
    summary="Let what flows between nodes be late, with or without jitter.",
    needs=frozenset({Word.DELAY}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
)
