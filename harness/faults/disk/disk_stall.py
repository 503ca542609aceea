"""Let a node's disk stand still: calls do not return before the fault is over.

Heartbeats go on, so that only the node itself can notice: a leader that cannot write must not
go on leading.

Source: `fsfreeze`; EBS volumes that hang; etcd's robustness tests (sleep in a failpoint).
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import DiskHarm, Word
from shaketable.harness.faults.harmed_disks import DiskFault, judge_waits


def _draw(rng: Random, turn: int) -> Json:
    return {"op": rng.choice(("sync", "write", "any")), "stall": True}


def _tell(harm: DiskHarm) -> str:
    return f"stalled disk ({harm.op}) of"


PLUGIN = DiskFault(
    name="disk-stall",
    summary="Let disk calls of a node stand still until the fault is over.",
    needs=frozenset({Word.DISK_SLOW}),
    draw=_draw,
    tell=_tell,
    judge=judge_waits,
)
