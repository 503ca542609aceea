"""Read operations that are tables already: Parquet files, and runs of this program."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.schema import OPERATIONS

NEEDED: Final = ("process", "f", "call_ns", "return_ns", "outcome")
"""Required columns; others are null if missing."""


def parquet_files(path: Path) -> tuple[Path, ...]:
    """Return the Parquet files of a file, folder or run, in order."""
    if path.is_file():
        return (path,)
    inside = path / "history" / "operations"
    return tuple(sorted((inside if inside.is_dir() else path).glob("**/*.parquet")))


def is_operations(path: Path) -> bool:
    """Return whether a Parquet file has exactly the columns of OPERATIONS.

    Raises:
        UsageError: it is not Parquet, or truncated.
    """
    schema = _opened(path).schema_arrow
    return bool(schema.remove_metadata().equals(OPERATIONS))


def row_count(paths: Iterable[Path]) -> int:
    """Count the operations of Parquet files by their metadata.

    Raises:
        UsageError: one is not Parquet, or truncated.
    """
    return sum(_opened(path).metadata.num_rows for path in paths)


def read_parquet(paths: Iterable[Path]) -> pa.Table:
    """Read operations from Parquet files; missing columns are null, other columns are dropped.

    Raises:
        UsageError: a file is not Parquet, is truncated, or holds no operations.
    """
    parts = [OPERATIONS.empty_table()]
    rows = 0
    paths = tuple(paths)
    first = paths[0].parent if len(paths) > 1 else paths[0]
    for path in paths:
        part = _read(path, rows)
        rows += part.num_rows
        parts.append(part)
    table = pa.concat_tables(parts)
    ids = Ids()
    ids.take(first, table["op"])
    ids.require_distinct(first)
    return table.sort_by([("key", "ascending"), ("call_ns", "ascending"), ("op", "ascending")])


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{path}: cut or no Parquet: {why}") from error


def _read(path: Path, rows_before: int) -> pa.Table:
    file = _opened(path)
    names = set(file.schema_arrow.names)
    if lacking := [name for name in NEEDED if name not in names]:
        what = "events; give the run's folder" if "time_ns" in names else "no operations"
        raise UsageError(f"{path}: {what} (no column {', '.join(lacking)})")
    try:
        given = file.read(columns=[name for name in OPERATIONS.names if name in names])
        columns = []
        for field in OPERATIONS:
            if field.name in names:
                columns.append(_cast(path, given[field.name], field))
            elif field.name == "op":
                ids = range(rows_before, rows_before + given.num_rows)
                columns.append(pa.chunked_array([pa.array(ids, pa.int64())]))
            else:
                columns.append(pa.chunked_array([pa.nulls(given.num_rows, field.type)]))
        table = pa.table(columns, schema=OPERATIONS)
    except (OSError, pa.ArrowException) as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{path}: cut or damaged: {why}") from error
    require_sound(path, table)
    return table


def _cast(path: Path, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Cast a column to its type in OPERATIONS.

    Raises:
        UsageError: a value cannot be cast.
    """
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        why = " ".join(str(error).split())
        raise UsageError(
            f"{path}: column {field.name}: expected {field.type}, not {column.type}: {why}"
        ) from error


class Ids:
    """The ids of operations, which must be distinct.

    A finding refers to an operation by its id alone.
    """

    def __init__(self) -> None:
        self._parts: list[npt.NDArray[np.int64]] = []

    def take(self, path: Path, ids: pa.ChunkedArray) -> None:
        """Add the ids of some rows of a file.

        Raises:
            UsageError: one is null.
        """
        if ids.null_count:
            raise UsageError(f"{path}: op is null in {ids.null_count} rows")
        self._parts.append(ids.to_numpy())

    def require_distinct(self, path: Path) -> None:
        """Compare all ids.

        Raises:
            UsageError: two are equal.
        """
        ids = np.sort(np.concatenate([np.empty(0, np.int64), *self._parts]))
        alike = np.flatnonzero(ids[1:] == ids[:-1])
        if len(alike):
            raise UsageError(f"{path}: several rows have the op {ids[alike[0]]}")


def require_sound(path: Path, table: pa.Table) -> None:
    """Refuse rows that no checker could use.

    Raises:
        UsageError: one line.
    """
    outcomes = pc.is_in(table["outcome"], pa.array(("ok", "fail", "info")))
    if not pc.all(outcomes, min_count=0).as_py():
        raise UsageError(f"{path}: an outcome is none of ok, fail, info")
    for name in ("process", "f", "call_ns"):
        if table[name].null_count:
            raise UsageError(f"{path}: {name} is null in {table[name].null_count} rows")
    returns = pc.or_(pc.is_valid(table["return_ns"]), pc.not_equal(table["outcome"], "ok"))
    if not pc.all(returns, min_count=0).as_py():
        raise UsageError(f"{path}: an operation is ok and has no return_ns")
    if pc.any(pc.less(table["return_ns"], table["call_ns"]), min_count=0).as_py():
        raise UsageError(f"{path}: an operation returned before it was called")
