"""Facts about a history that a check needs beforehand, without loading all of it.

Parquet of operations may be far larger than memory: only the columns needed here are read, batch by
batch, and the engine gets the files. Everything else is read completely, if it fits.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign.history import History
from shaketable.harness.history.foreign.read import (
    Format,
    PartitionBy,
    lacks,
    read_history,
    recognise,
)
from shaketable.harness.history.foreign.tables import (
    Ids,
    is_operations,
    parquet_files,
    require_sound,
    row_count,
)
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import OPERATIONS

SAMPLE_ROWS: Final = 100_000
"""Operations that are inspected to recognise a model."""
TEXT_MEMORY_FACTOR: Final = 8
"""Memory needed to read a text, relative to its size; measured 2 (JSON) to 7 (logs)."""
ROW_BYTES: Final = 400
"""Memory that a row takes while it is read and judged in one process."""

IDS_MAX: Final = 20_000_000
"""Up to this many operations, ids are checked for duplicates, which takes memory."""

_FACTS = ("op", "process", "f", "key", "call_ns", "return_ns", "outcome")


@dataclass(frozen=True, slots=True)
class Source:
    """A history, ready to be judged: `files` if it is Parquet already, else `operations`.

    Attributes:
        history: the history; without its operations if there are `files`.
        files: the Parquet files, or ().
        rows: number of operations.
        fs: the names of all operations.
        outcomes: how many operations have which outcome.
        keys: number of keys.
        clients: number of processes.
        sample: the start of the history.
    """

    history: History
    files: tuple[Path, ...]
    rows: int
    fs: frozenset[str]
    outcomes: dict[str, int]
    keys: int
    clients: int
    sample: pa.Table

    def find(self, ops: frozenset[int]) -> dict[int, dict[str, object]]:
        """Return the rows of these operations, by id."""
        wanted = pa.array(sorted(ops), pa.int64())
        found: dict[int, dict[str, object]] = {}
        if ops:
            for batch in _batches(self.files, self.history.operations, OPERATIONS.names):
                rows = batch.filter(pc.is_in(batch["op"], wanted)).to_pylist()
                found |= {row["op"]: row for row in rows}
        return found


def open_source(
    path: Path, partition_by: PartitionBy | None = None, free_bytes: int | None = None
) -> Source:
    """Inspect a history, and read it unless it is Parquet of operations.

    Args:
        path: its file or folder.
        partition_by: as for `read_history`.
        free_bytes: memory that reading may take; None: what the machine has free.

    Raises:
        UsageError: it cannot be read, or would not fit into memory; one line.
    """
    form = recognise(path)
    files: tuple[Path, ...] = ()
    if form in (Format.PARQUET, Format.RUN) and partition_by != "none":
        files = parquet_files(path)
        files = files if files and all(map(is_operations, files)) else ()
    if files:
        hole = lacks(RunFolder(path)) if form is Format.RUN else None
        history = History(path, form.value, OPERATIONS.empty_table(), row_count(files), hole=hole)
    else:
        _require_room(path, form, free_memory_bytes() if free_bytes is None else free_bytes)
        history = read_history(path, partition_by)
    return _with_facts(history, files)


def free_memory_bytes() -> int:
    """Return how much memory is available to this process, as the machine reports it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if "MemAvailable" in line)
    except (OSError, StopIteration, ValueError, IndexError):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return free


def _require_room(path: Path, form: Format, free_bytes: int) -> None:
    """Refuse what would not fit into memory.

    Raises:
        UsageError: one line that states what to do instead.
    """
    if path.is_dir() or form is Format.PARQUET:
        needed = sum(map(_rows_bytes, parquet_files(path)))
    else:
        needed = path.stat().st_size * TEXT_MEMORY_FACTOR
    if needed > free_bytes:
        raise UsageError(
            f"{path}: reading it takes about {needed / 1e9:.1f} GB of memory, and"
            f" {free_bytes / 1e9:.1f} GB are free; split it by key, or give it as Parquet with the"
            " columns of OPERATIONS and say --engine spark"
        )


def _rows_bytes(path: Path) -> int:
    return row_count((path,)) * ROW_BYTES


def _with_facts(history: History, files: tuple[Path, ...]) -> Source:
    fs: set[str] = set()
    keys: set[str | None] = set()
    clients: set[int] = set()
    outcomes: Counter[str] = Counter()
    rows = 0
    ids = Ids()
    for batch in _batches(files, history.operations, _FACTS):
        rows += batch.num_rows
        if files:  # `read_history` has checked the others
            require_sound(history.path, batch)
            if history.events <= IDS_MAX:
                ids.take(history.path, batch["op"])
        for into, name in ((keys, "key"), (clients, "process"), (fs, "f")):
            into.update(pc.unique(batch[name]).to_pylist())
        for count in pc.value_counts(batch["outcome"]).to_pylist():
            outcomes[count["values"]] += count["counts"]
    ids.require_distinct(history.path)
    sample = next(_batches(files, history.operations, OPERATIONS.names), OPERATIONS.empty_table())
    return Source(
        history=history,
        files=files,
        rows=rows,
        fs=frozenset(fs),
        outcomes={name: outcomes[name] for name in ("ok", "fail", "info")},
        keys=len(keys),
        clients=len(clients),
        sample=sample.slice(0, SAMPLE_ROWS),
    )


def _batches(
    files: tuple[Path, ...], operations: pa.Table, names: tuple[str, ...] | list[str]
) -> Iterator[pa.Table]:
    if not files:
        yield operations.select(names)
    for path in files:
        try:
            for batch in pq.ParquetFile(path).iter_batches(SAMPLE_ROWS, columns=list(names)):
                yield pa.Table.from_batches([batch]).select(names)
        except (OSError, pa.ArrowException) as error:
            why = " ".join(str(error).split())
            raise UsageError(f"{path}: cut or damaged: {why}") from error
