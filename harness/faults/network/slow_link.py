"""Let links between nodes take only so many bytes a second; what does not fit waits.

Source: `tc tbf rate`; toxiproxy's bandwidth.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import LinkShape, Word
from shaketable.harness.faults.shaped_links import LinkFault, crossed

RATES_BYTES_S = (4_000.0, 16_000.0, 64_000.0)
"""From a modem's rate to one at which heartbeats get through and a busy log does not."""


def _judge(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    waited, dropped = did.get("delayed", 0), did.get("dropped", 0)
    lost = f", {dropped} found no room" if dropped else ""
    what = f"{waited} waited {did.get('delay_ms_mean', 0.0):.0f} ms (mean){lost}, {crossed(did)}"
    return waited > 0 or dropped > 0, what


def _draw(rng: Random) -> Json:
    return {"rate_bytes_s": rng.choice(RATES_BYTES_S)}


def _tell(shape: LinkShape) -> str:
    return f"{shape.rate_bytes_s / 1e3:g} kB/s"


PLUGIN = LinkFault(
    name="slow-link",
    summary="Let links between nodes take only some kilobytes a second.",
    needs=frozenset({Word.RATE}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
)
