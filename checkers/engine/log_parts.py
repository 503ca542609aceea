"""Splits the nodes' logs and the appends into the parts that executors judge.

A part travels as a few rows of PACKED, each a whole table in Arrow's format: millions of rows
would have to be converted to Spark's and back one by one. Parts below `Plan.parts` hold values
(checkers.logs.append_fates), those from there on hold windows of the log's index
(checkers.logs.committed_prefix), `WINDOWS_A_PART` each.

Pure but for the files that `pack_log` and `pack_operations` read; does not import pyspark.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import TAGGED, judged
from shaketable.checkers.logs.append_fates import (
    APPENDS,
    COPIES,
    STORED,
    Bools,
    Ints,
    LogPart,
    entries_in,
    ints,
    load_part,
    merge_copies,
    narrow_entries,
    narrow_operations,
    numbered,
    part_of,
    places_of,
)
from shaketable.checkers.logs.committed_prefix import WINDOW_ENTRIES, WindowCutter
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.history.schema import FINDINGS, OPERATIONS

PACKED = pa.schema([("part", pa.int64()), ("kind", pa.string()), ("payload", pa.binary())])
"""A table of some kind, or its share that belongs to one part."""

APPENDED, COPIED, DAMAGED, SUMMED, KEPT = "appended", "copied", "damaged", "summed", "kept"
COUNTED = "counted"
"""Kind of a row with the number of rows that were read as payload."""
UNREADABLE, RANGE = "unreadable", "range"
FLUSH_ROWS = 400_000
"""Narrow rows that a task collects before it splits them into parts: large pieces travel well."""

TEXT_ROWS_MIN = 8
"""With fewer rows for each text of a dictionary, only the texts in use are sent."""

WINDOWS_A_PART = 16


@runtime_checkable
class ValueChecker(Protocol):
    """A checker of keys that can judge a key's values separately; see checkers.logs.durability."""

    name: str

    def judge_values(self, part: LogPart, context: CheckContext) -> tuple[pa.Table, pa.Table]:
        """Return findings, and the appends (UNSETTLED) whose places must be looked up."""
        ...

    def stored(self, part: LogPart, is_wanted: Bools, context: CheckContext) -> pa.Table:
        """Return what the part stores at wanted places (STORED)."""
        ...

    def judge_places(
        self, unsettled: Iterable[pa.Table], stored: Iterable[pa.Table], context: CheckContext
    ) -> pa.Table:
        """Return the findings on unsettled appends, given all that is stored at their places."""
        ...


@runtime_checkable
class WindowChecker(Protocol):
    """A checker of buckets that compares logs by digests; see checkers.logs.committed_prefix."""

    name: str

    def judge_windows(
        self, summaries: Iterable[pa.Table], entries: Iterable[pa.Table], context: CheckContext
    ) -> tuple[pa.Table, list[int]]:
        """Return findings, and the windows whose entries must all be compared."""
        ...


@dataclass(frozen=True, slots=True)
class LogSource:
    """A part of one node's log (`segment` None: all of it)."""

    node: str
    path: str
    segment: str | None


@dataclass(frozen=True, slots=True)
class LogUnit:
    """What one task reads: parts of the logs of different nodes, in parallel.

    Equal entries at the same indices are sent once.
    """

    number: int
    sources: tuple[LogSource, ...]


@dataclass(frozen=True, slots=True)
class OperationsUnit:
    """What one task reads: some row groups of a Parquet file of OPERATIONS."""

    path: str
    row_groups: tuple[int, ...]


Read = Callable[[LogSource], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every task must know: how to split, and the checkers. Small; sent to each executor.

    `kept`: the windows whose entries must be kept; None in the first round.
    """

    parts: int
    context: CheckContext
    by_value: tuple[ValueChecker, ...]
    by_window: tuple[WindowChecker, ...]
    read: Read
    kept: frozenset[int] | None = None


def pack_log(unit: LogUnit, plan: Plan) -> Iterator[pa.RecordBatch]:
    """Read parts of the nodes' logs; yield them as rows of PACKED.

    A reader's failure is data: a row of kind UNREADABLE.
    """
    packer = _CopyPacker(plan)
    open_logs = [_OpenLog(unit, source, plan) for source in unit.sources]
    while any(not log.is_over for log in open_logs):
        for log in open_logs:
            yield from log.read_next()
        if plan.by_value and plan.kept is None:
            yield from packer.add(open_logs)
    yield from packer.finish()


def pack_operations(unit: OperationsUnit, plan: Plan) -> Iterator[pa.RecordBatch]:
    """Read some operations; yield the appends among them as rows of PACKED.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    names = [field.name for field in OPERATIONS if field.name in _APPEND_COLUMNS]
    texts = [name for name in names if OPERATIONS.field(name).type == pa.string()]
    with pq.ParquetFile(unit.path, read_dictionary=texts) as file:
        for row_group in unit.row_groups:
            table = file.read_row_group(row_group, columns=names)
            if table.num_rows:
                yield _packed(0, COUNTED, b"0")
            yield from _cut(APPENDED, narrow_operations(table), plan.parts)


_APPEND_COLUMNS = {"f", "outcome", "input", "expected"} | set(APPENDS.names)


class _OpenLog:
    """One node's log, read batch by batch; `copies` are those that were not taken yet."""

    def __init__(self, unit: LogUnit, source: LogSource, plan: Plan) -> None:
        self.copies: list[pa.Table] = []
        self.is_over = False
        self._number, self._source, self._plan = unit.number, source, plan
        committed = plan.context.committed.get(source.node)
        self._windows: WindowCutter | None = None
        if plan.by_window and committed is not None:
            self._windows = WindowCutter(committed, plan.kept)
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._others = 0
        self._range: tuple[int, int] | None = None

    def read_next(self) -> Iterator[pa.RecordBatch]:
        """Read the next batch; yield what is packed besides copies."""
        if self.is_over:
            return
        try:
            if self._batches is None:
                self._batches = iter(self._plan.read(self._source))
            batch = next(self._batches, None)
        except Exception as error:  # a plug-in's reader may raise anything
            last = traceback.format_exception_only(error)[-1].strip()
            text = f"the log of {self._source.node}: {last}"
            yield _packed(0, UNREADABLE, text.encode())
            batch = None
        if batch is None:
            self.is_over = True
            yield from self._finish()
        elif batch.num_rows:
            yield from self._take(pa.Table.from_batches([batch]))

    def last_index(self) -> int | None:
        """Return the index of the last copy that was not taken; None if there is none."""
        return self.copies[-1]["index"][-1].as_py() if self.copies else None

    def take_copies(self, up_to: int | None) -> pa.Table:
        """Return and forget the copies up to an index; all of them if it is None."""
        rows = pa.concat_tables([COPIES.empty_table(), *self.copies])
        index = ints(rows["index"])
        end = len(index)
        if up_to is not None and not (np.diff(index) < 0).any():
            end = int(np.searchsorted(index, up_to, side="right"))
        self.copies = [rows.slice(end)] if end < len(index) else []
        return rows.slice(0, end)

    def _take(self, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        index = ints(rows["index"])
        low, high = self._range or (int(index[0]), int(index[0]))
        self._range = min(low, int(index.min())), max(high, int(index.max()))
        if self._windows is not None:
            self._windows.add(rows)
            yield from self._take_windows()
        if self._plan.by_value and self._plan.kept is None:
            copies, damaged = narrow_entries(rows, self._plan.context.nodes)
            self._others += rows.num_rows - copies.num_rows - damaged.num_rows
            yield from _cut(DAMAGED, damaged, self._plan.parts)
            if copies.num_rows:
                self.copies.append(copies)

    def _finish(self) -> Iterator[pa.RecordBatch]:
        if self._windows is not None:
            self._windows.finish()
            yield from self._take_windows()
        if self._range is not None and self._plan.kept is None:
            low, high = self._range
            yield _packed(0, RANGE, f"{self._number} {low} {high}".encode())
            yield _packed(0, COUNTED, str(self._others).encode())

    def _take_windows(self) -> Iterator[pa.RecordBatch]:
        assert self._windows is not None
        summaries, entries = self._windows.take()
        window = ints(summaries["window"])
        yield from split_rows(SUMMED, summaries, self._plan.parts + window // WINDOWS_A_PART)
        window = ints(entries["index"]) // WINDOW_ENTRIES
        yield from split_rows(KEPT, entries, self._plan.parts + window // WINDOWS_A_PART)


class _CopyPacker:
    """Merges the copies of open logs index by index, and packs them."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._merged: list[pa.Table] = []
        self._rows = 0

    def add(self, logs: Sequence[_OpenLog]) -> Iterator[pa.RecordBatch]:
        """Take the copies up to the index that all open logs have reached; yield what is ready.

        An open log without copies does not hold up the others.
        """
        ends = [log.last_index() for log in logs if not log.is_over]
        up_to = min((end for end in ends if end is not None), default=None)
        taken = [log.take_copies(up_to) for log in logs if log.copies]
        taken = [copies for copies in taken if copies.num_rows]
        if taken:
            self._merged.append(merge_copies(taken))
            self._rows += self._merged[-1].num_rows
        if self._rows >= FLUSH_ROWS:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest."""
        merged, self._merged, self._rows = self._merged, [], 0
        if merged:
            yield from _cut(COPIED, pa.concat_tables(merged), self._plan.parts)


def _cut(kind: str, table: pa.Table, parts: int) -> Iterator[pa.RecordBatch]:
    """Split rows with a key and a value into their parts."""
    if table.num_rows:
        table = table.unify_dictionaries().combine_chunks()
        texts: dict[str | None, int] = {}
        key = numbered(table["key"], texts)
        yield from split_rows(kind, table, part_of(tuple(texts), key, ints(table["value"]), parts))


def split_rows(kind: str, table: pa.Table, part: Ints) -> Iterator[pa.RecordBatch]:
    """Yield each part's share of a table, in the order of the rows."""
    if not table.num_rows:
        return
    order = np.argsort(part, kind="stable")
    numbers, starts = np.unique(part[order], return_index=True)
    ordered = table.take(pa.array(order)) if len(numbers) > 1 else table
    bounds = [*starts.tolist(), table.num_rows]
    for number, (start, end) in zip(numbers.tolist(), pairwise(bounds), strict=True):
        yield _packed(number, kind, _bytes_of(ordered.slice(start, end - start)))


def _packed(part: int, kind: str, payload: bytes | pa.Buffer) -> pa.RecordBatch:
    whole = pa.py_buffer(payload)
    bounds = pa.py_buffer(np.array([0, whole.size], dtype=np.int32))
    column = pa.Array.from_buffers(pa.binary(), 1, [None, bounds, whole])  # no copy is made
    columns = [pa.array([part], pa.int64()), pa.array([kind], pa.string()), column]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


def _bytes_of(table: pa.Table) -> pa.Buffer:
    """Write a table as an Arrow stream, without texts that it does not use."""
    for place, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            chunks = table[column.name].chunks
            if len(chunks[0].dictionary) > table.num_rows // TEXT_ROWS_MIN:
                plain = table[column.name].cast(pa.string()).dictionary_encode()
                table = table.set_column(place, column, plain)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


# Judges the parts of logs and appends. Pure.
#
# In the first round every part is judged by itself. It also names what it cannot decide: places
# where appends are not what they must be, and windows in which logs differ. The second round brings
# together all that is stored at those places, or in those windows.

UNSETTLED_AT, OTHER_WINDOWS = "unsettled-at", "other-windows"
"""Kinds of rows of TAGGED that are no findings: `operations` holds places, or windows."""

STORED_AT = "standing-at"
"""Kind of rows of PACKED: tables of STORED. Those of UNSETTLED have the kind UNSETTLED_AT."""


def judge_part(rows: pa.Table, plan: Plan) -> pa.Table:
    """Judge one part, all rows of PACKED with its number; return rows of TAGGED.

    Besides findings it returns rows of UNSETTLED_AT and OTHER_WINDOWS, and passes on those of
    UNREADABLE and RANGE.
    """
    number = rows["part"][0].as_py()
    if number >= plan.parts:
        return _judge_windows(rows, plan)
    found = [TAGGED.empty_table()]
    for kind in (UNREADABLE, RANGE):
        packed = [
            {"kind": kind, "message": text.to_pybytes().decode()} for text in _payloads(rows, kind)
        ]
        found.append(pa.Table.from_pylist(packed, TAGGED))
    part = _load(rows)
    found += [
        judged(checker.name, partial(_values, checker, part, plan.context, number))
        for checker in plan.by_value
    ]
    return pa.concat_tables(found)


def _values(checker: ValueChecker, part: LogPart, context: CheckContext, number: int) -> pa.Table:
    findings, unsettled = checker.judge_values(part, context)
    places = np.unique(places_of(unsettled)).tolist()
    return pa.concat_tables([findings, _note(UNSETTLED_AT, places, number)])


def _judge_windows(rows: pa.Table, plan: Plan) -> pa.Table:
    found = [TAGGED.empty_table()]
    summaries, entries = _tables(rows, SUMMED), _tables(rows, KEPT)
    for checker in plan.by_window:
        judge = partial(_windows, checker, summaries, entries, plan.context)
        found.append(judged(checker.name, judge))
    return pa.concat_tables(found)


def _windows(
    checker: WindowChecker,
    summaries: Sequence[pa.Table],
    entries: Sequence[pa.Table],
    context: CheckContext,
) -> pa.Table:
    findings, others = checker.judge_windows(summaries, entries, context)
    return pa.concat_tables([findings, _note(OTHER_WINDOWS, others)])


def open_places(
    rows: pa.Table,
    plan: Plan,
    checker: ValueChecker,
    wanted: tuple[bytes, frozenset[int]],
    parts: int,
) -> pa.Table:
    """Return what one part holds at some places, split into `parts` by place (PACKED).

    `wanted` has the bits of an array with an element for each of PLACES, and the parts with
    unsettled appends. Returns these appends, and all that is stored at their places.
    """
    places, unsettled_in = wanted
    is_wanted = np.unpackbits(np.frombuffer(places, np.uint8)).astype(np.bool_)
    part = _load(rows)
    tables = {STORED_AT: checker.stored(part, is_wanted, plan.context)}
    if rows["part"][0].as_py() in unsettled_in:
        tables[UNSETTLED_AT] = checker.judge_values(part, plan.context)[1]
    packed = [PACKED.empty_table()]
    for kind, table in tables.items():
        batches = list(split_rows(kind, table, places_of(table) % parts))
        packed.append(pa.Table.from_batches(batches, PACKED))
    return pa.concat_tables(packed)


def judge_places(rows: pa.Table, plan: Plan, checker: ValueChecker) -> pa.Table:
    """Judge the unsettled appends of some places, from `open_places`; return rows of TAGGED."""
    unsettled, stored = _tables(rows, UNSETTLED_AT), _tables(rows, STORED_AT)
    if not unsettled:  # a place that shares another's number
        return TAGGED.empty_table()
    stored.append(STORED.empty_table())
    return judged(checker.name, partial(checker.judge_places, unsettled, stored, plan.context))


def _load(rows: pa.Table) -> LogPart:
    """Unpack a part that holds values."""
    copies, damaged = _tables(rows, COPIED), _tables(rows, DAMAGED)
    entries = sum(entries_in(table) for table in copies)
    entries += sum(table.num_rows for table in damaged)
    entries += sum(int(payload.to_pybytes()) for payload in _payloads(rows, COUNTED))
    return load_part(_tables(rows, APPENDED), copies, damaged, entries)


def _payloads(rows: pa.Table, kind: str) -> list[pa.Buffer]:
    """Return the payloads of a kind, without copying them."""
    kinds = rows["kind"].to_pylist()
    column = rows["payload"]
    return [column[n].as_buffer() for n in range(len(kinds)) if kinds[n] == kind]


def _tables(rows: pa.Table, kind: str) -> list[pa.Table]:
    return [pa.ipc.open_stream(payload).read_all() for payload in _payloads(rows, kind)]


def _note(kind: str, numbers: Sequence[int], part: int | None = None) -> pa.Table:
    """Return a row of FINDINGS that is no finding, or none where there are no numbers.

    `operations` has the numbers, `offset` the part.
    """
    row = {"kind": kind, "count": 0, "operations": list(numbers), "offset": part}
    return pa.Table.from_pylist([row] if numbers else [], FINDINGS)
