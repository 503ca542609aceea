"""Read one recorded history of any known program, as OPERATIONS.

One that is a JSON array has events, or operations, as its members, as elle-cli's histories do.

Facts that a check needs beforehand are found without loading all of it. Parquet of operations may
be far larger than memory: only the columns needed here are read, batch by batch, and the engine
gets the files. Everything else is read completely, if it fits.
"""

from __future__ import annotations

import enum
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.history.foreign.columns import Columns
from shaketable.harness.history.foreign.history import (
    NOT_UTF8,
    Damage,
    FaultSpan,
    History,
    damage_text,
    read_lines,
)
from shaketable.harness.history.foreign.jepsen import (
    CONSOLE_LINE,
    MARK,
    Recorder,
    read_console,
    read_edn,
)
from shaketable.harness.history.foreign.jsonl import EventReader, OperationReader
from shaketable.harness.history.foreign.tables import (
    Ids,
    is_operations,
    parquet_files,
    read_parquet,
    require_sound,
    row_count,
)
from shaketable.harness.history.foreign.texts import (
    CALL_LINE,
    INTERVAL_LINE,
    KIND_LINE,
    OBJECT_LINE,
    RULE_LINE,
    STEP_LINE,
    TUPLE_LINE,
    CallReader,
    IntervalReader,
    SessionReader,
    TupleReader,
)
from shaketable.harness.history.run_folder import RunFolder, UnreadableError, read_results
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.history.segments import MAGIC

PartitionBy = Literal["key", "none"]
"""`key`: values without a key are tuples [key value]. `none`: all operations are on one object."""


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
        raise UsageError(f"{path}: its history was not exported; {PROGRAM} analyze {path}")
    operations = read_parquet(files)
    return History(path, form.value, operations, operations.num_rows, hole=lacks(folder))


def lacks(folder: RunFolder) -> str | None:
    """Return what a run's recording is known to lack, as found when it was judged."""
    if not folder.results_json.exists():
        return "the run was never judged, so it is not known whether its recording is complete"
    try:
        return read_results(folder).incomplete
    except UnreadableError as error:
        raise UsageError(f"{folder.results_json}: damaged: {error}") from error


class _Reader(Protocol):
    """What has read a text: its operations, and what is known of them."""

    @property
    def columns(self) -> Columns: ...
    @property
    def events(self) -> int: ...
    @property
    def is_timed(self) -> bool: ...
    @property
    def is_ordered(self) -> bool:
        """Whether the lines are in time order, so that a truncated text is a prefix in time."""
        ...

    @property
    def model(self) -> str | None: ...
    @property
    def initial(self) -> str | None: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def faults(self) -> tuple[FaultSpan, ...]: ...


def _read_text(path: Path, form: Format, *, splits_keys: bool) -> History:
    reader, damage, cut = _taken(path, form, splits_keys=splits_keys)
    if len(reader.columns) == 0 and damage:
        raise UsageError(f"{damage_text(path, damage)} (taken for {form.value})")
    return _joined(path, form, reader, damage, cut)


def _taken(
    path: Path, form: Format, *, splits_keys: bool
) -> tuple[_Reader, list[Damage], Damage | None]:
    """Return the reader that has read a text, the unreadable places, and where its end is cut."""
    if form in (Format.EDN, Format.CONSOLE):
        is_edn = form is Format.EDN
        recorder = Recorder("event" if is_edn else "line", splits_keys=splits_keys)
        return recorder, *(read_edn if is_edn else read_console)(path, recorder)
    if form in (Format.EVENT_LINES, Format.EVENT_ARRAY):
        is_array = form is Format.EVENT_ARRAY
        events = EventReader("event" if is_array else "line", splits_keys=splits_keys)
        return events, *(read_array if is_array else read_lines)(path, events.take)
    if form in (Format.OPERATION_LINES, Format.OPERATION_ARRAY):
        operations = OperationReader()
        read = read_array if form is Format.OPERATION_ARRAY else read_lines
        return operations, *read(path, operations.take)
    if form in (Format.CALLS, Format.INTERVALS):
        objects = CallReader() if form is Format.CALLS else IntervalReader()
        return objects, *read_lines(path, objects.take)
    sessions = SessionReader() if form is Format.SESSIONS else TupleReader()
    damage, cut = read_lines(path, sessions.take)
    sessions.finish()
    return sessions, damage, cut


def _joined(
    path: Path, form: Format, reader: _Reader, damage: list[Damage], cut: Damage | None
) -> History:
    """Return what a text holds, and what it lacks.

    A truncated end leaves a prefix in time only if the lines are in time order.
    """
    if cut is not None and not reader.is_ordered:
        damage, cut = [*damage, cut], None
    hole = damage_text(path, damage)
    columns, problem = reader.columns, reader.problem
    notes = (*columns.renumber(), *columns.name_notes(), *reader.notes)
    return History(
        path=path,
        format=form.value,
        operations=columns.table(),
        events=reader.events,
        cut=damage_text(path, [cut]) if cut else None,
        hole=hole or (None if problem is None else f"{path.name}, {problem}"),
        notes=notes,
        is_timed=reader.is_timed,
        faults=reader.faults,
        model=reader.model,
        initial=reader.initial,
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
# | `[{"` | a JSON array of the same |
# | a line `# @object ...`, or `[1] call f` | calls and returns of an object |
# | `r x 1`, `w x 1` | sessions of transactions |
# | `r(x,1,0,0)`, `w(x,1,0,0)` | the same, an operation a line |
# | a line `# stack`, then lines with a method and two times | operations of an object |
# | `{:`, `[{`, `({`, `#tag{` (after comments) | EDN |
# | a line like `3 :invoke :read nil` near the start | a Jepsen console log |

LOOKED_AT_BYTES: Final = 1 << 18
"""How many bytes of a file are inspected to recognise it."""
LINES_OF_HEAD: Final = 50
"""Lines among which one may name the object of a text."""


class Format(enum.Enum):
    """A format that `read_history` reads; the value is its name for people."""

    RUN = "a run of shaketable"
    PARQUET = "Parquet of operations"
    EVENT_LINES = "JSON lines of events"
    OPERATION_LINES = "JSON lines of operations"
    EVENT_ARRAY = "a JSON array of events"
    OPERATION_ARRAY = "a JSON array of operations"
    CALLS = "calls and returns of an object"
    INTERVALS = "operations of an object, with start and end"
    SESSIONS = "sessions of transactions"
    TUPLES = "transactions of sessions, an operation a line"
    EDN = "Jepsen EDN"
    CONSOLE = "Jepsen console log"
    EMPTY = "an empty file"


_EDN = re.compile(
    r"(?:[\s,]|;[^\n]*\n)*(?:[\[(][\s,]*(?:;[^\n]*\n[\s,]*)*)?(?:#[\w.]+\s*)?[\[({][\s:}\]){]"
)
_EMPTY_SEQUENCE = re.compile(r"(?:[\s,]|;[^\n]*(?:\n|$))*(?:\[[\s,]*\]|\([\s,]*\))?\s*")
_KNOWN: Final = (
    "known are: a run's folder, Parquet of operations, events or operations in JSON (lines or an"
    " array), Jepsen's history.edn, Jepsen's console log, texts of calls, sessions or intervals"
    " (docs/checking.md)"
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
        is_operation = _is_operation(stripped.partition("\n")[0])
        return Format.OPERATION_LINES if is_operation else Format.EVENT_LINES
    if match := re.match(r'\[\s*(?=\{\s*")', stripped):
        is_operation = _is_operation(stripped[match.end() :].partition("}")[0])
        return Format.OPERATION_ARRAY if is_operation else Format.EVENT_ARRAY
    if _EDN.match(text):
        return Format.EDN
    lines = text.splitlines()
    if (form := _form_of_lines(lines)) is not None:
        return form
    if any(CONSOLE_LINE.match(line) for line in lines):
        return Format.CONSOLE
    first = " ".join(stripped.partition("\n")[0].split())
    shown = first if len(first) <= 60 else first[:59] + "…"
    if not shown.isprintable():
        shown = "no text"
    raise UsageError(f"{path}: no history that is known ({shown}); {_KNOWN}")


def _form_of_lines(lines: list[str]) -> Format | None:
    """Return the format of a text by its first line that is no comment, None if it has none."""
    if any(OBJECT_LINE.match(line) for line in lines[:LINES_OF_HEAD]):
        return Format.CALLS
    head = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
    first = next((line for line in head if not RULE_LINE.match(line)), "")
    is_named = any(KIND_LINE.match(line) for line in lines[:1])
    for form, fits in (
        (Format.CALLS, CALL_LINE.match(first)),
        (Format.TUPLES, TUPLE_LINE.match(first)),
        (Format.SESSIONS, STEP_LINE.match(first)),
        (Format.INTERVALS, is_named and INTERVAL_LINE.match(first)),
    ):
        if fits:
            return form
    return None


def _is_operation(line: str) -> bool:
    """Return whether a line of JSON is an operation; a damaged one is told by its names."""
    try:
        given = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return '"call_ns"' in line
    return "call_ns" in given


# A history that is one JSON array.

_BLANK: Final = re.compile(r"\s*")
_NEXT_MEMBER: Final = re.compile(r"(?<=[\n,])\s*(?=\{)")


def read_array(
    path: Path, take: Callable[[bytes, int], None]
) -> tuple[list[Damage], Damage | None]:
    """Pass each member's text and number to `take`; return damage, and where the end is missing.

    Raises:
        OSError: the file cannot be read.
    """
    raw = path.read_bytes()
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return [Damage(line, error.start, NOT_UTF8)], None
    return _Array(text.removeprefix(MARK), take).read()


class _Array:
    """The text of an array, read member by member."""

    def __init__(self, text: str, take: Callable[[bytes, int], None]) -> None:
        self._text, self._take = text, take
        self._damage: list[Damage] = []
        self._decoder = json.JSONDecoder()

    def read(self) -> tuple[list[Damage], Damage | None]:
        """Read all members."""
        text, number = self._text, 0
        at = self._skip(self._skip(0) + 1)
        while at < len(text) and text[at] != "]":
            number += 1
            try:
                _, end = self._decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError) as error:
                after = _NEXT_MEMBER.search(text, at + 1)
                why = getattr(error, "msg", "nested too deeply")
                if after is None:
                    return self._damage, self._place(at, f"cut, or no JSON: {why}")
                self._damage.append(self._place(at, f"no JSON: {why}"))
                at = after.end()
                continue
            self._pass_on(at, end, number)
            at = self._skip(end)
            if at < len(text) and text[at] == ",":
                at = self._skip(at + 1)
            elif at < len(text) and text[at] != "]":
                self._damage.append(self._place(at, "a comma is missing"))
        if at >= len(text):
            return self._damage, self._place(len(text), "cut: nothing closes the history with ']'")
        if (end := self._skip(at + 1)) < len(text):
            self._damage.append(self._place(end, "text after the end of the array"))
        return self._damage, None

    def _pass_on(self, at: int, end: int, number: int) -> None:
        try:
            self._take(self._text[at:end].encode(), number)
        except msgspec.MsgspecError as error:
            self._damage.append(self._place(at, f"no event and no operation: {error}"))
        except RecursionError:
            self._damage.append(self._place(at, "nested too deeply"))
        except ValueError as error:
            self._damage.append(self._place(at, str(error)))

    def _skip(self, at: int) -> int:
        match = _BLANK.match(self._text, at)
        return at if match is None else match.end()

    def _place(self, at: int, why: str) -> Damage:
        before = self._text[:at]
        return Damage(before.count("\n") + 1, len(before.encode()), why)


# What a check needs to know beforehand.

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
