"""Finds reads of values whose send certainly failed (G1a), or that no client sent.

Source: Adya 1999, "aborted read"; jepsen.tests.kafka "G1a".
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
    send_name,
)
from shaketable.checkers.anomalies.observations import NOWHERE, Log, senders
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "aborted-read"
G1A = "G1a"
PHANTOM = "phantom-read"


class AbortedRead:
    """A value was read whose send had certainly failed, or which nobody ever sent."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look up the send of each value that was read."""
        return check_log((aborted_reads,), tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "every value read came from a send that may have happened"
        return conclude_log(NAME, findings, context, clean=clean, what=("messages_read",))


PLUGIN = AbortedRead()


def aborted_reads(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each read of a value that no send can have put."""
    sends, reads = log.sends, log.reads
    writer = senders(log, np.flatnonzero(~sends.is_failed), reads.value)
    failed = senders(log, np.flatnonzero(sends.is_failed), reads.value)
    aborted = np.flatnonzero((writer == NOWHERE) & (failed != NOWHERE))
    phantom = np.flatnonzero((writer == NOWHERE) & (failed == NOWHERE))

    def describe(read: int) -> Finding:
        is_aborted = failed[read] != NOWHERE
        what = (
            f"{read_name(reads, read)} returned {reads.value[read]} at offset {reads.offset[read]}"
        )
        operations = [reads.op[read]]
        if is_aborted:
            message = f"{what}, but {send_name(log, int(failed[read]))} certainly failed"
            operations.append(sends.op[failed[read]])
        else:
            message = f"{what}, which nobody ever sent"
        more = details(context, int(reads.call[read]), value=reads.value[read])
        kind = G1A if is_aborted else PHANTOM
        return finding(kind, log, int(reads.offset[read]), operations, message, more)

    findings.add(G1A, aborted.tolist(), describe)
    findings.add(PHANTOM, phantom.tolist(), describe)
    return {}
