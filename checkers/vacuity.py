"""Checks that the faults of a run took effect while clients worked.

Source: DESIGN.md decision 11.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext, FaultWindow
from shaketable.harness.contracts.verdict import Outcome, Verdict

NAME = "vacuity"
OPERATIONS_INSIDE_MIN = 50
"""Operations that must have succeeded while a fault that took effect was in force.

Also those after it if it took down all nodes, or the group has only one: such a group serves
nothing meanwhile, and the fault is tested by what the nodes serve when they are back.
"""
TAKES_DOWN: Final = frozenset({"damage", "kill", "pause", "power", "rollback", "wipe"})
"""Faults that leave no victim serving."""


class Vacuity:
    """Did the run test what it was asked to test? Never INVALID."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Count one key's operations, and those that succeeded under a fault that took effect."""
        is_ok = pc.equal(tables["operations"]["outcome"], "ok").to_numpy()
        calls = tables["operations"]["call_ns"].to_numpy()
        inside = np.zeros(len(calls), dtype=np.bool_)
        for window in context.windows:
            if window.took_effect:
                is_after = _counts_after(window, context)
                inside |= (calls >= window.start_ns) & (is_after | (calls <= window.stop_ns))
        done = int((inside & is_ok).sum())
        return Findings().table({"operations": len(calls), "inside": done})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Add up and decide."""
        counts = gather(findings).sums()
        return vacuous(context, int(counts.get("operations", 0)), int(counts.get("inside", 0)))


PLUGIN = Vacuity()


def _counts_after(window: FaultWindow, context: CheckContext) -> bool:
    """Return whether operations after a fault test it, because none can succeed under it."""
    took_down_all = window.name in TAKES_DOWN and set(window.victims) >= set(context.nodes)
    return took_down_all or len(context.nodes) == 1


def vacuous(context: CheckContext, operations: int, inside: int) -> Verdict:
    """Decide whether the faults tested the group enough for its verdicts to mean anything.

    Args:
        context: the faults that were configured and those that were injected.
        operations: operations of the run.
        inside: those invoked while a fault that took effect was in force, or after one that took
            down all nodes, and ok: an operation without an answer tests nothing.

    Returns:
        UNKNOWN if faults were configured and none took effect, if a kind was injected and never
        took effect (`data["without_effect"]`), or if `inside` is less than OPERATIONS_INSIDE_MIN;
        else VALID. A kind that was never injected is named in `data["never_done"]` and in the
        summary.
    """
    effective = [window for window in context.windows if window.took_effect]
    kinds, done = {window.name for window in effective}, {window.name for window in context.windows}
    never = [name for name in context.faults_asked if name not in kinds]
    without = [name for name in never if name in done]
    missing = [name for name in never if name not in done]
    counts: dict[str, int | float] = {
        "operations": operations,
        "faults": len(context.windows),
        "faults_that_took_effect": len(effective),
        "operations_inside": inside,
    }
    asked = ", ".join(context.faults_asked)
    after = " or after" if any(_counts_after(window, context) for window in effective) else ""
    if not context.faults_asked:
        return Verdict(NAME, Outcome.VALID, "no faults were requested", counts=counts)
    data = {
        key: names for key, names in (("without_effect", without), ("never_done", missing)) if names
    }
    if not effective:
        summary = f"faults were requested ({asked}), none took effect"
        return Verdict(NAME, Outcome.UNKNOWN, summary, counts=counts, data=data)
    if without:
        summary = f"{', '.join(without)} was injected and never took effect"
        return Verdict(NAME, Outcome.UNKNOWN, summary, counts=counts, data=data)
    if inside < OPERATIONS_INSIDE_MIN:
        summary = (
            f"only {inside} operations succeeded while a fault was in force{after},"
            f" at least {OPERATIONS_INSIDE_MIN} must be"
        )
        return Verdict(NAME, Outcome.UNKNOWN, summary, counts=counts, data=data)
    summary = (
        f"{len(effective)} of {len(context.windows)} faults took effect, {inside} operations"
        f" succeeded inside them{after}"
    )
    if missing:
        summary += f"; warning: requested, but never injected: {', '.join(missing)}"
    return Verdict(NAME, Outcome.VALID, summary, counts=counts, data=data)
