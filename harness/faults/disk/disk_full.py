"""Let a node's disk be full: every write that needs room fails with ENOSPC.

Source: FoundationDB's simulated drives that fill up; DESIGN.md decision 2.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import DiskHarm, Word
from shaketable.harness.faults.harmed_disks import DiskFault, judge_errors


def _draw(rng: Random, turn: int) -> Json:
    return {"op": "write", "error": "ENOSPC"}


def _tell(harm: DiskHarm) -> str:
    return "full disk of"


PLUGIN = DiskFault(
    name="disk-full",
    summary="Let a node's disk be full (ENOSPC): leader, one or a minority; room comes back.",
    needs=frozenset({Word.DISK_FULL}),
    draw=_draw,
    tell=_tell,
    judge=judge_errors,
)
