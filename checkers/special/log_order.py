"""The order in which one append-only log's operations can have taken effect.

An append returns its offset, so the order of the appends is known and no search is
needed. Let t(k) be the moment at which the append at offset k took effect. A history is
linearizable iff every t(k) can be chosen, rising with k, such that for each operation's
closed interval [call, return]

- the append at k has call <= t(k) <= return;
- a read that found a value at k has t(k) <= return, and the value is the one appended at k;
- a read that found nothing at k has call <= t(k);
- an end m has t(m-1) <= return and call <= t(m).

So every operation sets *lower* bounds (a place and a time: no append at that place or above
took effect before) and *upper* bounds (a place and a time: all appends at that place and below
took effect by then). The times can be chosen iff no lower bound is later than an upper bound
at the same place or above: choose as t(k) the latest lower bound at or below k. Offsets below a
known end that hold no known value must be filled by indeterminate appends, each called by the
time at which the offset was known to be taken. These deadlines rise with the offset, so matching
the earliest calls to the lowest offsets decides it (earliest deadline first).

All of it is sorting and running minima: O(n log n) at any concurrency.

Source: Herlihy & Wing 1990; CHECKERS.md section 3, row 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.harness.history.schema import OPERATIONS

# Logs whose appends return their offsets: decided by the offsets, without a search.
#
# checkers.special.log_order has the rules, and why they suffice; here they are applied to one
# partition whose log starts empty, and to which no value was appended twice.

METHOD = "log-offsets"
OPERATION_BYTES = 100
"""What the passes hold at a time for each operation, at the most (measured)."""

_WHY = {
    "negative-offset": "{0} is about an offset that no log has",
    "offset-given-twice": "{0} and {1} were both given one offset",
    "phantom-read": "{0} returned what no client ever appended",
    "aborted-read": "{0} returned what {1} certainly failed to append",
    "inconsistent-read": "{0} returned another value than {1} put there",
    "duplicate": "{0} returned a value that {1} put at another offset",
    "append-order": "{0} got a lower offset than {1}, which had returned before it was called",
    "future-read": "{0} had returned a value before {1}, at or below its offset, was called",
    "future-end": "{0} had returned before {1}, which is below that end, was called",
    "stale-read": "{0} found nothing, though {1} had returned before it was called",
    "stale-end": "{0} leaves out {1}, which had returned before it was called",
    "read-went-back": "{0} found nothing, though {1} had seen the log longer before",
    "end-went-back": "{0} answered less than {1} had seen before",
    "unexplained-offset": (
        "{0} shows that an offset is taken, but no append that could be there had been called"
    ),
}


def decide(problem: Problem, operations: pa.Table, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a log's history; None if values repeat, or are not integers.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    if problem.start != () or operations["extra"].null_count < operations.num_rows:
        return None
    limits.require_memory(OPERATION_BYTES * operations.num_rows)
    queue = load_queue(operations.cast(OPERATIONS))
    limits.check_time()
    if repeated_value(queue) is not None:
        return None
    limits.check_time()
    found = anomalies(queue, limits)
    return Decision(METHOD, _accusation(queue, found[0]) if found else None)


def _accusation(queue: Queue, anomaly: Anomaly) -> Accusation:
    """Accuse the first operation of an anomaly, with its witness."""
    rows = [int(anomaly.rows[0])]
    if int(anomaly.witnesses[0]) != NO_ROW:
        rows.append(int(anomaly.witnesses[0]))
    ops = tuple(int(op) for op in np.asarray(queue.op)[rows])
    return Accusation(ops, _WHY[anomaly.kind], closed=False)


FUNCTIONS = frozenset(("append", "read", "end"))
_COLUMNS = [
    "op", "process", "f", "key", "input", "output", "offset", "call_ns", "return_ns", "outcome"
]  # fmt: skip
NEVER = np.iinfo(np.int64).max
NO_ROW = -1
"""In a column of row numbers: there is no such row."""

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Queue:
    """One queue's operations as columns, in the order of their ids."""

    key: str
    op: Ints
    process: Ints
    input: Ints
    output: Ints
    offset: Ints
    call: Ints
    end: Ints  # return_ns; NEVER where the outcome is not ok
    is_append: Bools  # ok or info
    is_acked: Bools
    is_failed: Bools  # an append that certainly did not happen
    is_read: Bools  # ok, and found a value
    is_null: Bools  # ok, and found the log's end
    is_end: Bools  # ok

    def without(self, functions: frozenset[str]) -> Queue:
        """Return the queue as if no read or no end of these functions had been recorded."""
        none = np.zeros_like(self.is_append)
        queue = self
        if "read" in functions:
            queue = replace(queue, is_read=none, is_null=none)
        return replace(queue, is_end=none) if "end" in functions else queue


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Operations that break one rule: rows of the queue, and for each the row of its witness.

    `places` are the offsets concerned.
    """

    kind: str
    rows: Ints
    witnesses: Ints
    places: Ints


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Bounds of one kind of operation: places, times, and the rows that set them."""

    places: Ints
    times: Ints
    rows: Ints


def load_queue(operations: pa.Table) -> Queue:
    """Return one queue's operations as columns; rows of other functions are left out.

    Raises:
        ValueError: an operation that is ok lacks its offset, output or return.
    """
    table = operations.select(_COLUMNS)
    f, is_mine = table["f"], np.zeros(table.num_rows, dtype=np.bool_)
    for function in FUNCTIONS:
        is_mine |= _equal(f, function)
    if not is_mine.all():
        table = table.filter(pa.array(is_mine))
    size = table.num_rows
    op = np.asarray(table["op"].to_numpy(), dtype=np.int64)
    order = None if (op[1:] >= op[:-1]).all() else np.argsort(op, kind="stable")

    def ints(name: str) -> Ints:
        column = table[name]
        if column.null_count:
            column = column.fill_null(0)
        numbers = np.asarray(column.to_numpy(), dtype=np.int64)
        return numbers if order is None else numbers[order]

    def bools(marks: Bools) -> Bools:
        return marks if order is None else marks[order]

    def has(name: str) -> Bools:
        return bools(np.asarray(pc.is_valid(table[name]).to_numpy(), dtype=np.bool_))

    is_ok = bools(_equal(table["outcome"], "ok"))
    is_failed = bools(_equal(table["outcome"], "fail"))
    is_append, is_read, is_end = (bools(_equal(table["f"], f)) for f in ("append", "read", "end"))
    has_output = has("output")
    lacks = np.where(is_end, ~has_output, ~has("offset")) | ~has("return_ns")
    lacks |= is_append & ~has("input")
    if (is_ok & lacks).any():
        at = ints("op")[is_ok & lacks][0]
        raise ValueError(f"operation {at} is ok but lacks its offset, value or return")
    return Queue(
        key=(table["key"][0].as_py() or "") if size else "",
        op=ints("op"),
        process=ints("process"),
        input=ints("input"),
        output=ints("output"),
        offset=ints("offset"),
        call=ints("call_ns"),
        end=np.where(is_ok, ints("return_ns"), NEVER),
        is_append=is_append & ~is_failed,
        is_acked=is_append & is_ok,
        is_failed=is_append & is_failed,
        is_read=is_read & is_ok & has_output,
        is_null=is_read & is_ok & ~has_output,
        is_end=is_end & is_ok,
    )


def _equal(column: pa.ChunkedArray, text: str) -> Bools:
    """Return where a column of strings, plain or dictionary-encoded, equals `text`."""
    if not len(column):
        return np.zeros(0, dtype=np.bool_)
    if pa.types.is_dictionary(column.type):
        chunks = column.unify_dictionaries().chunks
        code = chunks[0].dictionary.index(text).as_py()
        marks = [pc.equal(chunk.indices, code) for chunk in chunks]
        column = pa.chunked_array(marks)
    else:
        column = pc.equal(column, text)
    return np.asarray(column.fill_null(False).to_numpy(), dtype=np.bool_)


def repeated_value(queue: Queue) -> int | None:
    """Return the row of an append whose value an earlier append has too, None if there is none."""
    rows = np.flatnonzero(queue.is_append)
    _, first = np.unique(queue.input[rows], return_index=True)
    if len(first) == len(rows):
        return None
    return int(rows[np.setdiff1d(np.arange(len(rows)), first)[0]])


def anomalies(queue: Queue, limits: Limits = UNLIMITED) -> list[Anomaly]:
    """Return everything in `queue` that no linearizable log allows; empty if it is linearizable.

    Values of appends must be unique (`repeated_value`).

    Raises:
        TimeSpentError: the time of the limits is over.
    """
    below_zero = (queue.is_acked | queue.is_read | queue.is_null) & (queue.offset < 0)
    below_zero |= queue.is_end & (queue.output < 0)
    rows = np.flatnonzero(below_zero)
    places = np.where(queue.is_end[rows], queue.output[rows], queue.offset[rows])
    found = [Anomaly("negative-offset", rows, np.full(len(rows), NO_ROW), places)]
    queue = replace(
        queue,
        is_acked=queue.is_acked & ~below_zero,
        is_append=queue.is_append & ~below_zero,
        is_read=queue.is_read & ~below_zero,
        is_null=queue.is_null & ~below_zero,
        is_end=queue.is_end & ~below_zero,
    )
    place, holders, reads, misplaced = _place(queue)
    limits.check_time()
    found += misplaced
    places = place[holders]
    appends = _Bounds(places, queue.end[holders], holders)
    calls = _Bounds(places, queue.call[holders], holders)
    read = _Bounds(queue.offset[reads], queue.end[reads], reads)
    nulls = np.flatnonzero(queue.is_null)
    null = _Bounds(queue.offset[nulls], queue.call[nulls], nulls)
    ends = np.flatnonzero(queue.is_end)
    end_low = _Bounds(queue.output[ends], queue.call[ends], ends)
    grown = ends[queue.output[ends] > 0]
    end_high = _Bounds(queue.output[grown] - 1, queue.end[grown], grown)
    seen = _joined(read, end_high)
    for kind, compare, one, other in (
        ("append-order", _too_late, calls, appends),
        ("future-read", _too_early, read, calls),
        ("future-end", _too_early, end_high, calls),
        ("stale-read", _too_late, null, appends),
        ("stale-end", _too_late, end_low, appends),
        ("read-went-back", _too_late, null, seen),
        ("end-went-back", _too_late, end_low, seen),
    ):
        found.append(compare(kind, one, other))
        limits.check_time()
    del calls, read, null, end_low, end_high, one, other  # a tenth of the memory of a huge queue
    found.append(_unexplained(queue, place, holders, appends, seen))
    return [anomaly for anomaly in found if len(anomaly.rows)]


def _place(queue: Queue) -> tuple[Ints, Ints, Ints, list[Anomaly]]:
    """Find the offset of each append: from its acknowledgement or, failing that, from a read.

    Returns the place of each row (NO_ROW where none is known), the rows of the appends that
    hold a place, the rows of the reads that agree with them, and the anomalies of the others.
    """
    rows = np.flatnonzero(queue.is_append)
    reads = np.flatnonzero(queue.is_read)
    writer = _writers(queue, rows, reads)
    aborted = _writers(queue, np.flatnonzero(queue.is_failed), reads)
    place = np.full(len(queue.op), NO_ROW, dtype=np.int64)
    known = reads[writer != NO_ROW]
    place[writer[writer != NO_ROW][::-1]] = queue.offset[known][::-1]  # the first read decides
    place[queue.is_acked] = queue.offset[queue.is_acked]

    placed = rows[place[rows] != NO_ROW]
    order = np.lexsort((placed, ~queue.is_acked[placed], place[placed]))
    placed = placed[order]
    holds = np.ones(len(placed), dtype=np.bool_)
    holds[1:] = place[placed[1:]] != place[placed[:-1]]
    holders = placed[holds]
    others = placed[~holds & queue.is_acked[placed]]
    holder = _at(place, holders, queue.offset[reads])

    is_phantom = (writer == NO_ROW) & (aborted == NO_ROW)
    is_aborted = (writer == NO_ROW) & (aborted != NO_ROW)
    is_other = (writer != NO_ROW) & (holder != writer) & (holder != NO_ROW)
    is_twice = (writer != NO_ROW) & (holder == NO_ROW)
    found = [
        Anomaly("offset-given-twice", others, _at(place, holders, place[others]), place[others])
    ]
    for kind, mask, witness in (
        ("phantom-read", is_phantom, holder),
        ("aborted-read", is_aborted, aborted),
        ("inconsistent-read", is_other, holder),
        ("duplicate", is_twice, writer),
    ):
        found.append(Anomaly(kind, reads[mask], witness[mask], queue.offset[reads[mask]]))
    return place, holders, reads[(writer != NO_ROW) & (holder == writer)], found


def _writers(queue: Queue, rows: Ints, reads: Ints) -> Ints:
    """Return for each read the row, among the append `rows`, that has its value."""
    order = np.argsort(queue.input[rows], kind="stable")
    return _find(queue.input[rows[order]], rows[order], queue.output[reads])


def _at(place: Ints, holders: Ints, places: Ints) -> Ints:
    """Return the holder of each of `places`; `holders` are in order of place."""
    return _find(place[holders], holders, places)


def _find(sorted_values: Ints, rows: Ints, wanted: Ints) -> Ints:
    if not len(rows):
        return np.full(len(wanted), NO_ROW, dtype=np.int64)
    at = np.minimum(np.searchsorted(sorted_values, wanted), len(rows) - 1)
    return np.where(sorted_values[at] == wanted, rows[at], NO_ROW)


def _too_late(kind: str, lower: _Bounds, upper: _Bounds) -> Anomaly:
    """Find the lower bounds that are later than an upper bound at their place or above."""
    if not len(lower.rows) or not len(upper.rows):
        return _nothing(kind)
    order, best = _earliest_from(upper)
    first = np.searchsorted(upper.places[order], lower.places, side="left")
    witness = best[np.minimum(first, len(order) - 1)]
    is_late = (first < len(order)) & (upper.times[witness] < lower.times)
    return Anomaly(kind, lower.rows[is_late], upper.rows[witness[is_late]], lower.places[is_late])


def _too_early(kind: str, upper: _Bounds, lower: _Bounds) -> Anomaly:
    """Find the upper bounds that are earlier than a lower bound at their place or below."""
    if not len(lower.rows) or not len(upper.rows):
        return _nothing(kind)
    order = np.argsort(lower.places, kind="stable")
    best = order[_running_best(lower.times[order])]
    last = np.searchsorted(lower.places[order], upper.places, side="right") - 1
    witness = best[np.maximum(last, 0)]
    is_early = (last >= 0) & (upper.times < lower.times[witness])
    return Anomaly(
        kind, upper.rows[is_early], lower.rows[witness[is_early]], upper.places[is_early]
    )


def _unexplained(
    queue: Queue, place: Ints, holders: Ints, appends: _Bounds, seen: _Bounds
) -> Anomaly:
    """Find the first offset that must be taken though no append is left that can fill it.

    Greedy matching is exact: gaps in order of offset have rising deadlines, so the n-th gap gets
    the n-th earliest call among unused indeterminate appends.
    """
    if not len(appends.rows) + len(seen.rows):
        return _nothing("unexplained-offset")
    unused = queue.is_append & ~queue.is_acked & (place == NO_ROW)
    calls = np.sort(queue.call[unused])
    taken = place[holders]
    below = taken - np.arange(len(taken))  # offsets below each taken one that no operation holds
    length = max(int(bounds.places.max(initial=-1)) for bounds in (appends, seen)) + 1
    free = min(length - len(taken), len(calls) + 1)  # one gap more than appends decides
    if not free:
        return _nothing("unexplained-offset")
    number = np.arange(free)
    gaps = number + np.searchsorted(below, number, side="right")
    time, place, row = _earliest_at(appends, gaps)
    seen_time, seen_place, seen_row = _earliest_at(seen, gaps)
    is_seen = (seen_time < time) | ((seen_time == time) & (seen_place >= place))
    time, row = np.where(is_seen, seen_time, time), np.where(is_seen, seen_row, row)
    call = np.append(calls, NEVER)[:free]
    is_bare = (call > time) | (number == len(calls))
    at = np.flatnonzero(is_bare)[:1]
    return Anomaly("unexplained-offset", row[at], np.full(len(at), NO_ROW), gaps[at])


def _earliest_at(upper: _Bounds, wanted: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (time, place, row) of the earliest bound at each wanted place or above.

    Of several at that time the one at the highest place; NEVER and NO_ROW where there is none.
    """
    if not len(upper.rows):
        no_row = np.full(len(wanted), NO_ROW, dtype=np.int64)
        return np.full(len(wanted), NEVER), no_row, no_row
    order, best = _earliest_from(upper)
    first = np.searchsorted(upper.places[order], wanted, side="left")
    is_there = first < len(order)
    witness = best[np.minimum(first, len(order) - 1)]
    return (
        np.where(is_there, upper.times[witness], NEVER),
        np.where(is_there, upper.places[witness], NO_ROW),
        np.where(is_there, upper.rows[witness], NO_ROW),
    )


def _earliest_from(upper: _Bounds) -> tuple[Ints, Ints]:
    """Return the bounds in order of place, and for each the earliest one there or above."""
    order = np.argsort(upper.places, kind="stable")
    downwards = order[::-1]
    return order, downwards[_running_best(-upper.times[downwards])][::-1]


def _running_best(times: Ints) -> Ints:
    """Return, for each position, the position of the greatest time up to there."""
    greatest = np.maximum.accumulate(times)
    is_new = np.ones(len(times), dtype=np.bool_)
    is_new[1:] = times[1:] > greatest[:-1]
    return np.maximum.accumulate(np.where(is_new, np.arange(len(times)), 0))


def _joined(one: _Bounds, other: _Bounds) -> _Bounds:
    if not len(other.rows):
        return one
    return _Bounds(
        np.concatenate((one.places, other.places)),
        np.concatenate((one.times, other.times)),
        np.concatenate((one.rows, other.rows)),
    )


def _nothing(kind: str) -> Anomaly:
    empty = np.empty(0, dtype=np.int64)
    return Anomaly(kind, empty, empty, empty)
