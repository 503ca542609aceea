"""Delivery of a queue to a consumer group: all that was acknowledged, nothing else, in order.

One key is one queue and one group, whose commits and polls have the same key. The promise is at
least once: a message that was consumed and not committed is delivered again to the next consumer of
the queue, which is counted (`redelivered`), and is no finding. In a *session*, from the place where
a consumer starts (assign, seek) until it starts anew, each message is delivered once, in order, and
none is left out. No message is delivered again that lies below an offset which was committed and
acknowledged when the consumer asked where to start, unless a commit may have set the group back
since. A group may be set beyond its queue's end: then its consumers continue at the end.

Source: jepsen.tests.kafka; RocketMQ's documentation of at-least-once delivery and ordered messages.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from shaketable.checkers.anomalies.log_anomalies import (
    aborted_reads,
    blank_after,
    duplicates,
    inconsistent_offsets,
    nonmonotonic_polls,
    nonmonotonic_sends,
    poll_skips,
)
from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude,
    details,
    finding,
    read_name,
    repeated_values,
    send_name,
)
from shaketable.checkers.anomalies.observations import (
    COMMITTING,
    NOWHERE,
    Answers,
    Bools,
    Ints,
    Log,
    Reads,
    Starts,
    running_greatest,
    senders,
    spans_of,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "group-delivery"
LOST, OUT_OF_ORDER, AGAIN = "lost-message", "out-of-order", "redelivered-committed"


class GroupDelivery:
    """The consumer group gets every acknowledged message, in order, and nothing else.

    Finds lost, duplicated, unexpected and reordered messages of one queue and one group; commits
    and fetches of the group's offset are judged by consumer-offsets.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        operations = tables["operations"]

        def redelivered(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
            return redelivered_committed(log, operations, findings, context)

        def lost(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
            return lost_messages(log, operations, findings, context)

        rules = (
            lost,
            redelivered,
            out_of_order,
            inconsistent_offsets,
            duplicates,
            aborted_reads,
            poll_skips,
            nonmonotonic_polls,
            nonmonotonic_sends,
        )
        return check_log(rules, operations, context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = repeated_values(gathered)
        if ahead := counts.get("not_reached"):
            doubts.append(
                f"no consumer came as far as {ahead} acknowledged messages: no consumer read the"
                " queue to its end after them"
            )
        clean = (
            f"all {counts.get('sends_acknowledged', 0)} acknowledged messages were delivered, in"
            f" order ({counts.get('redelivered', 0)} of them again, as at-least-once allows)"
        )
        what = ("sends_acknowledged", "messages_polled")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = GroupDelivery()


def lost_messages(
    log: Log, operations: pa.Table, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add a finding for each acknowledged message that no poll returned although one should have.

    One should have if a poll that ended after the call of the send returned a message at its offset
    or a higher one: a consumer was past it. Or if, after the acknowledgement, a consumer started at
    a higher offset, or one at or below its offset found nothing more. If a commit may have set the
    group ahead of the message, consumers start after it rightly: then the evidence is a consumer
    that went over it in one session, or another message at its offset. Messages of indeterminate
    sends may be missing.
    """
    sends, reads, starts = log.sends, log.reads, log.starts
    acked = np.flatnonzero(sends.is_ok & (sends.offset >= 0) & ~np.isin(sends.value, log.repeated))
    missing = acked[~np.isin(sends.value[acked], reads.value[reads.is_poll])]
    polls = np.flatnonzero(reads.is_poll)
    places = sends.offset[missing]
    passed = _latest_from(polls, reads.offset[polls], reads.end[polls], places)
    passed = np.where(np.append(reads.end, NOWHERE)[passed] > sends.call[missing], passed, NOWHERE)
    known = np.flatnonzero(starts.offset != NOWHERE)
    begun = _latest_from(known, starts.offset[known], starts.call[known], places + 1)
    begun = np.where(np.append(starts.call, NOWHERE)[begun] > sends.end[missing], begun, NOWHERE)
    is_ahead = _set_ahead(log, operations, places)
    went_over = spans_of(log).passing_reads(places)
    ended = np.append(reads.end, NOWHERE)[went_over]
    went_over = np.where(ended > sends.call[missing], went_over, NOWHERE)
    is_kept = ~is_ahead | ((passed != NOWHERE) & np.isin(places, reads.offset[polls]))
    passed = np.where(is_kept, passed, went_over)
    begun = np.where(is_ahead, NOWHERE, begun)
    blank = blank_after(log, missing)
    lost = np.flatnonzero((passed != NOWHERE) | (begun != NOWHERE) | (blank != NOWHERE))

    def describe(n: int) -> Finding:
        row, read, start, none = int(missing[n]), int(passed[n]), int(begun[n]), int(blank[n])
        if read != NOWHERE:
            place = int(reads.offset[read])
            what = (
                f"{read_name(reads, read)} brought {reads.value[read]} from there"
                if place == sends.offset[row]
                else f"{read_name(reads, read)} had come to offset {place}"
            )
            other = reads.op[read]
        elif none != NOWHERE:
            what = (
                f"the poll by process {log.blanks.process[none]} (op {log.blanks.op[none]}), called"
                " after it was acknowledged, found nothing there or after it"
            )
            other = log.blanks.op[none]
        else:
            what = (
                f"process {starts.process[start]} (op {starts.op[start]}) went on at offset"
                f" {starts.offset[start]} after it was acknowledged"
            )
            other = starts.op[start]
        message = f"{send_name(log, row)} was never delivered, although {what}"
        more = details(context, int(sends.end[row]), value=sends.value[row])
        return finding(LOST, log, int(sends.offset[row]), (sends.op[row], other), message, more)

    findings.add(LOST, lost.tolist(), describe)
    return {
        "not_reached": len(missing) - len(lost),
        "recovered": int(
            np.isin(sends.value[~sends.is_ok & ~sends.is_failed], reads.value[reads.is_poll]).sum()
        ),
    }


def _set_ahead(log: Log, operations: pa.Table, places: Ints) -> Bools:
    """Return which places a commit may have skipped: its process had not polled that far."""
    commits = Answers(operations, COMMITTING)
    polls = np.flatnonzero(log.reads.is_poll)
    last = _last_before(log.reads.process[polls], log.reads.op[polls], commits.process, commits.op)
    given = np.append(log.reads.offset[polls], NOWHERE)[last]
    is_ahead = ~commits.is_failed & (commits.input > given + 1)
    ahead: Bools = places < commits.input[is_ahead].max(initial=NOWHERE)
    return ahead


def _latest_from(rows: Ints, offsets: Ints, times: Ints, places: Ints) -> Ints:
    """Return for each place the latest row whose offset is at or above it, or NOWHERE."""
    order = np.argsort(offsets, kind="stable")
    latest = len(order) - 1 - running_greatest(times[order][::-1])[::-1]
    at = np.searchsorted(offsets[order], places, side="left")
    return np.append(rows[order[latest]], NOWHERE)[at]


def out_of_order(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding where a session got a producer's later message before an earlier one.

    The messages of one process in one queue are in the order of its sends, those of a batch in the
    batch's order. There is no such order between processes, nor for delayed messages.
    """
    sends, reads = log.sends, log.reads
    polls = np.flatnonzero(reads.is_poll)
    session = sessions_of(reads, log.starts)[polls]
    known = np.flatnonzero(~sends.is_delayed & ~np.isin(sends.value, log.repeated))
    sender = senders(log, known, reads.value[polls])
    is_known = sender != NOWHERE
    polls, session, sender = polls[is_known], session[is_known], sender[is_known]
    process = sends.process[sender]
    order = np.lexsort((np.arange(len(polls)), process, session, reads.process[polls]))
    before, after = order[:-1], order[1:]
    is_back = (
        (reads.process[polls[before]] == reads.process[polls[after]])
        & (session[before] == session[after])
        & (process[before] == process[after])
        & (sender[after] < sender[before])
    )

    def describe(n: int) -> Finding:
        first, second = int(before[n]), int(after[n])
        message = (
            f"{read_name(reads, int(polls[second]))} brought {send_name(log, int(sender[second]))}"
            f" after {send_name(log, int(sender[first]))}"
        )
        operations = (
            sends.op[sender[second]],
            sends.op[sender[first]],
            reads.op[polls[first]],
            reads.op[polls[second]],
        )
        more = details(context, int(reads.call[polls[second]]))
        offset = int(reads.offset[polls[second]])
        return finding(OUT_OF_ORDER, log, offset, operations, message, more)

    findings.add(OUT_OF_ORDER, np.flatnonzero(is_back).tolist(), describe)
    return {}


def redelivered_committed(
    log: Log, operations: pa.Table, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add a finding for each message of a session that the group had certainly committed.

    Counts as redelivered every delivery of a message after its first one.
    """
    reads, starts = log.reads, log.starts
    polls = np.flatnonzero(reads.is_poll)
    values = np.unique(reads.value[polls])
    counts = {"redelivered": len(polls) - len(values)}
    commits = Answers(operations, COMMITTING)
    begun = np.flatnonzero(starts.offset != NOWHERE)
    if not len(commits.op) or not len(begun):
        return counts
    commits.require_inputs(~commits.is_failed)
    asked, answered = _asked(operations, starts)
    floor, witness = _least_committed(commits, asked[begun], answered[begun])
    floor = np.minimum(floor, _known_end(log, asked[begun]))
    of_start = np.full(len(starts.op) + 1, NOWHERE, dtype=np.int64)
    floors, witnesses = of_start.copy(), of_start.copy()
    floors[begun], witnesses[begun] = floor, witness
    session = sessions_of(reads, starts)[polls]
    again = np.flatnonzero(reads.offset[polls] < floors[session])

    def describe(n: int) -> Finding:
        row, start = int(polls[n]), int(session[n])
        commit = int(witnesses[start])
        message = (
            f"{read_name(reads, row)} brought offset {reads.offset[row]}, although the commit of"
            f" {commits.input[commit]} by process {commits.process[commit]} (op"
            f" {commits.op[commit]}) was acknowledged before that consumer asked where to start,"
            f" at {starts.offset[start]} (op {starts.op[start]}), and no client had reset the"
            " group's offset"
        )
        operations = (commits.op[commit], starts.op[start], reads.op[row])
        more = details(context, int(reads.call[row]), value=reads.value[row])
        return finding(AGAIN, log, int(reads.offset[row]), operations, message, more)

    findings.add(AGAIN, again.tolist(), describe)
    return counts


def sessions_of(reads: Reads, starts: Starts) -> Ints:
    """Return for each read the row of its process's last start before it, or NOWHERE."""
    return _last_before(starts.process, starts.op, reads.process, reads.op)


def _last_before(process: Ints, op: Ints, of_process: Ints, of_op: Ints) -> Ints:
    """Return the row of the last operation before each place in its process, or NOWHERE."""
    if not len(op):
        return np.full(len(of_op), NOWHERE, dtype=np.int64)
    stride = max(op.max(), of_op.max(initial=0)) + 1
    place = process * stride + op
    order = np.argsort(place, kind="stable")
    at = np.searchsorted(place[order], of_process * stride + of_op) - 1
    row: Ints = order[np.maximum(at, 0)]
    return np.where((at >= 0) & (process[row] == of_process), row, NOWHERE)


def _asked(operations: pa.Table, starts: Starts) -> tuple[Ints, Ints]:
    """Return when each consumer asked where to start, and when it was answered (ns).

    That is its last fetch since its previous start; without one, its last poll since then, which
    may have redirected it; without either, its start. A consumer that has reset the group itself
    since then knows the offset from the reset: it counts as having asked when that was answered.
    """
    before = _last_before(starts.process, starts.op, starts.process, starts.op)
    since = np.where(before == NOWHERE, NOWHERE, np.append(starts.op, NOWHERE)[before])
    asked, answered, newest = starts.call.copy(), starts.call.copy(), since.copy()
    for f in ("poll", "fetch", "reset"):
        rows = Answers(operations, (f,))
        own = np.flatnonzero(rows.is_ok if f != "poll" else np.ones(len(rows.op), dtype=np.bool_))
        last = _last_before(rows.process[own], rows.op[own], starts.process, starts.op)
        op = np.append(rows.op[own], NOWHERE)[last]
        # Answers before a reset do not count; after it, a consumer asks like any other.
        is_own = (last != NOWHERE) & (op > (newest if f == "reset" else since))
        call, end = (np.append(column[own], NOWHERE)[last] for column in (rows.call, rows.end))
        asked = np.where(is_own, end + 1 if f == "reset" else call, asked)
        if f != "poll":
            answered = np.where(is_own, end + (f == "reset"), answered)
        newest = np.where(is_own, np.maximum(op, newest), newest)
    return asked, answered


def _known_end(log: Log, times: Ints) -> Ints:
    """Return the least end that the queue had at these times, by acknowledgements and polls.

    A group that was set beyond its queue's end is rightly sent back to the end.
    """
    sends, reads = log.sends, log.reads
    acked = np.flatnonzero(sends.is_ok)
    end = np.concatenate((sends.end[acked], reads.end))
    reach = np.concatenate((sends.offset[acked], reads.offset)) + 1
    order = np.argsort(end, kind="stable")
    reach = np.maximum.accumulate(np.append(0, reach[order]))
    return np.asarray(reach[np.searchsorted(end[order], times, side="left")])


def _least_committed(commits: Answers, times: Ints, until: Ints) -> tuple[Ints, Ints]:
    """Return for each request the least offset that the group may have had, and its commit's row.

    A request was sent at one of `times`, and answered at the same place of `until`. A commit may
    be in effect from its call until another one, called after its return, has returned; one that
    was called before the answer may have been processed before the request. NOWHERE as long as no
    commit has certainly taken effect.
    """
    rows = np.flatnonzero(~commits.is_failed)
    by_call = rows[np.argsort(commits.call[rows], kind="stable")].tolist()
    calls = commits.call[by_call].tolist()
    acked = rows[commits.is_ok[rows]]
    acked = acked[np.argsort(commits.end[acked], kind="stable")]
    newest = np.maximum.accumulate(commits.call[acked]) if len(acked) else commits.call[acked]
    surely = np.searchsorted(commits.end[acked], times, side="left") - 1
    least = np.full(len(times), NOWHERE, dtype=np.int64)
    who = least.copy()
    heap: list[tuple[int, int, int]] = []
    at = 0
    # Times rise, and so does what is certainly overwritten: what leaves the heap never returns.
    for n in np.argsort(times, kind="stable").tolist():
        while at < len(by_call) and commits.call[by_call[at]] < times[n]:
            row = by_call[at]
            heapq.heappush(heap, (int(commits.input[row]), int(commits.end[row]), row))
            at += 1
        if surely[n] < 0:
            continue
        overwritten = newest[surely[n]]
        while heap and heap[0][1] < overwritten:
            heapq.heappop(heap)
        least[n], who[n] = heap[0][0], heap[0][2]
        for row in by_call[at : bisect_left(calls, until[n], at)]:
            if commits.input[row] < least[n]:
                least[n], who[n] = commits.input[row], row
    return least, who
