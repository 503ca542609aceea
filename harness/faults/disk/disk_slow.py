"""Let a node's disk be slow: each fsync, or each call, takes some time longer.

Source: TigerBeetle's slow disks; toxiproxy's latency, for a disk.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import DiskHarm, Word
from shaketable.harness.faults.harmed_disks import DiskFault, judge_waits

DELAYS_MS = (5.0, 20.0, 60.0, 150.0, 400.0)
"""From a slow drive to one that is about to die."""


def _draw(rng: Random, turn: int) -> Json:
    return {"op": rng.choice(("sync", "sync", "write")), "delay_ms": rng.choice(DELAYS_MS)}


def _tell(harm: DiskHarm) -> str:
    return f"slow disk ({harm.delay_ms:g} ms a {harm.op}) of"


PLUGIN = DiskFault(
    name="disk-slow",
    summary="Let each fsync or write of a node take longer, by 5 to 400 ms.",
    needs=frozenset({Word.DISK_SLOW}),
    draw=_draw,
    tell=_tell,
    judge=judge_waits,
    takes_out=False,
)
