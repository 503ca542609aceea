"""Let a node's disk fail: EIO from the N-th write, fsync or read on.

What could not be written or synced may be lost, so a node has to stop; it starts again when the
disk is well. Reads are those of a start: the node is killed, and starts under the fault.

Source: DESIGN.md decision 2 (an error of fsync is fatal); fsyncgate; charybdefs.
"""

from __future__ import annotations

from random import Random

from shaketable.harness.contracts.plugins import Json
from shaketable.harness.contracts.words import DiskHarm, Word
from shaketable.harness.faults.harmed_disks import DiskFault, judge_errors

CALLS = ("sync", "write", "read")
NTH_MAX = 20


def _draw(rng: Random, turn: int) -> Json:
    op = CALLS[turn % len(CALLS)]
    nth = rng.randint(1, NTH_MAX) if op != "read" else 1
    return {"op": op, "error": "EIO", "nth": nth}


def _tell(harm: DiskHarm) -> str:
    since = f" from call {harm.nth} on" if harm.nth > 1 else ""
    return f"EIO ({harm.op}{since}) on"


PLUGIN = DiskFault(
    name="disk-errors",
    summary="Let disk calls of a node fail (EIO): fsync, write, or read at a start.",
    needs=frozenset({Word.KILL, Word.DISK_ERRORS}),
    draw=_draw,
    tell=_tell,
    judge=judge_errors,
    restarts=lambda harm: harm.op == "read",
)
