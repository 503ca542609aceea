"""Reads one recorded history, whoever recorded it, as OPERATIONS."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign.history import Damage, History, told
from shaketable.harness.history.foreign.jepsen import Recorder, read_console, read_edn
from shaketable.harness.history.foreign.jsonl import EventReader, OperationReader, read_lines
from shaketable.harness.history.foreign.recognise import Format, recognise
from shaketable.harness.history.foreign.tables import parquet_files, read_parquet
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import OPERATIONS

PartitionBy = Literal["key", "none"]
"""`key`: values without a key are tuples [key value]. `none`: all operations are on one object."""

PAIRS_HINT: Final = (
    "every value is a pair [key value]: if these are independent keys, say --partition-by key"
)


def read_history(path: Path | str, partition_by: PartitionBy | None = None) -> History:
    """Read a history from a file or folder of any known format (see `recognise`).

    Args:
        path: a run's folder, Parquet, JSON lines, Jepsen EDN, or a Jepsen console log.
        partition_by: how operations are told apart by object; None: by the key they have.

    Raises:
        UsageError: it is not there, is of no known format, or nothing in it can be read.
    """
    path = Path(path)
    form = recognise(path)
    try:
        if form is Format.EMPTY:
            history = History(path, form.value, OPERATIONS.empty_table(), 0)
        elif form in (Format.RUN, Format.PARQUET):
            history = _read_table(path, form)
        else:
            history = _read_text(path, form, splits_keys=partition_by == "key")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    if partition_by == "none":
        history = replace(history, operations=_without_keys(history.operations))
    return history


def _read_table(path: Path, form: Format) -> History:
    if form is Format.PARQUET:
        operations = read_parquet(parquet_files(path))
        return History(path, form.value, operations, operations.num_rows)
    folder = RunFolder(path)
    files = parquet_files(path)
    if not files:
        raise UsageError(f"{path}: its history was not exported; ./shaketable analyze {path}")
    operations = read_parquet(files)
    return History(path, form.value, operations, operations.num_rows, hole=lacks(folder))


def lacks(folder: RunFolder) -> str | None:
    """Say what a run's recording is known to lack, as was found when it was judged."""
    try:
        results = msgspec.json.decode(folder.results_json.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return "the run was never judged, so nothing says whether its recording is whole"
    except msgspec.DecodeError as error:
        raise UsageError(f"{folder.results_json}: damaged: {error}") from error
    lacks = results.get("incomplete")
    return None if lacks is None else str(lacks)


def _read_text(path: Path, form: Format, *, splits_keys: bool) -> History:
    reader: Recorder | EventReader | OperationReader
    if form is Format.EDN:
        reader = Recorder("event", splits_keys=splits_keys)
        damage, cut = read_edn(path, reader)
    elif form is Format.CONSOLE:
        reader = Recorder("line", splits_keys=splits_keys)
        damage, cut = read_console(path, reader)
    elif form is Format.EVENT_LINES:
        reader = EventReader(splits_keys=splits_keys)
        damage, cut = read_lines(path, reader.take)
    else:
        reader = OperationReader()
        damage, cut = read_lines(path, reader.take)
    if len(reader.columns) == 0 and damage:
        raise UsageError(f"{told(path, damage)} (taken for {form.value})")
    return _joined(path, form, reader, damage, cut)


def _joined(
    path: Path,
    form: Format,
    reader: Recorder | EventReader | OperationReader,
    damage: list[Damage],
    cut: Damage | None,
) -> History:
    """Say what a text holds, and what it lacks.

    A cut end leaves a whole prefix only where the lines stand in the order of time.
    """
    if cut is not None and not reader.is_ordered:
        damage, cut = [*damage, cut], None
    hole = told(path, damage)
    notes = (*reader.columns.number_anew(), *reader.columns.names_told())
    if isinstance(reader, OperationReader):
        faults = tuple(sorted(reader.faults, key=lambda span: span.start_ns))
    else:
        problem = reader.pairing.problem
        hole = hole or (None if problem is None else f"{path.name}, {problem}")
        notes = (*notes, *reader.pairing.notes)
        faults = reader.faults.spans()
        if reader.asking and reader.pairs == reader.asking and not reader.splits_keys:
            notes = (*notes, PAIRS_HINT)
    return History(
        path=path,
        format=form.value,
        operations=reader.columns.table(),
        events=reader.events,
        cut=told(path, [cut]) if cut else None,
        hole=hole,
        notes=notes,
        is_timed=reader.is_timed,
        faults=faults,
    )


def _without_keys(operations: pa.Table) -> pa.Table:
    place = OPERATIONS.get_field_index("key")
    keys = pa.nulls(operations.num_rows, pa.string())
    alike = operations.set_column(place, OPERATIONS.field("key"), keys)
    return alike.sort_by([("call_ns", "ascending"), ("op", "ascending")])
