"""Read one recorded history of any known program, as OPERATIONS."""

from __future__ import annotations

import enum
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.foreign.history import Damage, History, damage_text
from shaketable.harness.history.foreign.jepsen import CONSOLE_LINE, Recorder, read_console, read_edn
from shaketable.harness.history.foreign.jsonl import EventReader, OperationReader, read_lines
from shaketable.harness.history.foreign.tables import parquet_files, read_parquet
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.history.segments import MAGIC

PartitionBy = Literal["key", "none"]
"""`key`: values without a key are tuples [key value]. `none`: all operations are on one object."""

PAIRS_HINT: Final = (
    "every value is a pair [key value]: if these are independent keys, say --partition-by key"
)


def read_history(path: Path | str, partition_by: PartitionBy | None = None) -> History:
    """Read a history from a file or folder of any known format (see `recognise`).

    Args:
        path: a run's folder, Parquet, JSON lines, Jepsen EDN, or a Jepsen console log.
        partition_by: how operations are assigned to objects; None: by their key.

    Raises:
        UsageError: it does not exist, has no known format, or nothing in it can be read.
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
    """Return what a run's recording is known to lack, as found when it was judged."""
    try:
        results = msgspec.json.decode(folder.results_json.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return "the run was never judged, so it is not known whether its recording is complete"
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
        raise UsageError(f"{damage_text(path, damage)} (taken for {form.value})")
    return _joined(path, form, reader, damage, cut)


def _joined(
    path: Path,
    form: Format,
    reader: Recorder | EventReader | OperationReader,
    damage: list[Damage],
    cut: Damage | None,
) -> History:
    """Return what a text holds, and what it lacks.

    A truncated end leaves a prefix in time only if the lines are in time order.
    """
    if cut is not None and not reader.is_ordered:
        damage, cut = [*damage, cut], None
    hole = damage_text(path, damage)
    notes = (*reader.columns.renumber(), *reader.columns.name_notes())
    if isinstance(reader, OperationReader):
        faults = tuple(sorted(reader.faults, key=lambda span: span.start_ns))
    else:
        paired = reader.paired
        problem = paired.pairing.problem
        hole = hole or (None if problem is None else f"{path.name}, {problem}")
        notes = (*notes, *paired.notes)
        faults = paired.faults.spans()
        if paired.all_are_pairs and not paired.splits_keys:
            notes = (*notes, PAIRS_HINT)
    return History(
        path=path,
        format=form.value,
        operations=reader.columns.table(),
        events=reader.events,
        cut=damage_text(path, [cut]) if cut else None,
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


# Recognising a history's format by its content.
#
# | starts with | is |
# |---|---|
# | a folder with campaign.toml or history/operations | a run of ours |
# | a folder with *.parquet, or the bytes PAR1 | Parquet of OPERATIONS |
# | `{"` | JSON lines: operations if the line has "call_ns", else events |
# | `{:`, `[{`, `({`, `#tag{` (after comments) | EDN |
# | a line like `3 :invoke :read nil` near the start | a Jepsen console log |

LOOKED_AT_BYTES: Final = 1 << 18
"""How many bytes of a file are inspected to recognise it."""


class Format(enum.Enum):
    """A format that `read_history` reads; the value is its name for people."""

    RUN = "a run of shaketable"
    PARQUET = "Parquet of operations"
    EVENT_LINES = "JSON lines of events"
    OPERATION_LINES = "JSON lines of operations"
    EDN = "Jepsen EDN"
    CONSOLE = "Jepsen console log"
    EMPTY = "an empty file"


_EDN = re.compile(
    r"(?:[\s,]|;[^\n]*\n)*(?:[\[(][\s,]*(?:;[^\n]*\n[\s,]*)*)?(?:#[\w.]+\s*)?[\[({][\s:}\]){]"
)
_EMPTY_SEQUENCE = re.compile(r"(?:[\s,]|;[^\n]*(?:\n|$))*(?:\[[\s,]*\]|\([\s,]*\))?\s*")
_KNOWN: Final = (
    "known are: a run's folder, Parquet of operations, JSON lines of events or operations, Jepsen's"
    " history.edn, Jepsen's console log"
)
_OTHERS: Final = (
    (MAGIC, "a recording of one process: give the folder of its run"),
    (b"JEPSEN", "Jepsen's binary store: give the history.edn or the jepsen.log beside it"),
    (b"\x1f\x8b", "compressed: give it unpacked (gunzip)"),
    (b"\x28\xb5\x2f\xfd", "compressed: give it unpacked (unzstd)"),
    (b"BZh", "compressed: give it unpacked (bunzip2)"),
    (b"\xfd7zXZ\x00", "compressed: give it unpacked (unxz)"),
    (b"\xff\xfe", "text in UTF-16: give it in UTF-8 (iconv -f utf-16 -t utf-8)"),
    (b"PK\x03\x04", "an archive: give it unpacked (unzip)"),
    (b"<?xml", "XML"),
    (b"<!DOCTYPE", "a web page"),
)


def recognise(path: Path) -> Format:
    """Return the format of a file or folder.

    Raises:
        UsageError: it does not exist, cannot be read, or has no known format; one line.
    """
    try:
        if path.is_dir():
            return _folder(path)
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe may block forever
            raise UsageError(f"{path}: is no file but a pipe or device; write it to a file first")
        with path.open("rb") as file:
            begin = file.read(LOOKED_AT_BYTES)
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file or folder") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if begin.startswith(b"PAR1"):
        return Format.PARQUET
    for magic, what in _OTHERS:
        if begin.startswith(magic):
            raise UsageError(f"{path}: {what}")
    return _text(path, begin)


def _folder(path: Path) -> Format:
    if (path / "campaign.toml").exists() or (path / "history" / "operations").is_dir():
        return Format.RUN
    if any(path.glob("**/*.parquet")):
        return Format.PARQUET
    inside = sorted(each.name for each in path.iterdir())
    for name in ("history.edn", "history.jsonl"):
        if name in inside:
            raise UsageError(f"{path}: a folder; give {path / name}")
    names = ", ".join(inside[:3]) + (", ..." if len(inside) > 3 else "")
    raise UsageError(
        f"{path}: a folder that is neither a run nor holds *.parquet; give its files"
        f" ({names or 'it is empty'})"
    )


def _text(path: Path, begin: bytes) -> Format:
    text = begin.decode(errors="replace").removeprefix("\ufeff")
    stripped = text.lstrip()
    if _EMPTY_SEQUENCE.fullmatch(text):
        return Format.EMPTY
    if stripped.startswith("{") and stripped[1:].lstrip()[:1] == '"':
        return _json_lines(stripped)
    if stripped.startswith("[") and re.match(r'\[\s*\{\s*"', stripped):
        raise UsageError(f"{path}: a JSON array; give one object a line (jq -c '.[]')")
    if _EDN.match(text):
        return Format.EDN
    if any(CONSOLE_LINE.match(line) for line in text.splitlines()):
        return Format.CONSOLE
    first = " ".join(stripped.partition("\n")[0].split())
    shown = first if len(first) <= 60 else first[:59] + "…"
    if not shown.isprintable():
        shown = "no text"
    raise UsageError(f"{path}: no history that is known ({shown}); {_KNOWN}")


def _json_lines(text: str) -> Format:
    line = text.partition("\n")[0]
    try:
        given = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # damaged: decide by the names in the text
        is_operation = '"call_ns"' in line
    else:
        is_operation = "call_ns" in given
    return Format.OPERATION_LINES if is_operation else Format.EVENT_LINES
