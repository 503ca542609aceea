"""Finds acknowledged messages that later reads of the log's end do not find.

Source: jepsen.tests.kafka "unseen".
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude_log,
    details,
    finding,
    send_name,
)
from shaketable.checkers.anomalies.lost_write import fates_of
from shaketable.checkers.anomalies.observations import NOWHERE, Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "unseen"


class Unseen:
    """A value was acknowledged, and the log was later said to end before it."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Find acknowledged values that were never read although a read reached the log's end."""
        return check_log((unseen,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings; values that no client looked for are counted as not_read."""
        clean = "nobody found the log's end before an acknowledged send"
        return conclude_log(NAME, findings, context, clean=clean, what=("sends_acknowledged",))


PLUGIN = Unseen()


def unseen(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each acknowledged value that a later answer did not find."""
    fates = fates_of(log)
    sends, blanks = log.sends, log.blanks

    def describe(n: int) -> Finding:
        row, blank = int(fates.unseen[n]), int(fates.blank[n])
        blank_offset = blanks.offset[blank]
        what = "the poll" if blank_offset == NOWHERE else f"the read at offset {blank_offset}"
        message = (
            f"{send_name(log, row)} was never read, although {what} by process"
            f" {blanks.process[blank]} (op {blanks.op[blank]}), called after it was acknowledged,"
            " found nothing"
        )
        more = details(context, int(sends.end[row]), value=sends.value[row])
        operations = (sends.op[row], blanks.op[blank])
        return finding(NAME, log, int(sends.offset[row]), operations, message, more)

    findings.add(NAME, range(len(fates.unseen)), describe)
    return {"not_read": fates.open}
