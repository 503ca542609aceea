"""Export a run's recordings to the two tables that checkers and reports read.

Source: DESIGN.md decision 14; jepsen.store for the layout of a run's folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history import segments
from shaketable.harness.history.event_kernels import LINE_BYTES_MAX, VALUE_BYTES_MAX, lines, values
from shaketable.harness.history.operation_files import OperationParts, text_column
from shaketable.harness.history.rounds import NotInOrder, Recordings, Round
from shaketable.harness.history.run_folder import RunFolder, replace_folder, temp_beside
from shaketable.harness.history.schema import (
    EVENT_ROW,
    EVENT_TEXTS,
    EVENTS,
    NEMESIS_PROCESS,
    NO_TEXT,
    OPERATIONS,
)
from shaketable.harness.history.segments import SegmentEnd

THREADS_MAX = 8
"""More do not help: one thread finds the order of all events."""
OPERATION_BYTES_USUAL = 90
"""Usual size of an operation's two records in a segment; decides on the number of files."""

GIVEN_UP = pa.schema([("process", pa.int64()), ("time_ns", pa.int64())])
"""When processes gave up on indeterminate operations; each process does so once."""

NOT_UNDONE = "not undone: the run was cut short"
NOT_BEGUN = "its start is missing in the history"


@dataclass(frozen=True, slots=True)
class Exported:
    """A run's exported history.

    Attributes:
        folder: the run's folder.
        nemesis: the nemesis' rows of schema.EVENTS.
        windows: the injected faults.
        incomplete: why events are known to be missing, or None.
        end_ns: when the run ended.
    """

    folder: RunFolder
    nemesis: pa.Table
    windows: tuple[FaultWindow, ...]
    incomplete: str | None
    end_ns: int

    @property
    def events(self) -> pa.Table:
        """schema.EVENTS by index, read from its file."""
        return load_events(self.folder)

    @property
    def operations(self) -> pa.Table:
        """schema.OPERATIONS by (key, call_ns), read from its files."""
        return load_operations(self.folder)


def export(folder: RunFolder, *, with_events: bool = True) -> Exported:
    """Merge and pair the segments; write events.parquet, operations/*.parquet, history.jsonl.

    Segments are read in pieces, and operations are partitioned by key, on disk if they are many, so
    memory is bounded. A check needs only the operations: without events the two files of events are
    left as they are, and `export_events` writes them later.

    Works for a killed run, whose run.json may be absent. Of run.json it reads "segments"
    ({"worker-0.seg": events written, or null for a worker that died}) and "phases" ([{"name",
    "start_ns", "stop_ns"}]). Without "segments" (a killed run) the sizes noted in recorded.json
    tell whether a recording was truncated or lost since.

    Raises:
        HarnessError: there are no segments, or a file cannot be read or written.
    """
    paths = _segments(folder)
    facts = folder.facts()
    counted: dict[str, int | None] = facts.get("segments") or {}
    read = _read(folder, paths, with_operations=True, with_events=with_events)
    end_ns = _end_ns(facts, read.last_ns)
    noted = segments.noted_sizes(folder)
    missing = [*_missing(read.ends, counted), *_missing_of_killed(paths, counted, noted)]
    missing += read.problems
    return Exported(
        folder=folder,
        nemesis=read.nemesis,
        windows=fault_windows(read.nemesis, end_ns),
        incomplete="; ".join(missing) or None,
        end_ns=end_ns,
    )


def export_events(folder: RunFolder) -> None:
    """Write only events.parquet and history.jsonl.

    Raises:
        HarnessError: there are no segments, or a file cannot be read or written.
    """
    _read(folder, _segments(folder), with_operations=False, with_events=True)


def fault_windows(events: pa.Table, run_end_ns: int) -> tuple[FaultWindow, ...]:
    """Pair the nemesis' start and stop events by fault number; ordered by start.

    A fault that was never undone lasts until the run's end. Whether it took effect is unknown: it
    counts as if it had not.
    """
    starts: dict[int, dict[str, Any]] = {}
    stops: dict[int, dict[str, Any]] = {}
    nemesis = events.filter(pc.equal(events["process"], NEMESIS_PROCESS))
    columns = nemesis.select(["time_ns", "f", "value"]).to_pydict()
    for time_ns, f, value in zip(*columns.values(), strict=True):
        if value is not None:
            fault = msgspec.json.decode(value, type=dict[str, Any])
            seen = stops if fault.get("phase") == "stop" else starts
            seen.setdefault(int(fault["fault"]), {**fault, "time_ns": time_ns, "name": f})
    windows = [
        _window(number, starts.get(number), stops.get(number), run_end_ns)
        for number in sorted(starts.keys() | stops.keys())
    ]
    return tuple(sorted(windows, key=lambda window: (window.start_ns, window.fault)))


def load_operations(folder: RunFolder, columns: Sequence[str] = OPERATIONS.names) -> pa.Table:
    """Read an exported run's operations, or some of their columns, sorted by (key, call_ns).

    Raises:
        HarnessError: they were not exported, or a file is damaged.
    """
    paths = sorted(folder.operations.glob("*.parquet"))
    if not paths:
        raise HarnessError(f"{folder.operations}: holds no Parquet files: analyze the run first")
    schema = pa.schema([OPERATIONS.field(name) for name in columns])
    return pa.concat_tables([_read_table(path, schema, OPERATIONS) for path in paths])


def load_events(folder: RunFolder) -> pa.Table:
    """Read an exported run's events, by index.

    Raises:
        HarnessError: they were not exported, or the file is damaged.
    """
    return _read_table(folder.events_parquet, EVENTS, EVENTS)


def load_windows(folder: RunFolder) -> tuple[FaultWindow, ...]:
    """Read the faults of an exported run.

    Raises:
        HarnessError: its events were not exported, or a file is damaged.
    """
    nemesis = load_nemesis(folder)
    last_ns = pc.max(nemesis["time_ns"]).as_py() or 0
    return fault_windows(nemesis, _end_ns(folder.facts(), last_ns))


def load_nemesis(folder: RunFolder) -> pa.Table:
    """Read the nemesis' rows of an exported run's events, by index; other rows are not loaded.

    Raises:
        HarnessError: they were not exported, or the file is damaged.
    """
    return _read_rows(folder.events_parquet, EVENTS, [("process", "=", NEMESIS_PROCESS)])


def load_given_up(folder: RunFolder) -> pa.Table:
    """Read when processes gave up on indeterminate operations: rows of GIVEN_UP.

    Raises:
        HarnessError: the events were not exported, or the file is damaged.
    """
    is_it = [("type", "=", "info"), ("process", ">", NEMESIS_PROCESS)]
    return _read_rows(folder.events_parquet, GIVEN_UP, is_it)


def _window(
    number: int, start: dict[str, Any] | None, stop: dict[str, Any] | None, run_end_ns: int
) -> FaultWindow:
    known = {**(start or {}), **(stop or {})}
    start_ns = start["time_ns"] if start else known["time_ns"]
    evidence = str(stop.get("evidence", "")) if stop else NOT_UNDONE
    return FaultWindow(
        fault=number,
        name=known["name"],
        description=str(known.get("description", "")),
        start_ns=start_ns,
        stop_ns=stop["time_ns"] if stop else max(run_end_ns, start_ns),
        # Runs of before 0.3 say "bit".
        took_effect=bool(stop.get("took_effect", stop.get("bit"))) if stop else False,
        evidence=evidence if start else f"{evidence} ({NOT_BEGUN})".strip(),
        began_ns=_began_ns(known, start_ns),
        victims=_victims(known),
    )


def _victims(known: dict[str, Any]) -> tuple[str, ...]:
    """Return the nodes that it was aimed at, if its plan says so."""
    plan = known.get("plan")
    victims = plan.get("victims") if isinstance(plan, dict) else None
    return tuple(map(str, victims)) if isinstance(victims, list) else ()


def _began_ns(known: dict[str, Any], start_ns: int) -> int | None:
    """Return when it started to be applied, if that is recorded and plausible."""
    began_ns = known.get("began_ns")
    return began_ns if isinstance(began_ns, int) and began_ns <= start_ns else None


def _end_ns(facts: dict[str, Any], last_ns: int) -> int:
    phases = facts.get("phases") or []
    stops = [int(phase["stop_ns"]) for phase in phases if phase.get("stop_ns") is not None]
    return max([last_ns, *stops])


@dataclass(frozen=True, slots=True)
class _Read:
    """The result of reading all segments, beside the files."""

    nemesis: pa.Table
    last_ns: int
    ends: Sequence[SegmentEnd]
    problems: Sequence[str]


def _segments(folder: RunFolder) -> list[Path]:
    paths = sorted(folder.segments.glob("*.seg"))
    if not paths:
        raise HarnessError(f"{folder.segments}: holds no recordings (*.seg): nothing to judge")
    return paths


def _read(
    folder: RunFolder, paths: Sequence[Path], *, with_operations: bool, with_events: bool
) -> _Read:
    """Read all segments and write the requested files; each file appears complete or not at all."""
    fresh = temp_beside(folder.operations)
    with ThreadPoolExecutor(min(THREADS_MAX, os.cpu_count() or 1)) as pool:
        try:
            fresh.mkdir()
            for at_once in (False, True):
                recordings = Recordings(paths, pool, at_once=at_once)
                try:
                    read = _write(recordings, fresh, pool, with_operations, with_events)
                    break
                except NotInOrder:
                    continue
            if with_events:
                (fresh / "events").replace(folder.events_parquet)
                (fresh / "lines").replace(folder.history_jsonl)
            if with_operations:
                replace_folder(fresh / "operations", folder.operations)
        except OSError as error:
            raise HarnessError(f"cannot write {error.filename or fresh}: {error}") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return read


def _write(
    recordings: Recordings, fresh: Path, pool: Executor, with_operations: bool, with_events: bool
) -> _Read:
    """Write round after round to the files under `fresh`."""
    for name in ("operations", "spilled"):
        shutil.rmtree(fresh / name, ignore_errors=True)
        (fresh / name).mkdir()
    texts = recordings.texts.texts
    expected = recordings.bytes_total // OPERATION_BYTES_USUAL
    parts = OperationParts(fresh / "spilled", expected)
    events = EventFiles(fresh / "events", fresh / "lines") if with_events else None
    faults, places = [np.empty(0, EVENT_ROW)], [np.empty(0, np.int64)]
    last_ns = 0
    dealer = ThreadPoolExecutor(1)
    dealt = dealer.submit(parts.add, (), texts)
    try:
        for round_ in recordings.rounds():
            if with_operations:  # in parallel with the next round's decoding, one at a time
                dealt.result()
                dealt = dealer.submit(parts.add, round_.operations, texts)
            if events is not None:
                events.add(round_, texts)
            begin = 0
            for rows in round_.events:
                is_fault = rows["process"] == NEMESIS_PROCESS
                faults.append(rows[is_fault])
                places.append(round_.index[begin : begin + len(rows)][is_fault])
                begin += len(rows)
                last_ns = max(last_ns, int(rows["time_ns"].max(initial=0)))
        dealt.result()
    finally:
        dealer.shutdown()
        if events is not None:
            events.close()
    if with_operations:
        parts.write(fresh / "operations", texts, pool)
    order = np.argsort(np.concatenate(places), kind="stable")
    nemesis = events_table(np.concatenate(faults)[order], 0, texts)
    index = pa.array(np.concatenate(places)[order])
    nemesis = nemesis.set_column(0, EVENTS.field("index"), index)
    return _Read(nemesis, last_ns, recordings.ends, recordings.problems)


def _missing(ends: Sequence[SegmentEnd], counted: dict[str, int | None]) -> list[str]:
    """Return which recordings are known to lack events that were written.

    An open segment that ends in a torn record is what SIGKILL leaves. It lacks nothing that
    matters: an operation whose invoke is torn was never sent.
    """
    problems: list[str] = []
    kept: dict[str, int] = {}
    for end in ends:
        name, count = end.path.name, end.count
        expected = counted.get(name)
        kept[name] = count
        if end.damaged and end.torn:
            problems.append(end.torn)
        elif expected is not None and count != expected:
            detail = end.torn or f"{name}: {count} events kept"
            problems.append(f"{detail}, but the run had recorded {expected}")
    absent = sorted(counted.keys() - kept.keys())
    return problems + [f"{name}: the recording is gone" for name in absent]


def _missing_of_killed(
    paths: Sequence[Path], counted: Mapping[str, int | None], noted: Mapping[str, int] | None
) -> list[str]:
    """Return which recordings without a count are smaller than noted while they grew.

    A killed run has no counts at all, and a worker that died has none. Without a note the run was
    killed before its clients did anything; then anything may be missing.
    """
    if noted is None:
        return [] if counted else ["the run was killed before it noted how far it had recorded"]
    sizes = {path.name: path.stat().st_size for path in paths}
    problems = []
    for name, size in sorted(noted.items()):
        if counted.get(name) is not None:
            continue
        if name not in sizes:
            problems.append(f"{name}: the recording is gone")
        elif sizes[name] < size:
            problems.append(f"{name}: cut to {sizes[name]} bytes, it had {size} before the kill")
    return problems


def _read_table(path: Path, wanted: pa.Schema, schema: pa.Schema) -> pa.Table:
    """Read the columns of `wanted` from a file whose schema must be `schema`."""
    try:
        with pq.ParquetFile(path) as file:
            stored, table = file.schema_arrow, file.read(wanted.names)
    except FileNotFoundError as error:
        raise HarnessError(f"{path}: not there: analyze the run first") from error
    except (OSError, pa.ArrowInvalid) as error:
        why = " ".join(str(error).split())
        raise HarnessError(f"{path}: cut or damaged: {why}") from error
    if stored.remove_metadata() != schema:
        raise HarnessError(f"{path}: its columns are not those of this version's history")
    return table


def _read_rows(path: Path, wanted: pa.Schema, filters: list[tuple[str, str, Any]]) -> pa.Table:
    """Read the matching rows of the events, with the columns of `wanted`."""
    try:
        return pq.read_table(path, columns=wanted.names, filters=filters).cast(wanted)
    except FileNotFoundError as error:
        raise HarnessError(f"{path}: not there: analyze the run first") from error
    except (OSError, pa.ArrowException, KeyError) as error:
        why = " ".join(str(error).split())
        raise HarnessError(f"{path}: cut or damaged: {why}") from error


# Writing events in the global order: events.parquet, and history.jsonl for people and tools.

EVENTS_AT_A_TIME = 200_000
"""Events that are encoded at a time; also the size of a row group of events.parquet."""

Rows = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]


class EventFiles:
    """Writes rounds of events to both files as they come; `close` completes them.

    Raises:
        OSError: a file cannot be written.
    """

    def __init__(self, parquet: Path, json_lines: Path) -> None:
        self._parquet = pq.ParquetWriter(parquet, EVENTS, compression="lz4", store_schema=False)
        self._lines: BinaryIO = json_lines.open("wb")
        self._count = 0
        self._raw = _Joined(quoted=False)
        self._quoted = _Joined(quoted=True)

    def add(self, round_: Round, texts: Sequence[str]) -> None:
        """Write the events of a round, in the global order."""
        self._raw.take(texts)
        self._quoted.take(texts)
        order = np.empty(len(round_.index), np.int64)
        order[round_.index - self._count] = np.arange(len(order))
        events = np.concatenate(round_.events)
        for begin in range(0, len(order), EVENTS_AT_A_TIME):
            rows = events[order[begin : begin + EVENTS_AT_A_TIME]]
            value, ends, is_null = _values(rows, self._raw)
            self._parquet.write_table(_table(rows, self._count, texts, (value, ends, is_null)))
            self._lines.write(_lines(rows, self._count, self._quoted, value, ends))
            self._count += len(rows)

    def close(self) -> None:
        """Complete the files."""
        self._parquet.close()
        self._lines.close()


def events_table(rows: Rows, first: int, texts: Sequence[str]) -> pa.Table:
    """Return ordered EVENT_ROWs as a table of EVENTS, numbered from `first`."""
    raw = _Joined(quoted=False)
    raw.take(texts)
    return _table(rows, first, texts, _values(rows, raw))


class _Joined:
    """All texts in one array of bytes, raw or as JSON."""

    def __init__(self, *, quoted: bool) -> None:
        self._encode = msgspec.json.encode if quoted else str.encode
        self.data = np.zeros(0, np.uint8)
        self.at = np.zeros(1, np.int64)

    def take(self, texts: Sequence[str]) -> None:
        """Add the texts that are new."""
        fresh = [self._encode(text) for text in texts[len(self.at) - 1 :]]
        if fresh:
            joined = np.frombuffer(b"".join(fresh), np.uint8)
            ends = len(self.data) + np.cumsum([len(text) for text in fresh])
            self.data = np.concatenate([self.data, joined])
            self.at = np.concatenate([self.at, ends])

    def bytes_of(self, numbers: npt.NDArray[np.int32]) -> int:
        """Return the total size of these texts, in bytes."""
        there = numbers[numbers != NO_TEXT]
        return int((self.at[there + 1] - self.at[there]).sum())


def _values(rows: Rows, raw: _Joined) -> tuple[npt.NDArray[np.uint8], Ints, npt.NDArray[np.bool_]]:
    """Return the JSON of all values, the end of each after a leading 0, and which are null."""
    out = np.empty(len(rows) * VALUE_BYTES_MAX + raw.bytes_of(rows["extra"]), np.uint8)
    ends = np.zeros(len(rows) + 1, np.int64)
    is_null = np.empty(len(rows), np.bool_)
    size = values(rows, raw.data, raw.at, out, ends, is_null)
    return out[:size], ends, is_null


def _lines(
    rows: Rows, first: int, quoted: _Joined, value: npt.NDArray[np.uint8], ends: Ints
) -> memoryview:
    room = len(rows) * LINE_BYTES_MAX + len(value)
    for name in EVENT_TEXTS:
        room += quoted.bytes_of(rows[name])
    out = np.empty(room, np.uint8)
    size = lines(rows, first, quoted.data, quoted.at, value, ends, out)
    return out[:size].data


def _table(
    rows: Rows,
    first: int,
    texts: Sequence[str],
    value: tuple[npt.NDArray[np.uint8], Ints, npt.NDArray[np.bool_]],
) -> pa.Table:
    data, ends, is_null = value
    seen = np.full(len(texts), NO_TEXT, np.int32)
    columns: dict[str, Any] = {
        "index": pa.array(np.arange(first, first + len(rows))),
        "time_ns": pa.array(np.ascontiguousarray(rows["time_ns"])),
        "process": pa.array(np.ascontiguousarray(rows["process"])),
    }
    for name in ("type", "f", "key", "error", "node"):
        columns[name] = text_column(np.ascontiguousarray(rows[name]), texts, seen)
    column = pa.Array.from_buffers(
        pa.large_string(), len(rows), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    columns["value"] = pc.if_else(pa.array(is_null), None, column)
    return pa.table({name: columns[name] for name in EVENTS.names}).cast(EVENTS)
