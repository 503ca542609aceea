"""Finds offsets of a log that were seen with two values.

Source: jepsen.tests.kafka "inconsistent-offsets".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude_log,
    details,
    finding,
    read_name,
)
from shaketable.checkers.anomalies.observations import Ints, Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "inconsistent-offsets"


class InconsistentOffsets:
    """One offset was acknowledged for, or read with, two different values."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare the values that acknowledgements and answers name for each offset."""
        rules = (inconsistent_offsets,)
        return check_log(rules, tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "every offset was only ever seen with one value"
        what = ("sends_acknowledged", "messages_read")
        return conclude_log(NAME, findings, context, clean=clean, what=what)


PLUGIN = InconsistentOffsets()


def inconsistent_offsets(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each offset that was seen with more than one value."""
    seen = Sightings(log)
    order = np.lexsort((seen.row, seen.value, seen.offset))
    offset, value = seen.offset[order], seen.value[order]
    is_new = np.ones(len(order), dtype=np.bool_)
    is_new[1:] = (offset[1:] != offset[:-1]) | (value[1:] != value[:-1])
    firsts = order[is_new]
    places, starts, counts = np.unique(seen.offset[firsts], return_index=True, return_counts=True)
    twice = np.flatnonzero(counts > 1)

    def describe(n: int) -> Finding:
        rows = firsts[starts[n] : starts[n] + counts[n]]
        sources = [f"{seen.value[row]} by {seen.source_name(int(row))}" for row in rows]
        message = f"offset {places[n]} was seen with {len(rows)} values: {' and '.join(sources)}"
        last = max(rows.tolist(), key=lambda row: int(seen.call[row]))
        more = details(context, int(seen.call[last]), values=seen.value[rows].tolist())
        return finding(NAME, log, int(places[n]), seen.op[rows].tolist(), message, more)

    findings.add(NAME, twice.tolist(), describe)
    return {}


class Sightings:
    """Every (offset, value) that an acknowledgement or an answer named, acknowledgements first."""

    def __init__(self, log: Log) -> None:
        acked = np.flatnonzero(log.sends.is_ok & (log.sends.offset >= 0))
        self._log = log
        self._acked: Ints = acked
        self.op = np.concatenate((log.sends.op[acked], log.reads.op))
        self.offset = np.concatenate((log.sends.offset[acked], log.reads.offset))
        self.value = np.concatenate((log.sends.value[acked], log.reads.value))
        self.call = np.concatenate((log.sends.call[acked], log.reads.call))
        self.row = np.arange(len(self.op))

    def source_name(self, row: int) -> str:
        """Return the name of the operation that reported it."""
        if row < len(self._acked):
            sends, send = self._log.sends, int(self._acked[row])
            return f"the {self._log.verb} by process {sends.process[send]} (op {sends.op[send]})"
        return read_name(self._log.reads, row - len(self._acked))
