"""Judges operations that arrive sorted by key, table after table, key after key.

Pure but for the clock that is passed in. It holds one table, and the key that may continue in the
next one; a key larger than memory would have to be judged in parts by its checker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shaketable.checkers.engine.judge import NOT_JUDGED, TAGGED, judged, tagged, unjudged
from shaketable.harness.contracts.plugins import CheckContext, Checker, KeysChecker
from shaketable.harness.history.schema import FINDINGS, OPERATIONS

TIMES = "times"
"""Kind of the row, of no checker, with the time that a task spent (Spent)."""

ROWS_AT_A_TIME = 65_536
"""Operations after which the deadline is checked, unless one key has more."""

Ints = npt.NDArray[np.int64]
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Spent:
    """What one task did, and how long reading files and judging took."""

    rows: int = 0
    read_s: float = 0.0
    judge_s: float = 0.0


class KeyJudge:
    """Takes tables of OPERATIONS_CODED in the order of their keys, and judges whole keys."""

    def __init__(self, checkers: Sequence[Checker], context: CheckContext) -> None:
        self._checkers = checkers
        self._context = context
        self._open: list[pa.Table] = []  # rows of one key, which may go on

    def add(self, table: pa.Table) -> Iterator[pa.Table]:
        """Take the next rows; yield findings (TAGGED) of the keys that are complete."""
        if not table.num_rows:
            return
        bounds = key_bounds(table)
        first = 0
        if self._open and _first_key(table) == _first_key(self._open[0]):
            first = 1
            self._open.append(table.slice(0, int(bounds[1])))
        if first < len(bounds) - 1:
            yield from self.finish()
            last = len(bounds) - 2
            if first < last:
                whole = table.slice(int(bounds[first]), int(bounds[last] - bounds[first]))
                yield from judge_keys(
                    self._checkers, whole, bounds[first : last + 1] - bounds[first], self._context
                )
            self._open = [table.slice(int(bounds[last]))]

    def finish(self) -> Iterator[pa.Table]:
        """Judge the last key: no more rows come."""
        rows, self._open = self._open, []
        if rows:
            table = _joined(rows)
            bounds = np.array([0, table.num_rows], np.int64)
            yield from judge_keys(self._checkers, table, bounds, self._context)


def judge_tables(
    tables: Iterable[pa.Table],
    checkers: Sequence[Checker],
    context: CheckContext,
    clock_s: Callable[[], float],
) -> Iterator[pa.Table]:
    """Judge all keys of tables (OPERATIONS_CODED) that arrive sorted by key.

    Yields:
        Rows of TAGGED; at the end one of kind TIMES, which is no finding.
    """
    judge = KeyJudge(checkers, context)
    spent = Spent()
    started = clock_s()
    for table in tables:
        read = clock_s()
        spent.read_s += read - started
        spent.rows += table.num_rows
        found = list(judge.add(table))
        started = clock_s()
        spent.judge_s += started - read
        yield from found
    found = list(judge.finish())
    spent.judge_s += clock_s() - started
    yield from found
    times = {"rows": spent.rows, "read_s": spent.read_s, "judge_s": spent.judge_s}
    row = {"checker": "", "kind": TIMES, "count": 0, "details": json.dumps(times)}
    yield pa.Table.from_pylist([row], TAGGED)


def judge_keys(
    checkers: Sequence[Checker], table: pa.Table, bounds: Ints, context: CheckContext
) -> Iterator[pa.Table]:
    """Judge whole keys of one table (OPERATIONS_CODED); yield rows of TAGGED."""
    for first, end in _some_keys(bounds):
        start = int(bounds[first])
        some = table.slice(start, int(bounds[end]) - start)
        yield from _judge_topics(checkers, some, bounds[first : end + 1] - start, context)


def _judge_topics(
    checkers: Sequence[Checker], table: pa.Table, bounds: Ints, context: CheckContext
) -> Iterator[pa.Table]:
    """Judge neighbouring keys together as long as the same checkers judge them."""
    if not context.topics:
        yield from _judge_some(checkers, table, bounds, context)
        return
    keys = table["key"].take(pa.array(bounds[:-1])).to_pylist()
    judging = [[c for c in checkers if context.judges(c.name, key)] for key in keys]
    first = 0
    for end in range(1, len(keys) + 1):
        if end == len(keys) or judging[end] != judging[first]:
            start = int(bounds[first])
            some = table.slice(start, int(bounds[end]) - start)
            yield from _judge_some(judging[first], some, bounds[first : end + 1] - start, context)
            first = end


def _some_keys(bounds: Ints) -> Iterator[tuple[int, int]]:
    """Split the keys into ranges of about ROWS_AT_A_TIME rows, at least one key each."""
    first, keys = 0, len(bounds) - 1
    while first < keys:
        end = int(np.searchsorted(bounds, bounds[first] + ROWS_AT_A_TIME, side="right")) - 1
        end = max(first + 1, end)
        yield first, end
        first = end


def _judge_some(
    checkers: Sequence[Checker], table: pa.Table, bounds: Ints, context: CheckContext
) -> Iterator[pa.Table]:
    plain: pa.Table | None = None
    for checker in checkers:
        if isinstance(checker, KeysChecker) and not _is_over(context):
            try:
                findings = checker.check_keys(table.combine_chunks(), bounds, context)
                yield tagged(checker.name, findings.cast(FINDINGS))
                continue
            except Exception as error:  # judged one by one, the keys show which one crashes
                _LOG.debug("keys judged one by one: checker=%s error=%s", checker.name, error)
        if plain is None:
            plain = table.cast(OPERATIONS)
        for number, (first, end) in enumerate(pairwise(bounds.tolist())):
            rows = {"operations": plain.slice(first, end - first)}
            if _is_over(context):
                message = f"the deadline passed before {_first_key(rows['operations'])} was judged"
                yield unjudged(checker.name, NOT_JUDGED, message, len(bounds) - 1 - number)
                break
            yield judged(checker.name, partial(checker.check, rows, context))


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Join tables into one of one chunk, column by column, so that a huge key is held once.

    Empties `tables`.
    """
    if len(tables) == 1:
        return tables.pop()
    schema = tables[0].schema
    columns = [[table.column(n) for table in tables] for n in range(len(schema))]
    tables.clear()
    joined = []
    while columns:
        chunks = [chunk for column in columns.pop(0) for chunk in column.chunks]
        whole = pa.chunked_array(chunks)
        if pa.types.is_dictionary(whole.type):
            whole = whole.unify_dictionaries()
        joined.append(whole.combine_chunks())
    return pa.table(joined, schema=schema)


def key_bounds(table: pa.Table) -> Ints:
    """Return the first row of each key, then the number of rows; there must be rows."""
    codes = table["key"].combine_chunks()
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.chunk(0)
    numbers = codes.indices.fill_null(-1).to_numpy()
    starts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    return np.concatenate([[0], starts, [len(numbers)]]).astype(np.int64)


def split_times(found: pa.Table) -> tuple[pa.Table, Spent]:
    """Separate the rows of kind TIMES from the findings of all tasks, and add them up."""
    is_time = np.asarray(found["kind"].to_numpy(zero_copy_only=False) == TIMES, dtype=np.bool_)
    total = Spent()
    for text in found.filter(pa.array(is_time))["details"].to_pylist():
        times = json.loads(text)
        total.rows += times["rows"]
        total.read_s += times["read_s"]
        total.judge_s += times["judge_s"]
    return found.filter(pa.array(~is_time)), total


def _is_over(context: CheckContext) -> bool:
    clock, deadline = context.clock_unix_s, context.search.deadline_unix_s
    return clock is not None and deadline is not None and clock() >= deadline


def _first_key(table: pa.Table) -> Any:
    key = table["key"][0].as_py()
    return "the only object" if key is None else key
