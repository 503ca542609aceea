"""Finds messages that were stored, passed by readers, and never read.

Source: jepsen.tests.kafka "lost-write".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.consumer_steps import blanks_from, running_greatest, spans_of
from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude_log,
    details,
    finding,
    read_name,
    send_name,
)
from shaketable.checkers.anomalies.observations import NEVER, NOWHERE, Ints, Log
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME = "lost-write"


class LostWrite:
    """A value known to stand in the log was passed by those who read, and never read."""

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look for each known send that readers passed among the values read."""
        return check_log((lost_writes,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no acknowledged send that reading had reached was missed"
        return conclude_log(NAME, findings, context, clean=clean, what=("sends_acknowledged",))


PLUGIN = LostWrite()


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the sends that are known to have happened but were never read.

    `lost` and `unseen` are rows of the sends; `passed` and `blank` are for each the row of the
    reads, or of the blanks, that shows it. `open` counts those that no client looked for.
    """

    lost: Ints
    passed: Ints
    unseen: Ints
    blank: Ints
    open: int


def lost_writes(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each send that readers passed."""
    fates = fates_of(log)

    def describe(n: int) -> Finding:
        row, read = int(fates.lost[n]), int(fates.passed[n])
        place = int(log.reads.offset[read])
        is_same_offset = place == log.sends.offset[row]
        what = f"found {log.reads.value[read]} there" if is_same_offset else f"read offset {place}"
        message = (
            f"{send_name(log, row)} was never read, although {read_name(log.reads, read)} {what}"
        )
        sends = log.sends
        more = details(context, int(sends.end[row]), value=sends.value[row])
        operations = (sends.op[row], log.reads.op[read])
        return finding(NAME, log, int(sends.offset[row]), operations, message, more)

    findings.add(NAME, range(len(fates.lost)), describe)
    return {}


def fates_of(log: Log) -> Fates:
    """Classify the sends that were never read by the evidence that they should have been.

    A consumer polls from the log's first offset, or from an assigned one: all messages between two
    deliveries should have been delivered too. A consumer at an unknown offset has passed nothing.
    A read is of one offset: it passes a value only if it found another one there. An answer that
    the log ended at or before a send's offset, requested after the send was acknowledged, leaves
    it unseen.
    """
    sends, reads = log.sends, log.reads
    # Indeterminate, but seen: another message of the same transaction was read.
    seen_values = np.isin(sends.value, reads.value)
    is_seen = np.isin(sends.op, sends.op[seen_values & ~sends.is_failed])
    is_known = (sends.offset >= 0) & (sends.is_ok | (~sends.is_failed & is_seen))
    is_known &= ~np.isin(sends.value, log.repeated)
    unread = np.flatnonzero(is_known & ~seen_values)

    passing = spans_of(log).passing_reads(sends.offset[unread])
    order = np.argsort(reads.offset, kind="stable")
    at = np.searchsorted(reads.offset[order], sends.offset[unread], side="left")
    shows = np.append(order, NOWHERE)[at]
    is_replaced = (shows != NOWHERE) & (
        np.append(reads.offset, NOWHERE)[shows] == sends.offset[unread]
    )
    passed = np.where(is_replaced, shows, passing)
    is_lost = passed != NOWHERE
    left = unread[~is_lost]
    blank = blank_after(log, left)
    is_unseen = blank != NOWHERE
    return Fates(
        lost=unread[is_lost],
        passed=passed[is_lost],
        unseen=left[is_unseen],
        blank=blank[is_unseen],
        open=int((~is_unseen).sum()),
    )


def blank_after(log: Log, rows: Ints) -> Ints:
    """Return for each send the last blank, called after it returned, that did not find it."""
    sends, blanks, floor = log.sends, log.blanks, blanks_from(log)
    order = np.lexsort((blanks.call, floor))
    if not len(order):
        return np.full(len(rows), NOWHERE, dtype=np.int64)
    latest = order[running_greatest(blanks.call[order])]
    up_to = np.searchsorted(floor[order], sends.offset[rows], side="right") - 1
    witness = latest[np.maximum(up_to, 0)]
    end = sends.end[rows]
    is_after = (up_to >= 0) & (end != NEVER) & (blanks.call[witness] > end)
    return np.where(is_after, witness, NOWHERE)
