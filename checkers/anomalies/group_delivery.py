"""What a consumer group is given of a queue: all that was acknowledged, nothing else, in order.

One key is one queue and one group, whose commits and polls bear the same key. What is promised, and
what is not: at least once. A message that was consumed and not committed comes again to whoever
goes on in the queue, and that is counted (`redelivered`) and no finding. From the place where a
consumer begins (assign, seek) up to where it begins anew, a *session*, each message comes once, in
order, none left out; and none comes again that an acknowledged commit was behind when the consumer
asked where to begin, unless somebody may have set the group back since.

Source: jepsen.tests.kafka; RocketMQ's documentation of at-least-once delivery and ordered messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from checkers.anomalies.aborted_read import aborted_reads
from checkers.anomalies.answers import Answers
from checkers.anomalies.consumer_steps import running_greatest
from checkers.anomalies.duplicate import duplicates
from checkers.anomalies.inconsistent_offsets import inconsistent_offsets
from checkers.anomalies.log_rules import (
    check_log,
    conclude,
    details,
    finding,
    repeated_values,
    told_read,
    told_send,
)
from checkers.anomalies.lost_write import blank_behind
from checkers.anomalies.nonmonotonic_poll import nonmonotonic_polls
from checkers.anomalies.nonmonotonic_send import nonmonotonic_sends
from checkers.anomalies.observations import NOWHERE, Ints, Log, Reads, Starts, senders
from checkers.anomalies.poll_skip import poll_skips
from checkers.findings import Findings, gather
from harness.plugins import CheckContext
from harness.verdict import Finding, Verdict

NAME: Final = "group-delivery"
LOST, OUT_OF_ORDER, AGAIN = "lost-message", "out-of-order", "redelivered-committed"


class GroupDelivery:
    """Everything acknowledged reaches the consumer group, nothing else does, and in order.

    Lost, duplicated, unexpected and reordered messages of one queue and one group; what commits
    and fetches of the group's offset say of each other is consumer-offsets' to judge.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        operations = tables["operations"]

        def redelivered(log: Log, findings: Findings, told: CheckContext) -> dict[str, int]:
            return redelivered_committed(log, operations, findings, told)

        rules = (
            lost_messages,
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
                f"no consumer came as far as {ahead} acknowledged messages: nobody drained the"
                " queue behind them"
            )
        clean = (
            f"all {counts.get('sends_acknowledged', 0)} acknowledged messages were delivered, in"
            f" order ({counts.get('redelivered', 0)} of them again, as at-least-once allows)"
        )
        what = ("sends_acknowledged", "messages_polled")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = GroupDelivery()


def lost_messages(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding for each acknowledged message that no poll brought though it should have.

    It should have if a poll that was not over before the send brought what stands at its offset
    or behind it: a consumer was past it. Or if, after the acknowledgement, a consumer began behind
    it, or one that stood at or before its offset was told that nothing more is there. Messages
    whose sends have no known outcome may be missing.
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
    blank = blank_behind(log, missing)
    lost = np.flatnonzero((passed != NOWHERE) | (begun != NOWHERE) | (blank != NOWHERE))

    def describe(n: int) -> Finding:
        row, read, start, none = int(missing[n]), int(passed[n]), int(begun[n]), int(blank[n])
        if read != NOWHERE:
            place = int(reads.offset[read])
            what = (
                f"{told_read(reads, read)} brought {reads.value[read]} from there"
                if place == sends.offset[row]
                else f"{told_read(reads, read)} had come to offset {place}"
            )
            other = reads.op[read]
        elif none != NOWHERE:
            what = (
                f"the poll by process {log.blanks.process[none]} (op {log.blanks.op[none]}), called"
                " after it was acknowledged, found nothing there or behind"
            )
            other = log.blanks.op[none]
        else:
            what = (
                f"process {starts.process[start]} (op {starts.op[start]}) went on at offset"
                f" {starts.offset[start]} after it was acknowledged"
            )
            other = starts.op[start]
        message = f"{told_send(log, row)} was never delivered, although {what}"
        more = details(context, int(sends.end[row]), value=sends.value[row])
        return finding(LOST, log, int(sends.offset[row]), (sends.op[row], other), message, more)

    findings.add(LOST, lost.tolist(), describe)
    return {
        "not_reached": len(missing) - len(lost),
        "recovered": int(
            np.isin(sends.value[~sends.is_ok & ~sends.is_failed], reads.value[reads.is_poll]).sum()
        ),
    }


def _latest_from(rows: Ints, offsets: Ints, times: Ints, places: Ints) -> Ints:
    """Return for each place the latest of the rows whose offset is there or behind, or NOWHERE."""
    order = np.argsort(offsets, kind="stable")
    latest = len(order) - 1 - running_greatest(times[order][::-1])[::-1]
    at = np.searchsorted(offsets[order], places, side="left")
    return np.append(rows[order[latest]], NOWHERE)[at]


def out_of_order(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
    """Add a finding where a session brought a producer's later message before an earlier one.

    The messages of one process in one queue are in the order of its sends; between processes there
    is none that a consumer could rely on.
    """
    sends, reads = log.sends, log.reads
    polls = np.flatnonzero(reads.is_poll)
    session = sessions_of(reads, log.starts)[polls]
    known = np.flatnonzero(~np.isin(sends.value, log.repeated))
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
        & (sends.op[sender[after]] < sends.op[sender[before]])
    )

    def describe(n: int) -> Finding:
        first, second = int(before[n]), int(after[n])
        message = (
            f"{told_read(reads, int(polls[second]))} brought {told_send(log, int(sender[second]))}"
            f" behind {told_send(log, int(sender[first]))}"
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
    """Add a finding for each message that came to a session though the group was surely behind it.

    Counts as redelivered every delivery of a message beyond its first one.
    """
    reads, starts = log.reads, log.starts
    polls = np.flatnonzero(reads.is_poll)
    values = np.unique(reads.value[polls])
    counts = {"redelivered": len(polls) - len(values)}
    commits = Answers(operations, ("commit",))
    begun = np.flatnonzero(starts.offset != NOWHERE)
    if not len(commits.op) or not len(begun):
        return counts
    commits.require_inputs(~commits.is_failed)
    floor, witness = _least_committed(commits, _asked_at(operations, starts)[begun])
    of_start = np.full(len(starts.op) + 1, NOWHERE, dtype=np.int64)
    floors, witnesses = of_start.copy(), of_start.copy()
    floors[begun], witnesses[begun] = floor, witness
    session = sessions_of(reads, starts)[polls]
    again = np.flatnonzero(reads.offset[polls] < floors[session])

    def describe(n: int) -> Finding:
        row, start = int(polls[n]), int(session[n])
        commit = int(witnesses[start])
        message = (
            f"{told_read(reads, row)} brought offset {reads.offset[row]}, although the commit of"
            f" {commits.input[commit]} by process {commits.process[commit]} (op"
            f" {commits.op[commit]}) was acknowledged before that consumer asked where to begin,"
            f" at {starts.offset[start]} (op {starts.op[start]}), and nobody had set the group back"
        )
        operations = (commits.op[commit], starts.op[start], reads.op[row])
        more = details(context, int(reads.call[row]), value=reads.value[row])
        return finding(AGAIN, log, int(reads.offset[row]), operations, message, more)

    findings.add(AGAIN, again.tolist(), describe)
    return counts


def sessions_of(reads: Reads, starts: Starts) -> Ints:
    """Return for each read the row of the start that its process made last, or NOWHERE."""
    order = np.lexsort((starts.op, starts.process))
    process, op = starts.process[order], starts.op[order]
    # Both in the order of (process, op): one place for each read among the starts.
    every = np.lexsort(
        (
            np.concatenate((np.ones(len(reads.op)), np.zeros(len(op)))),
            np.concatenate((reads.op, op)),
            np.concatenate((reads.process, process)),
        )
    )
    is_start = every >= len(reads.op)
    last = np.cumsum(is_start) - 1
    found = np.full(len(reads.op) + len(op), NOWHERE, dtype=np.int64)
    is_own = last >= 0
    row = np.append(order, NOWHERE)[np.where(is_own, last, -1)]
    found[every] = row
    found = found[: len(reads.op)]
    is_same = (found != NOWHERE) & (np.append(starts.process, NOWHERE)[found] == reads.process)
    return np.where(is_same, found, NOWHERE)


def _asked_at(operations: pa.Table, starts: Starts) -> Ints:
    """Return when each consumer asked where to begin: its last fetch since it began before.

    Without one, when it began.
    """
    fetches = Answers(operations, ("fetch",))
    answered = np.flatnonzero(fetches.is_ok)
    process = np.concatenate((fetches.process[answered], starts.process))
    op = np.concatenate((fetches.op[answered], starts.op))
    call = np.concatenate((fetches.call[answered], starts.call))
    order = np.lexsort((op, process))
    is_fetch = order < len(answered)
    asked = call[order]
    follows = np.zeros(len(order), dtype=np.bool_)
    follows[1:] = is_fetch[:-1] & ~is_fetch[1:] & (process[order][1:] == process[order][:-1])
    asked[1:] = np.where(follows[1:], asked[:-1], asked[1:])
    at = np.empty(len(order), dtype=np.int64)
    at[order] = asked
    return at[len(answered) :]


def _least_committed(commits: Answers, times: Ints) -> tuple[Ints, Ints]:
    """Return for each time the least offset that may have been the group's, and who committed it.

    A commit may be in effect from its call until another one that was called after its return has
    returned. NOWHERE as long as none has certainly taken effect.
    """
    rows = np.flatnonzero(~commits.is_failed)
    by_call = rows[np.argsort(commits.call[rows], kind="stable")].tolist()
    acked = rows[commits.is_ok[rows]]
    acked = acked[np.argsort(commits.end[acked], kind="stable")]
    newest = np.maximum.accumulate(commits.call[acked]) if len(acked) else commits.call[acked]
    surely = np.searchsorted(commits.end[acked], times, side="left") - 1
    least = np.full(len(times), NOWHERE, dtype=np.int64)
    who = least.copy()
    heap: list[tuple[int, int, int]] = []
    at = 0
    # Times rise, and so does what is surely overwritten: what leaves the heap never comes back.
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
    return least, who
