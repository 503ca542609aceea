"""Checks that reads of a counter lie between what must and what may have been added.

Source: jepsen.checker "counter"; beyond it, decrements.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import Answers, Ints
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "counter"
OUT_OF_BOUNDS: Final = "out-of-bounds"
LOST_ADD: Final = "lost-add"
"""Out of bounds too, but possible if acknowledged adds were lost."""


class Counter:
    """Every read of a counter is possible for some order of concurrent adds.

    Adds that had returned before the read's call are included. Adds that were called before the
    read returned may be, and indeterminate ones at any later time: of these, increments raise the
    upper bound, decrements lower the lower one.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare each read of one counter, which starts at 0, with its bounds."""
        rows = Answers(tables["operations"], ("add", "read"))
        is_add = rows.is_("add")
        rows.require_inputs(is_add)
        adds = np.flatnonzero(is_add & ~rows.is_failed)
        reads = np.flatnonzero(rows.is_("read") & rows.is_ok & rows.has_output)
        amount, call, end = rows.input[adds], rows.call[adds], rows.end[adds]
        up, down = np.maximum(amount, 0), np.minimum(amount, 0)
        # Intervals are closed: what returns when the read is called is concurrent with it.
        calls, returns = rows.call[reads], rows.end[reads]
        surely = _sum_before(end, amount, calls, "left")
        least, most = (_sum_before(call, part, returns, "right") for part in (down, up))
        low = surely + least - _sum_before(end, down, calls, "left")
        high = surely + most - _sum_before(end, up, calls, "left")
        value = rows.output[reads]
        outside = (value < low) | (value > high)
        # Within the bounds of a counter that may have lost any of its acknowledged adds.
        may_be_loss = (value >= least) & (value <= most)
        findings = Findings()

        def describe(kind: str, n: int) -> Finding:
            row = int(reads[n])
            possible = f"{low[n]} to {high[n]}" if low[n] < high[n] else f"{low[n]}"
            message = (
                f"{rows.about}the read by process {rows.process[row]} (op {rows.op[row]}) returned"
                f" {value[n]}, but only {possible} is possible."
            )
            bounds = {"value": value[n], "low": low[n], "high": high[n]}
            more = details(context, int(rows.call[row]), **bounds)
            operations = (int(rows.op[row]),)
            return Finding(kind, message, rows.key or None, None, operations, more)

        for kind, are in ((LOST_ADD, may_be_loss), (OUT_OF_BOUNDS, ~may_be_loss)):
            findings.add(kind, np.flatnonzero(outside & are).tolist(), partial(describe, kind))
        return findings.table({"counters": 1, "adds": len(adds), "reads": len(reads)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the counters' findings."""
        gathered = gather(findings)
        clean = f"all {gathered.sums().get('reads', 0)} reads are possible"
        return conclude(NAME, gathered, context, clean=clean, what=("reads",))


PLUGIN = Counter()


def _sum_before(times: Ints, amounts: Ints, moments: Ints, side: str) -> Ints:
    """Return the sums of the amounts whose time is before each moment; "right": or equal to it."""
    order = np.argsort(times, kind="stable")
    sums = np.concatenate(([0], np.cumsum(amounts[order])))
    where = np.searchsorted(times[order], moments, side="right" if side == "right" else "left")
    result: Ints = sums[where]
    return result
