"""A delayed message is delivered when its delay is over: not before, and not never.

Messages that are delivered more than once, or were never sent, are findings of group-delivery: to
it a `delay` is a send at an unknown offset. This checker is about time, and about loss.

Source: RocketMQ's documentation of delayed messages; ScheduleMessageService, whose levels deliver
in the order in which messages were stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_rules import conclude, details, finding, read_name
from shaketable.checkers.anomalies.observations import (
    NEVER,
    NOWHERE,
    Answers,
    Ints,
    Log,
    blanks_from,
    known_offsets,
    load_log,
    running_greatest,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import quiet_since, under_clock_faults
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "delayed-messages"
EARLY, LATE, LOST = "early-delivery", "late-delivery", "lost-message"
EARLY_MAX_NS: Final = 100_000_000
"""A delivery may be so early: a broker's clock counts whole milliseconds, and is corrected."""
OVERDUE_MAX_NS: Final = 10_000_000_000
"""A healthy group delivers this soon after the time, however much is due at once."""


class DelayedMessages:
    """Delayed messages are delivered on time: none early, none lost, none overdue.

    Judges each queue by itself. Early: a poll returned the message before the delay, counted from
    the call of the send, was over, and no clock fault was in force (a broker uses its own clock).
    Lost: it had not been delivered when a message with the same delay had been that was sent after
    it was acknowledged. Overdue: it was not available `OVERDUE_MAX_NS` after its time, and no fault
    was in force.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue's delayed messages."""
        operations = tables["operations"]
        log, delays = load_log(operations), _Delays(operations)
        findings = Findings()
        counts = {"queues": 1, "delayed": int(delays.sends.is_ok.sum())}
        counts |= _early(log, delays, findings, context)
        counts |= _missing(log, delays, findings, context)
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = []
        if unseen := counts.get("not_reached"):
            doubts.append(f"no consumer polled long enough for {unseen} delayed messages")
        clean = f"all {counts.get('delayed', 0)} delayed messages came, and none early"
        if spared := counts.get("early_under_clock_faults"):
            clean += f" but {spared} while a fault of clocks was in force"
        return conclude(NAME, gathered, context, clean=clean, what=("delayed",), doubts=doubts)


PLUGIN = DelayedMessages()


class _Delays:
    """The delayed sends of a queue; `due` is when the delay is over, NEVER if that is unknown.

    `order` are the rows sorted by value.
    """

    def __init__(self, operations: pa.Table) -> None:
        self.sends = sends = Answers(operations, ("delay",))
        sends.require_inputs(~sends.is_failed)
        expected = sends.table["expected"]
        if expected.null_count:
            raise ValueError("a delay has no time: it has to be in `expected`, in milliseconds")
        self.delay = np.asarray(expected.to_numpy(), dtype=np.int64) * 1_000_000
        self.due = np.where(sends.end == NEVER, NEVER, sends.end + self.delay)
        rows = np.flatnonzero(~sends.is_failed)
        self.order = rows[np.argsort(sends.input[rows], kind="stable")]

    def rows_of(self, values: Ints) -> Ints:
        """Return the delayed send of each value, NOWHERE for others."""
        known = self.sends.input[self.order]
        if not len(known):
            return np.full(len(values), NOWHERE, dtype=np.int64)
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[at] == values, self.order[at], NOWHERE)

    def label(self, row: int) -> str:
        """Return one as text: "the message 7, delayed by 1 s by process 0 (op 12)"."""
        sends, seconds = self.sends, self.delay[row] / 1e9
        who = f"process {sends.process[row]} (op {sends.op[row]})"
        return f"the message {sends.input[row]}, delayed by {seconds:g} s by {who},"


def _early(log: Log, delays: _Delays, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each message that a poll returned before its time."""
    reads, sends = log.reads, delays.sends
    row = delays.rows_of(reads.value)
    took = reads.end - np.append(sends.call, 0)[row]
    is_early = (row != NOWHERE) & (took < np.append(delays.delay, 0)[row] - EARLY_MAX_NS)
    early = np.flatnonzero(is_early)
    # A message is reported once, however often it was read.
    early = early[np.unique(row[early], return_index=True)[1]]
    is_spared = under_clock_faults(context, sends.call[row[early]], reads.end[early])

    def describe(read: int) -> Finding:
        send = int(row[read])
        message = (
            f"{delays.label(send)} was brought after {took[read] / 1e9:.3f} s by"
            f" {read_name(reads, read)}"
        )
        more = details(context, int(sends.call[send]), value=reads.value[read])
        operations = (sends.op[send], reads.op[read])
        return finding(EARLY, log, int(reads.offset[read]), operations, message, more)

    findings.add(EARLY, early[~is_spared].tolist(), describe)
    return {"early_under_clock_faults": int(is_spared.sum())}


def _missing(
    log: Log, delays: _Delays, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add findings for acknowledged messages that were not delivered: lost or overdue."""
    sends, reads = delays.sends, log.reads
    missing = np.flatnonzero(sends.is_ok & ~np.isin(sends.input, reads.value[reads.is_poll]))
    later = _later_delivery(log, delays, missing)
    is_lost = later != NOWHERE
    left = missing[~is_lost]
    blank = _empty_poll_after_due(log, delays, left, context)
    is_overdue = blank != NOWHERE
    lost_by = dict(zip(missing[is_lost].tolist(), later[is_lost].tolist(), strict=True))
    overdue_by = dict(zip(left[is_overdue].tolist(), blank[is_overdue].tolist(), strict=True))

    def describe_lost(row: int) -> Finding:
        read = lost_by[row]
        other = int(delays.rows_of(reads.value[read : read + 1])[0])
        message = (
            f"{delays.label(row)} was acknowledged and never delivered, although"
            f" {read_name(reads, read)} brought {reads.value[read]}, delayed as long by a send"
            f" (op {sends.op[other]}) that was called later"
        )
        more = details(context, int(sends.end[row]), value=sends.input[row])
        operations = (int(sends.op[row]), int(sends.op[other]), int(reads.op[read]))
        return finding(LOST, log, NOWHERE, operations, message, more)

    def describe_overdue(row: int) -> Finding:
        look = overdue_by[row]
        late_s = (log.blanks.call[look] - delays.due[row]) / 1e9
        message = (
            f"{delays.label(row)} was not there {late_s:.1f} s after its time, when process"
            f" {log.blanks.process[look]} (op {log.blanks.op[look]}) polled;"
            " no consumer received it"
        )
        more = details(context, int(delays.due[row]), value=sends.input[row])
        operations = (int(sends.op[row]), int(log.blanks.op[look]))
        return finding(LATE, log, NOWHERE, operations, message, more)

    findings.add(LOST, list(lost_by), describe_lost)
    findings.add(LATE, list(overdue_by), describe_overdue)
    return {"not_reached": len(left) - len(overdue_by)}


def _later_delivery(log: Log, delays: _Delays, missing: Ints) -> Ints:
    """Return for each missing message a polled message that shows that it is lost, or NOWHERE.

    A message of the same delay that was sent after it is stored after it; and the messages at all
    offsets before that one are known, and the missing one is not among them.
    """
    reads, sends = log.reads, delays.sends
    shown = np.full(len(missing), NOWHERE, dtype=np.int64)
    polls = np.flatnonzero(reads.is_poll)
    row = delays.rows_of(reads.value[polls])
    polls, row = polls[row != NOWHERE], row[row != NOWHERE]
    known = np.unique(np.concatenate((log.sends.offset, reads.offset)))
    known = known[known >= 0]
    is_whole = np.searchsorted(known, reads.offset[polls], side="left") == reads.offset[polls]
    polls, row = polls[is_whole], row[is_whole]
    for delay in np.unique(delays.delay[missing]).tolist():
        mine = np.flatnonzero(delays.delay[row] == delay)
        if not len(mine):
            continue
        last = int(mine[np.argmax(sends.call[row[mine]])])
        is_before = (delays.delay[missing] == delay) & (sends.end[missing] < sends.call[row[last]])
        shown[is_before] = polls[last]
    return shown


def _empty_poll_after_due(log: Log, delays: _Delays, rows: Ints, context: CheckContext) -> Ints:
    """Return for each message a poll that found nothing although it was overdue, or NOWHERE."""
    blanks = log.blanks
    found = np.full(len(rows), NOWHERE, dtype=np.int64)
    if not len(blanks.op) or not len(rows):
        return found
    quiet = quiet_since(context, blanks.call)
    known = known_offsets(log)
    # The poll would have returned the message only if all offsets before its place are known.
    floor = blanks_from(log)
    is_whole = np.searchsorted(known, floor, side="left") == floor
    polls = np.flatnonzero((quiet != NEVER) & (blanks.offset == NOWHERE) & is_whole)
    # A poll is evidence for messages that were due so long before it, with no fault since.
    order = polls[np.argsort(blanks.call[polls], kind="stable")]
    if not len(order):
        return found
    latest_due = blanks.call[order] - OVERDUE_MAX_NS
    latest_due = np.where(quiet[order] <= latest_due, latest_due, -NEVER)
    best = int(order[running_greatest(latest_due)[-1]])
    is_overdue = delays.due[rows] <= latest_due.max()
    found[is_overdue] = best
    return found
