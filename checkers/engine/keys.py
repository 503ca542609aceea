"""Operations by key: which files are judged together, and judging them key after key.

An export writes files sorted by key, each of whole keys except for a huge one (see
harness.history.operation_files): those are judged as they are, without a shuffle or sort. Files of
other origin have no such footer and are sorted first.

Judging is pure but for the clock that is passed in. It holds one table, and the key that may
continue in the next one; a key larger than memory would have to be judged in parts by its checker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import NOT_JUDGED, TAGGED, judged, tagged, unjudged
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker, KeysChecker
from shaketable.harness.history.operation_files import FileKeys, read_keys
from shaketable.harness.history.schema import FINDINGS, OPERATIONS, OPERATIONS_CODED

TASK_ROWS_MIN = 500_000
TASK_ROWS_MAX = 5_000_000
"""Operations of one task, about: enough to be worth a task, which costs as much as 100,000
operations, and few enough to balance."""
TASKS_A_WORKER = 4

TEXTS = [field.name for field in OPERATIONS if field.type == pa.string()]


@dataclass(frozen=True, slots=True)
class Task:
    """Files that hold whole keys together, in the order of their keys."""

    paths: tuple[str, ...]
    rows: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All files of a job: in tasks, or, if they are not sorted by key, as a list.

    Larger tasks come first, so that none is left to run alone at the end.
    """

    tasks: tuple[Task, ...]
    unsorted: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    rows: int
    keys: FileKeys | None


def plan(paths: Sequence[Path], rows_a_task: int | None = None, workers: int = 1) -> Plan:
    """Read the footers of files of OPERATIONS and plan how they are judged.

    Args:
        paths: the files, in the order of their keys.
        rows_a_task: about how many operations a task gets; None: chosen by their total.
        workers: how many tasks run at a time.

    Raises:
        HarnessError: a file cannot be read.
    """
    files = [_read_footer(path) for path in paths]
    if rows_a_task is None:
        each = sum(file.rows for file in files) // (TASKS_A_WORKER * workers)
        rows_a_task = min(max(each, TASK_ROWS_MIN), TASK_ROWS_MAX)
    known = [(file.keys, file) for file in files if file.keys is not None]
    if len(known) < len(files) or not _are_disjoint([keys for keys, _ in known]):
        return Plan((), tuple(paths))
    tasks: list[Task] = []
    chain: list[_File] = []  # files that share keys
    gathered: list[_File] = []
    for keys, file in known:
        chain.append(file)
        if keys.is_cut:
            continue
        size = sum(each.rows for each in gathered)
        if gathered and size + sum(each.rows for each in chain) > rows_a_task:
            tasks.append(_task(gathered))
            gathered = []
        gathered += chain
        chain = []
    if gathered:
        tasks.append(_task(gathered))
    return Plan(tuple(sorted(tasks, key=lambda task: -task.rows)), ())


def read_files(paths: Sequence[str]) -> Iterator[pa.Table]:
    """Read files one after the other, as tables of OPERATIONS_CODED.

    Raises:
        HarnessError: one cannot be read.
    """
    for path in paths:
        try:
            with pq.ParquetFile(path, read_dictionary=TEXTS) as file:
                yield coded(file.read(OPERATIONS.names))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise unreadable(path, error) from error


def coded(table: pa.Table) -> pa.Table:
    """Return a table of OPERATIONS as OPERATIONS_CODED, each column in one chunk.

    Raises:
        ArrowException, KeyError: it does not have the columns of OPERATIONS.
    """
    chosen = table.select(OPERATIONS.names).replace_schema_metadata(None)
    if chosen.schema != OPERATIONS_CODED:
        plain = chosen.cast(OPERATIONS)
        for place, field in enumerate(OPERATIONS_CODED):
            if pa.types.is_dictionary(field.type):
                column = plain.column(place).dictionary_encode()
                plain = plain.set_column(place, field, column)
        chosen = plain
    if chosen.num_rows == 0:
        return OPERATIONS_CODED.empty_table()
    return chosen.unify_dictionaries().combine_chunks()


def unreadable(path: object, error: Exception) -> HarnessError:
    """Return the error, one line, for a file of operations that cannot be read."""
    return HarnessError(f"operations {path} cannot be read: {error}")


def _read_footer(path: Path) -> _File:
    try:
        metadata = pq.read_metadata(path)
        return _File(path, metadata.num_rows, read_keys(metadata))
    except (OSError, pa.ArrowException, ValueError) as error:
        raise unreadable(path, error) from error


def _are_disjoint(keys: Sequence[FileKeys]) -> bool:
    """Return whether the files are ordered by key and share keys only where they declare it."""
    if keys and (keys[0].is_begun or keys[-1].is_cut):
        return False
    for before, after in pairwise(keys):
        if before.is_cut != after.is_begun:
            return False
        if before.is_cut:
            if before.last != after.first:
                return False
        elif not _rank(before.last) < _rank(after.first):
            return False
    return True


def _rank(key: str | None) -> tuple[bool, str]:
    return key is not None, key or ""


def _task(files: Sequence[_File]) -> Task:
    paths = tuple(str(file.path.resolve()) for file in files)
    return Task(paths, sum(file.rows for file in files))


# Operations that arrive sorted by key.

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
