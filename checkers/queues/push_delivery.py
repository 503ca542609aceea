"""Delivery of a queue to a group's push consumers: all of it, soon, and in order if it is locked.

A consumer pulls and commits by itself; `handle` is ok when its handler has returned, and only then
may the group commit an offset after those messages. At least once: what was delivered and not
committed is delivered again. A message whose handler failed was delivered, and is judged by another
checker from there on (`checkers.queues.retried_messages`). A queue that is consumed under its lock
(`expected` 1 of handle and fetch) is handled in order, by any consumer: a message is handled again
after a later one only if a consumer, a broker or a link failed.

Source: RocketMQ's documentation of at-least-once delivery and of ordered messages;
ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService, RebalanceImpl.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.log_anomalies import (
    aborted_reads,
    duplicates,
    inconsistent_offsets,
    nonmonotonic_sends,
)
from shaketable.checkers.anomalies.log_rules import (
    check_log,
    conclude,
    details,
    finding,
    repeated_values,
    send_name,
)
from shaketable.checkers.anomalies.observations import (
    HANDLES,
    NEVER,
    NOWHERE,
    Answers,
    Bools,
    Ints,
    Log,
    is_valid,
    whole_numbers,
)
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.group_delivery import LOST, OUT_OF_ORDER
from shaketable.checkers.queues.held_polls import LATE
from shaketable.checkers.queues.quiet_times import quiet_since
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "push-delivery"
BOUND_NS: Final = 15_000_000_000
"""A healthy group handles and commits messages within this time, some rebalances included. But a
lock that was not released blocks its queue for a minute, so queues that are consumed in order are
not judged by time."""
SHOWN_NS: Final = 2_000_000_000
"""So soon after its acknowledgement a message counts in the queue's end that a healthy group
reports."""


class PushDelivery:
    """Every acknowledged message is handled before the group commits an offset past it.

    Judges one queue. Lost: the group committed an offset after a message that no consumer handled,
    or the queue ended before such a message for all final fetches. Late: at the end, while no fault
    was in force and consumers ran, the group did not reach a message within 15 s. Out of order:
    under the queue's lock, with no fault near, a message was handled after a later one.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue."""
        operations = tables["operations"]
        fetches, handles = Answers(operations, ("fetch",)), Answers(operations, HANDLES)
        in_order = Answers(operations, ("handle",))

        def lost(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
            return lost_messages(log, fetches, findings, context)

        def late(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
            return late_messages(log, fetches, handles, findings, context)

        def order(log: Log, findings: Findings, context: CheckContext) -> dict[str, int]:
            return out_of_order(log, in_order, findings, context)

        rules = (
            lost,
            late,
            order,
            inconsistent_offsets,
            duplicates,
            aborted_reads,
            nonmonotonic_sends,
        )
        return check_log(rules, operations, context, needs_unique=True)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        doubts = repeated_values(gathered)
        if ahead := counts.get("not_reached"):
            doubts.append(f"the group did not come as far as {ahead} acknowledged messages")
        clean = (
            f"all {counts.get('sends_acknowledged', 0)} acknowledged messages were handled"
            f" ({counts.get('redelivered', 0)} of them again, as at-least-once allows)"
        )
        what = ("sends_acknowledged", "messages_handled")
        return conclude(NAME, gathered, context, clean=clean, what=what, doubts=doubts)


PLUGIN = PushDelivery()


def lost_messages(
    log: Log, fetches: Answers, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add a finding for each acknowledged message that the group passed without handling it.

    A fetch that was called after its acknowledgement returned an offset after it. Or the queue ends
    before it, for all final fetches: the group will never reach it. Also counts messages that were
    handled, that were handled again, and that the group did not reach.
    """
    sends = log.sends
    missing = _unhandled(log)
    answered = np.flatnonzero(fetches.is_ok & fetches.has_output)
    answered = answered[np.argsort(fetches.output[answered], kind="stable")]
    # From each row on, that is of all fetches that returned this offset or a higher one, the last.
    latest, calls = answered.copy(), fetches.call[answered]
    for n in range(len(answered) - 2, -1, -1):
        latest[n] = answered[n] if calls[n] > fetches.call[latest[n + 1]] else latest[n + 1]
    at = np.searchsorted(fetches.output[answered], sends.offset[missing], side="right")
    witness = np.append(latest, NOWHERE)[at]
    asked = np.append(fetches.call, NOWHERE)[witness]
    is_passed = (witness != NOWHERE) & (asked > sends.end[missing])
    ends, asked_last = _last_ends(fetches, context)
    is_gone = ~is_passed & _ends_before(ends, sends.offset[missing], sends.end[missing])
    is_lost = is_passed | is_gone
    # Another value was handled at its offset: `inconsistent_offsets` reports that.
    is_replaced = np.isin(sends.offset[missing], log.reads.offset)

    def describe(n: int) -> Finding:
        row = int(missing[n])
        fetch = int(witness[n]) if is_passed[n] else asked_last
        how = (
            f"although the group went on after it: {_who(fetches, fetch)}, who asked later, was"
            f" answered that it had committed {fetches.output[fetch]}"
            if is_passed[n]
            else f"and the queue ends before it: {_who(fetches, fetch)}, who asked at the end, was"
            f" answered that it ends at {ends.offset.max()}"
        )
        message = f"{send_name(log, row)} was handled by no consumer, {how}"
        more = details(context, int(sends.end[row]), value=sends.value[row])
        ids = (sends.op[row], fetches.op[fetch])
        return finding(LOST, log, int(sends.offset[row]), ids, message, more)

    findings.add(LOST, np.flatnonzero(is_lost).tolist(), describe)
    return {
        "messages_handled": len(log.reads.value),
        "redelivered": len(log.reads.value) - len(np.unique(log.reads.value)),
        "not_reached": int((~is_lost & ~is_replaced).sum()),
    }


@dataclass(frozen=True, slots=True)
class _Ends:
    """The queue's end by final fetches: their calls, and the ends that they returned."""

    call: Ints
    offset: Ints


def _last_ends(fetches: Answers, context: CheckContext) -> tuple[_Ends, int]:
    """Return the queue's ends that were fetched after all faults, and the row of the highest.

    While a fault is in force, a fetch may return an outdated end.
    """
    final_ns = NEVER if context.final_from_ns is None else context.final_from_ns
    since_ns = max([final_ns, *(window.stop_ns for window in context.windows)])
    has_end = is_valid(fetches.table["offset"]) & fetches.is_ok & (fetches.call >= since_ns)
    rows = np.flatnonzero(has_end)
    offsets = whole_numbers(fetches.table["offset"])[rows]
    best = int(rows[np.argmax(offsets)]) if len(rows) else NOWHERE
    return _Ends(fetches.call[rows], offsets), best


def _ends_before(ends: _Ends, offsets: Ints, acknowledged: Ints) -> Bools:
    """Return whether the queue ended at or before each offset, for all final fetches.

    One of them must have been called more than `SHOWN_NS` after its acknowledgement.
    """
    if not len(ends.call):
        return np.zeros(len(offsets), dtype=np.bool_)
    is_short = ends.offset.max() <= offsets
    return np.asarray(is_short & (ends.call.max() - acknowledged > SHOWN_NS), dtype=np.bool_)


def _who(fetches: Answers, row: int) -> str:
    return f"process {fetches.process[row]} (op {fetches.op[row]})"


def late_messages(
    log: Log, fetches: Answers, handles: Answers, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add a finding for a queue whose group made no progress for long, before messages.

    Time counts from the first fetch: consumers fetch at the end, until all is committed.
    """
    answered = np.flatnonzero(fetches.is_ok)
    if not len(answered) or _is_ordered(fetches):
        return {}
    first_ns = int(fetches.call[answered].min())
    last = int(answered[np.argmax(fetches.call[answered])])
    asked = np.array([fetches.call[last]], dtype=np.int64)
    quiet = int(quiet_since(context, asked)[0])
    reached = int(fetches.output[last]) if fetches.has_output[last] else 0
    missing = _unhandled(log)
    missing = missing[log.sends.offset[missing] >= reached]
    since = np.maximum(log.sends.end[missing], max(quiet, first_ns))
    handled = handles.end[handles.is_ok]
    if len(handled):
        since = np.maximum(since, handled.max())  # it made progress: slow perhaps, but not stuck
    is_late = (quiet != NEVER) & (asked[0] - since > BOUND_NS)
    first = np.flatnonzero(is_late)[:1]

    def describe(n: int) -> Finding:
        row = int(missing[n])
        message = (
            f"{send_name(log, row)} was handled by no consumer for"
            f" {(asked[0] - since[n]) / 1e9:.0f} s, nor were {int(is_late.sum()) - 1} others of"
            " this queue, while no fault was in force and consumers of the group went on;"
            f" process {fetches.process[last]} (op {fetches.op[last]}) was answered then that the"
            f" group was at {reached}"
        )
        more = details(context, int(since[n]), value=log.sends.value[row])
        ids = (log.sends.op[row], fetches.op[last])
        return finding(LATE, log, int(log.sends.offset[row]), ids, message, more)

    findings.add(LATE, first.tolist(), describe)
    return {}


def out_of_order(
    log: Log, handles: Answers, findings: Findings, context: CheckContext
) -> dict[str, int]:
    """Add a finding if a message was handled after a later one, under the queue's lock.

    Only if it had been quiet since before the later one was delivered: a consumer that fails loses
    what it had not committed, and that is delivered again.
    """
    reads = log.reads
    if not len(reads.op) or not _is_ordered(handles):
        return {}
    order = np.lexsort((reads.place, reads.call))
    offset = reads.offset[order]
    ahead = np.maximum.accumulate(offset)
    at = np.searchsorted(np.maximum.accumulate(offset), ahead, side="left")
    later = order[at]
    quiet = quiet_since(context, reads.end[order])
    is_back = (offset < ahead) & (reads.op[later] != reads.op[order])
    is_back &= (quiet != NEVER) & (quiet < reads.call[later])

    def describe(n: int) -> Finding:
        row, other = int(order[n]), int(later[n])
        message = (
            f"process {reads.process[row]} (op {reads.op[row]}) handled {reads.value[row]} of"
            f" offset {reads.offset[row]} after {reads.value[other]} of offset"
            f" {reads.offset[other]}, which process {reads.process[other]}"
            f" (op {reads.op[other]}) had handled before,"
            " under the queue's lock and beside no fault"
        )
        more = details(context, int(reads.call[row]), value=reads.value[row])
        ids = (reads.op[other], reads.op[row])
        return finding(OUT_OF_ORDER, log, int(reads.offset[row]), ids, message, more)

    findings.add(OUT_OF_ORDER, np.flatnonzero(is_back)[:1].tolist(), describe)
    return {}


def _is_ordered(answers: Answers) -> bool:
    """Return whether the consumers of these operations locked each queue."""
    return bool(pc.any(pc.equal(answers.table["expected"], 1)).as_py())


def _unhandled(log: Log) -> Ints:
    """Return the rows of acknowledged sends whose messages no consumer handled."""
    sends = log.sends
    is_acked = sends.is_ok & (sends.offset >= 0) & ~np.isin(sends.value, log.repeated)
    return np.flatnonzero(is_acked & ~np.isin(sends.value, log.reads.value))
