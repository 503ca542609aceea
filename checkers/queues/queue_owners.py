"""Who owns a queue: one consumer of a group at a time, and one holder of its lock.

Handled messages do not come again.

While a group changes (`subscribe`, `unsubscribe`, a client that continues as another process)
queues move between consumers, and the promise is only at least once. When nothing has changed for
`SETTLED_NS`, and no fault is near, the group is settled: each queue is read by one consumer, from
its current offset on.

Source: RocketMQ's RebalanceImpl, DefaultMQPushConsumerImpl.shutdown (commit, then unregister) and
its documentation of load balancing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.log_rules import conclude, details
from shaketable.checkers.anomalies.observations import NEVER
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import is_one_term, quiet_since
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding, Verdict

NAME: Final = "queue-owners"
TWO_OWNERS: Final = "two-owners"
AGAIN: Final = "needless-redelivery"
SETTLED_NS: Final = 5_000_000_000
"""A group is settled so long after its last change: brokers notify consumers of it at once, and if
that is lost consumers ask every two seconds (`harness.targets.group_handling.REBALANCE_S`); a
consumer that releases a queue waits two seconds at most
(`system.client.group_consumer.RELEASE_SECONDS_MAX`)."""
TIDY_NS: Final = 1_500_000_000
"""A consumer that left within this time was not cut short: it has two seconds."""
SENT_BACK_NS: Final = 5_000_000_000
"""For so long after a handler failed its message may still be on its way back to the broker: the
client waits three seconds for an answer (`system.client.group_consumer.Intervals.call_s`). One
that leaves earlier delivers it again, to the queue's next consumer."""
GONE_NS: Final = 20_000_000_000
"""For so long after the call of an indeterminate operation its client may still be leaving."""
FAILING: Final = ("handle-failed", "retry-failed")
HANDLING: Final = ("handle", "retry", *FAILING)
CHANGES: Final = ("subscribe", "unsubscribe")
COLUMNS: Final = (
    *("op", "process", "f", "key", "expected", "offset"),
    *("call_ns", "return_ns", "outcome", "extra"),
)


class QueueOwners:
    """In a stable group each queue has one consumer, and each message is handled once.

    Judges a topic by all of its queues. Two owners: two consumers handled messages of one queue in
    one settled period. Needless redelivery: a message was handled twice in one settled period, or
    again after the consumer that had handled it in a settled period had left in good order. A
    message whose handler failed just before that may still have been on its way back.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge each topic."""
        findings = Findings()
        counts: dict[str, int] = defaultdict(int)
        for history in _group_histories(tables["operations"], context):
            for name, count in _judge(history, findings, context).items():
                counts[name] += count
        return findings.table(counts)

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Return the verdict."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"{counts.get('settled', 0)} of {counts.get('handled', 0)} messages were handled while"
            " nothing happened to their group, each queue's by one consumer, and once;"
            f" {counts.get('leaves', 0)} consumers left in good order then"
        )
        return conclude(NAME, gathered, context, clean=clean, what=("handled",))


@dataclass(frozen=True, slots=True)
class _Handled:
    """A message that a consumer had handled, or had failed to handle, at `end`.

    It is settled at `settled`: what failed is so once it must have been sent back.
    """

    op: int
    process: int
    key: str
    offset: int
    value: int
    call: int
    end: int
    settled: int

    def label(self) -> str:
        """Return it as text: "process 3 (op 7) was handed 12 of offset 4"."""
        return (
            f"process {self.process} (op {self.op}) was handed {self.value} of offset {self.offset}"
        )


@dataclass(frozen=True, slots=True)
class _Leave:
    """A consumer left in good order."""

    op: int
    process: int
    call: int
    end: int


@dataclass(slots=True)
class _GroupHistory:
    """The events of one group. `changes`: intervals (ns) in which it may have changed."""

    handled: list[_Handled] = field(default_factory=list)
    changes: list[tuple[int, int]] = field(default_factory=list)
    leaves: list[_Leave] = field(default_factory=list)


def _group_histories(operations: pa.Table, context: CheckContext) -> Iterator[_GroupHistory]:
    """Yield the group of each topic of which messages were handled."""
    table = operations.select(list(COLUMNS))
    is_relevant = pc.is_in(table["f"], pa.array([*HANDLING, *CHANGES]))
    is_unknown = pc.invert(pc.is_in(table["outcome"], pa.array(["ok", "fail"])))
    table = table.filter(pc.or_(is_relevant, is_unknown)).sort_by("op")
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in table.to_pylist():
        if row["key"] is not None and context.judges(NAME, row["key"]):
            by_topic[row["key"].partition("/")[0]].append(row)
    for _, rows in sorted(by_topic.items()):
        if any(row["f"] in HANDLING for row in rows):
            yield _group_history(rows)


def _group_history(rows: Sequence[Mapping[str, Any]]) -> _GroupHistory:
    history, members = _GroupHistory(), set()
    for row in rows:
        f, call, end, process = row["f"], row["call_ns"], row["return_ns"], row["process"]
        if f == "subscribe":
            members.add(process)
        if row["outcome"] not in ("ok", "fail"):
            # Its client continues as another process: this one's consumer leaves some time later.
            if process in members:
                history.changes.append((call, call + GONE_NS))
        elif f in CHANGES:
            history.changes.append((call, end))
            if f == "unsubscribe" and row["outcome"] == "ok" and row["expected"] == 1:
                history.leaves.append(_Leave(row["op"], process, call, end))
        elif row["outcome"] == "ok" and row["extra"]:
            history.handled += [
                _Handled(
                    row["op"],
                    process,
                    row["key"],
                    offset,
                    value,
                    call,
                    end,
                    end + SENT_BACK_NS if _has_failed(row, offset) else end,
                )
                for offset, value in _messages(row)
            ]
    return history


def _has_failed(row: Mapping[str, Any], offset: int) -> bool:
    """Return whether the handler failed at this message, or before it."""
    is_failing = row["f"] in FAILING and row["offset"] is not None
    return bool(is_failing and offset >= row["offset"])


def _messages(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return (offset, value) of each message. Raises ValueError."""
    try:
        return msgspec.json.decode(row["extra"], type=_Extra).output
    except msgspec.MsgspecError as error:
        raise ValueError(f"extra of operation {row['op']}: {error}") from error


class _Extra(msgspec.Struct):
    output: list[tuple[int, int]] = []


def _judge(history: _GroupHistory, findings: Findings, context: CheckContext) -> dict[str, int]:
    times = _settled_times(history)
    starts = [start for start, _ in times]
    by_time: dict[tuple[int, str], list[_Handled]] = defaultdict(list)
    for one in sorted(history.handled, key=lambda one: (one.end, one.op, one.offset)):
        place = bisect_right(starts, one.call) - 1
        if place >= 0 and one.end < times[place][1]:
            by_time[place, one.key].append(one)
    pairs = [
        (kind, *pair)
        for _, mine in sorted(by_time.items())
        for kind, pair in _shared_or_repeated(mine, context)
    ]
    again = list(_again_after_leaving(history, times, context))
    for kind in (TWO_OWNERS, AGAIN):
        rows = [row for row, pair in enumerate(pairs) if pair[0] == kind]
        findings.add(kind, rows, lambda row: _finding(*pairs[row]))
    findings.add(AGAIN, range(len(again)), lambda n: _finding_of_leave(*again[n]))
    settled = sum(map(len, by_time.values()))
    leaves = sum(_settled_before(leave, times) is not None for leave in history.leaves)
    return {"topics": 1, "handled": len(history.handled), "settled": settled, "leaves": leaves}


def _settled_times(history: _GroupHistory) -> list[tuple[int, int]]:
    """Return the settled periods (start, end), in order."""
    found, up_to = [], None
    for start, end in [*sorted(history.changes), (NEVER, NEVER)]:
        if up_to is not None and start > up_to + SETTLED_NS:
            found.append((up_to + SETTLED_NS, start))
        up_to = end if up_to is None else max(up_to, end)
    return found


def _shared_or_repeated(
    handled: Sequence[_Handled], context: CheckContext
) -> Iterator[tuple[str, tuple[_Handled, _Handled]]]:
    """Yield the first message of a queue that was redelivered, or went to another consumer."""
    by_offset: dict[int, _Handled] = {}
    before: _Handled | None = None
    for one in handled:
        is_other = before is not None and before.process != one.process
        if before is not None and is_other and _is_quiet(context, before.call, one.end):
            yield TWO_OWNERS, (before, one)
            return
        first = by_offset.setdefault(one.offset, one)
        if first is not one and _is_quiet(context, first.call, one.end):
            yield AGAIN, (first, one)
            return
        before = one


def _again_after_leaving(
    history: _GroupHistory, times: Sequence[tuple[int, int]], context: CheckContext
) -> Iterator[tuple[_Handled, _Leave, _Handled]]:
    """Yield messages that came again though their consumer had left in good order.

    It had handled them in a settled period. At most one for each leave.
    """
    by_place: dict[tuple[str, int], list[_Handled]] = defaultdict(list)
    by_process: dict[int, list[_Handled]] = defaultdict(list)
    for one in history.handled:
        by_place[one.key, one.offset].append(one)
        by_process[one.process].append(one)
    for leave in history.leaves:
        settled = _settled_before(leave, times)
        if settled is None or leave.end - leave.call > TIDY_NS:
            continue
        found = (
            (one, leave, other)
            for one in by_process[leave.process]
            if settled <= one.call and one.settled < leave.call
            for other in by_place[one.key, one.offset]
            if other.call > leave.end and _is_quiet(context, one.call, other.end)
        )
        yield from list(found)[:1]


def _settled_before(leave: _Leave, times: Sequence[tuple[int, int]]) -> int | None:
    """Return since when the group had been settled when that consumer left, None if it was not."""
    return next((start for start, end in times if end == leave.call), None)


def _is_quiet(context: CheckContext, start_ns: int, end_ns: int) -> bool:
    """Return whether nothing disturbed the group from `start_ns` to `end_ns`, nor just before."""
    since = int(quiet_since(context, np.array([end_ns], dtype=np.int64))[0])
    return since != NEVER and since <= start_ns


def _finding(kind: str, first: _Handled, second: _Handled) -> Finding:
    what = "too" if kind == TWO_OWNERS else "again"
    message = (
        f"{first.key}: {first.label()}, and {second.label()} {what},"
        f" {(second.end - first.end) / 1e9:.3f} s later, although no consumer had joined the group"
        f" or left it for {SETTLED_NS // 1_000_000_000} s, and no fault was near."
    )
    return Finding(kind, message, first.key, second.offset, _ids(first.op, second.op))


def _finding_of_leave(first: _Handled, leave: _Leave, second: _Handled) -> Finding:
    message = (
        f"{first.key}: {first.label()}, and left the group in good order (op {leave.op});"
        f" {second.label()} again, {(second.end - leave.end) / 1e9:.3f} s later, and no fault was"
        " near."
    )
    ids = _ids(first.op, leave.op, second.op)
    return Finding(AGAIN, message, first.key, second.offset, ids)


def _ids(*ids: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys(ids))


# Two consumers never hold the lock of one queue at the same time.
#
# A `lock` is ok with output 1 if the consumer now holds the lock, with 0 if another one does. It is
# held from the answer to the call of `unlock`, or to the consumer's last operation on the queue.
#
# Source: RocketMQ's RebalanceLockManager and its documentation of ordered messages. A new leader
# has no locks, there as here: an overlap across a change of leaders breaks no promise.

QUEUE_LOCKS: Final = "queue-locks"
OVERLAP: Final = "lock-overlap"
TRUSTED_NS: Final = 20_000_000_000
"""For so long a lock counts as held without being renewed; brokers keep it for 60 s."""
LOCK_COLUMNS: Final = ("op", "process", "f", "output", "call_ns", "return_ns", "outcome", "node")


class QueueLocks:
    """A queue's lock is never granted while another consumer holds it.

    Judges each queue by itself. Overlaps are counted, and break no promise, if the locks may come
    from two terms: if two nodes granted them, if another node answered any operation between them,
    or if a later term was first seen between them or soon after. Where terms are not known, no
    fault may have been in force between them, or have just been undone.
    """

    name = QUEUE_LOCKS
    tables: tuple[str, ...] = ("operations",)
    partition = "key"
    needs_run = True

    def check(self, tables: Mapping[str, pa.Table], context: CheckContext) -> pa.Table:
        """Judge one queue's locks."""
        table = tables["operations"].select([*LOCK_COLUMNS, "key"]).sort_by("op")
        rows = table.to_pylist()
        holds = _holds(rows)
        served = [(row["call_ns"], row["node"]) for row in rows if row["node"] is not None]
        overlaps = _overlaps(holds)
        wrong = [pair for pair in overlaps if not _may_be_of_two_terms(*pair, served, context)]
        findings = Findings()
        key = table["key"][0].as_py() if rows else ""

        def describe(n: int) -> Finding:
            first, second = wrong[n]
            message = (
                f"{key}: process {second.process} (op {second.op}) was given the lock by"
                f" {first.node}"
                f" while process {first.process} held it (op {first.op}), for another"
                f" {(first.end_ns - second.start_ns) / 1e6:.0f} ms at least."
            )
            more = details(context, second.start_ns)
            return Finding(OVERLAP, message, key, None, (first.op, second.op), more)

        findings.add(OVERLAP, range(len(wrong)), describe)
        refused = sum(row["f"] == "lock" and row["output"] == 0 for row in rows)
        counts = {"queues": 1, "locked": len(holds), "refused": refused}
        return findings.table(counts | {"across_leaders": len(overlaps) - len(wrong)})

    def conclude(self, findings: pa.Table, context: CheckContext) -> Verdict:
        """Join the queues' findings."""
        gathered = gather(findings)
        counts = gathered.sums()
        clean = (
            f"a queue was locked {counts.get('locked', 0)} times, by one consumer at a time"
            f" ({counts.get('refused', 0)} others were refused)"
        )
        if across := counts.get("across_leaders"):
            clean += f", except {across} times across a change of leader, which does not keep locks"
        return conclude(QUEUE_LOCKS, gathered, context, clean=clean, what=("locked",))


@dataclass(frozen=True, slots=True)
class _Hold:
    """A lock that a consumer certainly held from `start_ns` to `end_ns`; called at `call_ns`."""

    op: int
    process: int
    node: str | None
    call_ns: int
    start_ns: int
    end_ns: int


def _holds(rows: list[dict[str, object]]) -> list[_Hold]:
    """Return the holds of all processes, in the order of their starts."""
    holds: list[_Hold] = []
    by_process: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        by_process.setdefault(row["process"], []).append(row)
    for mine in by_process.values():
        for place, row in enumerate(mine):
            if row["f"] == "lock" and row["outcome"] == "ok" and row["output"] == 1:
                holds.append(_hold(row, mine[place + 1 :]))
    return sorted(holds, key=lambda hold: hold.start_ns)


def _hold(row: dict[str, object], later: list[dict[str, object]]) -> _Hold:
    start_ns = _number(row["return_ns"])
    end_ns = start_ns
    for other in later:
        # An operation on the queue shows that it still held the lock; an unlock releases it.
        end_ns = _number(other["call_ns"])
        if other["f"] in ("lock", "unlock"):
            break
        if other["return_ns"] is not None and other["outcome"] == "ok":
            end_ns = _number(other["return_ns"])
    node = row["node"]
    assert node is None or isinstance(node, str)
    op, process, call_ns = (_number(row[name]) for name in ("op", "process", "call_ns"))
    return _Hold(op, process, node, call_ns, start_ns, min(end_ns, start_ns + TRUSTED_NS))


def _number(value: object) -> int:
    assert isinstance(value, int), "ok operations have all of their times"
    return value


def _overlaps(holds: list[_Hold]) -> list[tuple[_Hold, _Hold]]:
    """Return each hold that started while another process held the queue, after that one."""
    found = []
    open_holds: list[_Hold] = []
    for hold in holds:
        open_holds = [one for one in open_holds if one.end_ns > hold.start_ns]
        found += [(one, hold) for one in open_holds if one.process != hold.process]
        if hold.end_ns > hold.start_ns:
            open_holds.append(hold)
    return [(one, hold) for one, hold in found if min(one.end_ns, hold.end_ns) > hold.start_ns]


def _may_be_of_two_terms(
    first: _Hold, second: _Hold, served: list[tuple[int, str]], context: CheckContext
) -> bool:
    """Return whether another term may have started between the two grants."""
    if first.node is None or first.node != second.node:
        return True
    start_ns, stop_ns = first.call_ns, second.start_ns
    if any(start_ns <= at <= stop_ns and node != first.node for at, node in served):
        return True
    return not is_one_term(context, start_ns, stop_ns)


PLUGINS = (QueueOwners(), QueueLocks())
