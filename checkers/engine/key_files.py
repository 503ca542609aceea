"""Plans which files of operations are judged together, by the keys in their footers.

An export writes files sorted by key, each of whole keys except for a huge one (see
harness.history.operation_files): those are judged as they are, without a shuffle or sort. Files of
other origin have no such footer and are sorted first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.history.operation_files import FileKeys, read_keys
from shaketable.harness.history.schema import OPERATIONS, OPERATIONS_CODED

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
