"""Finds values at two offsets of a log.

A delayed message is put into its queue by the broker, not by its producer. A second delivery is an
anomaly of its own: a broker that loses its progress after a failover delivers again.

Source: jepsen.tests.kafka "duplicate".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.inconsistent_offsets import Sightings
from shaketable.checkers.anomalies.log_rules import check_log, conclude_log, details, finding
from shaketable.checkers.anomalies.observations import Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "duplicate"
DELIVERED_TWICE = "duplicate-delivery"


class Duplicate:
    """One value, sent once, was seen at two offsets of the same log."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare the offsets that acknowledgements and answers name for each value."""
        return check_log((duplicates,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no value was seen at two offsets"
        what = ("sends_acknowledged", "messages_read")
        return conclude_log(NAME, findings, context, clean=clean, what=what)


PLUGIN = Duplicate()


def duplicates(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each value that was seen at more than one offset."""
    seen = Sightings(log)
    known = seen.row[~np.isin(seen.value, log.repeated)]
    order = known[np.lexsort((known, seen.offset[known], seen.value[known]))]
    offset, value = seen.offset[order], seen.value[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (offset[1:] != offset[:-1]) | (value[1:] != value[:-1])
    firsts = order[is_new]
    values, starts, counts = np.unique(seen.value[firsts], return_index=True, return_counts=True)
    is_twice = counts > 1
    is_delayed = np.isin(values, log.sends.value[log.sends.is_delayed])

    def describe(n: int) -> Finding:
        kind = DELIVERED_TWICE if is_delayed[n] else NAME
        rows = firsts[starts[n] : starts[n] + counts[n]]
        sources = [f"{seen.offset[row]} by {seen.source_name(int(row))}" for row in rows]
        message = f"{values[n]} was seen at {len(rows)} offsets: {' and '.join(sources)}"
        last = max(rows.tolist(), key=lambda row: int(seen.call[row]))
        places = seen.offset[rows].tolist()
        more = details(context, int(seen.call[last]), value=values[n], offsets=places)
        return finding(kind, log, places[0], seen.op[rows].tolist(), message, more)

    for kind, mask in ((NAME, ~is_delayed), (DELIVERED_TWICE, is_delayed)):
        findings.add(kind, np.flatnonzero(is_twice & mask).tolist(), describe)
    return {}
