"""All anomalies of a log with offsets, in one pass over each log.

Source: jepsen.tests.kafka; CHECKERS.md section 4. Each row of its table is also a checker of its
own; checkers.cycles.cycles finds cycles.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from shaketable.checkers.anomalies.aborted_read import aborted_reads
from shaketable.checkers.anomalies.duplicate import duplicates
from shaketable.checkers.anomalies.inconsistent_offsets import inconsistent_offsets
from shaketable.checkers.anomalies.log_rules import check_log, conclude_log
from shaketable.checkers.anomalies.lost_write import lost_writes
from shaketable.checkers.anomalies.nonmonotonic_poll import nonmonotonic_polls
from shaketable.checkers.anomalies.nonmonotonic_send import nonmonotonic_sends
from shaketable.checkers.anomalies.poll_skip import poll_skips
from shaketable.checkers.anomalies.unseen import unseen
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Verdict

NAME = "log-anomalies"
RULES = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    unseen,
    aborted_reads,
    poll_skips,
    nonmonotonic_polls,
    nonmonotonic_sends,
)


class LogAnomalies:
    """Everything that Jepsen calls an anomaly of a log with offsets, but for cycles."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Apply every rule to one log."""
        return check_log(RULES, tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "none of the anomalies of a log with offsets"
        what = ("sends_acknowledged", "messages_read")
        return conclude_log(NAME, findings, context, clean=clean, what=what)


PLUGIN = LogAnomalies()
