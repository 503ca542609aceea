"""Each queue belongs to one consumer of a group at a time, and handled messages do not come again.

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

from shaketable.checkers.anomalies.log_rules import conclude
from shaketable.checkers.anomalies.observations import NEVER
from shaketable.checkers.findings import Findings, gather
from shaketable.checkers.queues.quiet_times import quiet_since
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
GONE_NS: Final = 20_000_000_000
"""For so long after the call of an indeterminate operation its client may still be leaving."""
HANDLING: Final = ("handle", "handle-failed", "retry", "retry-failed")
CHANGES: Final = ("subscribe", "unsubscribe")
COLUMNS: Final = (
    *("op", "process", "f", "key", "expected", "call_ns", "return_ns", "outcome", "extra"),
)


class QueueOwners:
    """While nothing happens to a group, nobody else handles a queue's messages, nor anybody again.

    Judges a topic by all of its queues. Two owners: two consumers handled messages of one queue in
    one settled period. Needless redelivery: a message was handled twice in one settled period, or
    again after the consumer that had handled it in a settled period had left in good order.
    """

    name = NAME
    tables: tuple[str, ...] = ("operations",)
    partition = "history"

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


PLUGIN = QueueOwners()


@dataclass(frozen=True, slots=True)
class _Handled:
    """A message that a consumer had handled, or had failed to handle, at `end`."""

    op: int
    process: int
    key: str
    offset: int
    value: int
    call: int
    end: int

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
                _Handled(row["op"], process, row["key"], offset, value, call, end)
                for offset, value in _messages(row)
            ]
    return history


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
            if settled <= one.call and one.end < leave.call
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
        f" {(second.end - first.end) / 1e9:.3f} s later, although nobody had come into the group or"
        f" left it for {SETTLED_NS // 1_000_000_000} s, and no fault was near."
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
