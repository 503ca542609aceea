"""The anomalies of a log with offsets: a rule and a checker for each, and one checker of all.

checkers.anomalies.cycles finds cycles of dependencies.

Source: jepsen.tests.kafka; CHECKERS.md section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from shaketable.checkers.anomalies.observations import (
    NEVER,
    NOWHERE,
    Ints,
    Log,
    blanks_from,
    known_offsets,
    operations_of,
    running_greatest,
    senders,
    spans_of,
    step_origin,
    steps_of,
)
from shaketable.checkers.findings import Findings
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

# Finds offsets of a log that were seen with two values.
#
# Source: jepsen.tests.kafka "inconsistent-offsets".

INCONSISTENT_OFFSETS = "inconsistent-offsets"


class InconsistentOffsets:
    """No offset has two values, in acknowledgements or reads."""

    name = INCONSISTENT_OFFSETS
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
        return conclude_log(INCONSISTENT_OFFSETS, findings, context, clean=clean, what=what)


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
        return finding(
            INCONSISTENT_OFFSETS, log, int(places[n]), seen.op[rows].tolist(), message, more
        )

    findings.add(INCONSISTENT_OFFSETS, twice.tolist(), describe)
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


# Finds values at two offsets of a log.
#
# A delayed message is put into its queue by the broker, not by its producer. A second delivery is
# an anomaly of its own: a broker that loses its progress after a failover delivers again.
#
# Source: jepsen.tests.kafka "duplicate".

DUPLICATE = "duplicate"
DELIVERED_TWICE = "duplicate-delivery"


class Duplicate:
    """No value that was sent once is seen at two offsets of a log."""

    name = DUPLICATE
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare the offsets that acknowledgements and answers name for each value."""
        return check_log((duplicates,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no value was seen at two offsets"
        what = ("sends_acknowledged", "messages_read")
        return conclude_log(DUPLICATE, findings, context, clean=clean, what=what)


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
        kind = DELIVERED_TWICE if is_delayed[n] else DUPLICATE
        rows = firsts[starts[n] : starts[n] + counts[n]]
        sources = [f"{seen.offset[row]} by {seen.source_name(int(row))}" for row in rows]
        message = f"{values[n]} was seen at {len(rows)} offsets: {' and '.join(sources)}"
        last = max(rows.tolist(), key=lambda row: int(seen.call[row]))
        places = seen.offset[rows].tolist()
        more = details(context, int(seen.call[last]), value=values[n], offsets=places)
        return finding(kind, log, places[0], seen.op[rows].tolist(), message, more)

    for kind, mask in ((DUPLICATE, ~is_delayed), (DELIVERED_TWICE, is_delayed)):
        findings.add(kind, np.flatnonzero(is_twice & mask).tolist(), describe)
    return {}


# Finds messages that were stored, passed by readers, and never read.
#
# Source: jepsen.tests.kafka "lost-write".

LOST_WRITE = "lost-write"


class LostWrite:
    """No value known to be in the log is passed over by a reader and never read."""

    name = LOST_WRITE
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look for each known send that readers passed among the values read."""
        return check_log((lost_writes,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no acknowledged send that reading had reached was missed"
        return conclude_log(
            LOST_WRITE, findings, context, clean=clean, what=("sends_acknowledged",)
        )


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
        return finding(LOST_WRITE, log, int(sends.offset[row]), operations, message, more)

    findings.add(LOST_WRITE, range(len(fates.lost)), describe)
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


# Finds acknowledged messages that later reads of the log's end do not find.
#
# Source: jepsen.tests.kafka "unseen".

UNSEEN = "unseen"


class Unseen:
    """No log is reported to end before an acknowledged value that was never read."""

    name = UNSEEN
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Find acknowledged values that were never read although a read reached the log's end."""
        return check_log((unseen,), tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings; values that no client looked for are counted as not_read."""
        clean = "no read ended before an acknowledged send"
        return conclude_log(UNSEEN, findings, context, clean=clean, what=("sends_acknowledged",))


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
        return finding(UNSEEN, log, int(sends.offset[row]), operations, message, more)

    findings.add(UNSEEN, range(len(fates.unseen)), describe)
    return {"not_read": fates.open}


# Finds reads of values whose send certainly failed (G1a), or that no client sent.
#
# Source: Adya 1999, "aborted read"; jepsen.tests.kafka "G1a".

ABORTED_READ = "aborted-read"
G1A = "G1a"
PHANTOM = "phantom-read"


class AbortedRead:
    """No client reads a value whose send definitely failed, or that was never sent."""

    name = ABORTED_READ
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Look up the send of each value that was read."""
        return check_log((aborted_reads,), tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "every value read came from a send that may have happened"
        return conclude_log(ABORTED_READ, findings, context, clean=clean, what=("messages_read",))


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
            message = f"{what}, which no client ever sent"
        more = details(context, int(reads.call[read]), value=reads.value[read])
        kind = G1A if is_aborted else PHANTOM
        return finding(kind, log, int(reads.offset[read]), operations, message, more)

    findings.add(G1A, aborted.tolist(), describe)
    findings.add(PHANTOM, phantom.tolist(), describe)
    return {}


# Finds consumers that get messages with others left out between them.
#
# Source: jepsen.tests.kafka "poll-skip" and "int-poll-skip".

POLL_SKIP = "poll-skip"
POLL_SKIP_INSIDE = "int-poll-skip"


class PollSkip:
    """No consumer's poll skips messages that are in the log."""

    name = POLL_SKIP
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Follow each consumer, and count the known offsets between its messages."""
        return check_log((poll_skips,), tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no consumer skipped a message"
        return conclude_log(POLL_SKIP, findings, context, clean=clean, what=("messages_polled",))


def poll_skips(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each step over offsets that hold a message."""
    steps = steps_of(log)
    known = known_offsets(log)
    low = np.searchsorted(known, steps.left, side="right")
    high = np.searchsorted(known, steps.reached, side="left")
    is_skip = high > low

    def describe(n: int) -> Finding:
        after = int(steps.after[n])
        skipped = known[low[n] : high[n]].tolist()
        what = f"offset {skipped[0]}" if len(skipped) == 1 else (
            f"{len(skipped)} offsets from {skipped[0]} to {skipped[-1]}"
        )  # fmt: skip
        message = (
            f"{read_name(log.reads, after)} was given offset {steps.reached[n]}"
            f" {step_origin(log, steps, n)}: it skipped {what}"
        )
        kind = POLL_SKIP_INSIDE if steps.is_inside[n] else POLL_SKIP
        more = details(context, int(log.reads.call[after]), skipped=len(skipped))
        return finding(kind, log, skipped[0], operations_of(log, steps, n), message, more)

    findings.add(POLL_SKIP, np.flatnonzero(is_skip & ~steps.is_inside).tolist(), describe)
    findings.add(POLL_SKIP_INSIDE, np.flatnonzero(is_skip & steps.is_inside).tolist(), describe)
    return {"messages_polled": int(log.reads.is_poll.sum())}


# Finds consumers that get messages again, or out of order.
#
# Source: jepsen.tests.kafka "nonmonotonic-poll" and "int-nonmonotonic-poll".

NONMONOTONIC_POLL = "nonmonotonic-poll"
NONMONOTONIC_POLL_INSIDE = "int-nonmonotonic-poll"


class NonmonotonicPoll:
    """The offsets that a consumer is given increase, within a poll and from poll to poll."""

    name = NONMONOTONIC_POLL
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Follow each consumer, and compare the offsets of its messages."""
        rules = (nonmonotonic_polls,)
        return check_log(rules, tables["operations"], context, needs_unique=False)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "no consumer was taken back"
        return conclude_log(
            NONMONOTONIC_POLL, findings, context, clean=clean, what=("messages_polled",)
        )


def nonmonotonic_polls(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each step that does not lead forward."""
    steps = steps_of(log)
    is_back = steps.reached <= steps.left

    def describe(n: int) -> Finding:
        after = int(steps.after[n])
        message = (
            f"{read_name(log.reads, after)} was given offset {steps.reached[n]}"
            f" {step_origin(log, steps, n)}: it went back"
        )
        kind = NONMONOTONIC_POLL_INSIDE if steps.is_inside[n] else NONMONOTONIC_POLL
        more = details(context, int(log.reads.call[after]), value=log.reads.value[after])
        place = int(steps.reached[n])
        return finding(kind, log, place, operations_of(log, steps, n), message, more)

    findings.add(NONMONOTONIC_POLL, np.flatnonzero(is_back & ~steps.is_inside).tolist(), describe)
    findings.add(
        NONMONOTONIC_POLL_INSIDE, np.flatnonzero(is_back & steps.is_inside).tolist(), describe
    )
    return {"messages_polled": int(log.reads.is_poll.sum())}


# Finds producers whose later message is stored before an earlier one.
#
# Source: jepsen.tests.kafka "nonmonotonic-send" and "int-nonmonotonic-send".

NONMONOTONIC_SEND = "nonmonotonic-send"


class NonmonotonicSend:
    """The offsets of one producer's acknowledged sends increase."""

    name = NONMONOTONIC_SEND
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Compare the offsets of each process's acknowledged sends, in the order it sent them."""
        rules = (nonmonotonic_sends,)
        return check_log(rules, tables["operations"], context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the logs' findings."""
        clean = "every producer's acknowledged sends are in the order in which it sent them"
        return conclude_log(
            NONMONOTONIC_SEND, findings, context, clean=clean, what=("sends_acknowledged",)
        )


def nonmonotonic_sends(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each acknowledged send at or before the offset of the one before it.

    A value that was sent again may be answered with the offset of its first attempt: left out.
    """
    sends = log.sends
    is_single = ~np.isin(sends.value, log.repeated)
    acked = np.flatnonzero(sends.is_ok & (sends.offset >= 0) & is_single)
    before, after = acked[:-1], acked[1:]
    is_back = (sends.process[before] == sends.process[after]) & (
        sends.offset[after] <= sends.offset[before]
    )

    def describe(n: int) -> Finding:
        first, second = int(before[n]), int(after[n])
        message = f"{send_name(log, second)} came after {send_name(log, first)}"
        more = details(context, int(sends.call[second]), value=sends.value[second])
        operations = (sends.op[first], sends.op[second])
        return finding(NONMONOTONIC_SEND, log, int(sends.offset[second]), operations, message, more)

    findings.add(NONMONOTONIC_SEND, np.flatnonzero(is_back).tolist(), describe)
    return {}


# All of them, in one pass over each log.

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
    """No anomaly of Jepsen's kafka workload, cycles aside: all checkers of logs in one."""

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


PLUGINS = (
    InconsistentOffsets(),
    Duplicate(),
    LostWrite(),
    Unseen(),
    AbortedRead(),
    PollSkip(),
    NonmonotonicPoll(),
    NonmonotonicSend(),
    LogAnomalies(),
)
