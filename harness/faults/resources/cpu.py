"""Take processor time from nodes: each runs for its share of the time, in slices of time.

The process is stopped for most of each slice (20 to 400 ms) and goes on for the rest, as on a
machine that is overcommitted, or throttled by a quota. The rest of this machine is left alone.

Source: cpulimit; CFS bandwidth control, which throttles in slices of 100 ms; Chaos Mesh.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.resources import Resources
from shaketable.harness.contracts.words import Word
from shaketable.harness.faults.taken_resources import ResourceFault

SHARES = (0.05, 0.1, 0.2, 0.4)
SLICES_MS = (20.0, 50.0, 100.0, 400.0)
"""The longest are longer than an election timeout of the built-in target."""
HELD_SHARE_MIN = 0.5
"""It bit if the process was stopped for this share of the time that was to be taken."""


def _draw(rng: Random, turn: int) -> Json:
    return {"cpu_share": rng.choice(SHARES), "slice_ms": rng.choice(SLICES_MS)}


def _tell(resources: Resources) -> str:
    return f"leave {resources.cpu_share:.0%} of the processor to"


def _judge(resources: Resources, did: Json) -> str | None:
    wall_ms, stopped_ms = did.get("wall_ms", 0.0), did.get("stopped_ms", 0.0)
    to_take_ms = wall_ms * (1 - resources.cpu_share)
    if not did.get("stops") or stopped_ms < HELD_SHARE_MIN * to_take_ms:
        return None
    ran_ms = did["cpu_ms"]
    ran = "" if ran_ms is None else f", ran {ran_ms:.0f} ms on a processor"
    before = f" ({did['cpu_share_before']:.0%} of one before)" if ran else ""
    return (
        f"was stopped for {stopped_ms:.0f} of {wall_ms:.0f} ms, {did['stops']} times{ran}{before}"
    )


PLUGIN = ResourceFault(
    name="cpu",
    summary="Let nodes run for 5 to 40 % of the time only, in slices of 20 to 400 ms.",
    needs=frozenset({Word.CPU}),
    draw=_draw,
    tell=_tell,
    judge=_judge,
    measures=("stops", "stopped_ms", "wall_ms", "cpu_ms"),
)
