"""Turns the recordings of a run into the two tables that checkers and reports read.

Source: DESIGN.md decision 14; jepsen.store for what stands in a run's folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import HarnessError
from harness.history import watermark
from harness.history.pairing import Paired, merge
from harness.history.run_folder import RunFolder, replace_folder, temp_beside
from harness.history.schema import EVENTS, NEMESIS_PROCESS, OPERATIONS
from harness.history.segments import Event, Segment, read_segment
from harness.plugins import FaultWindow

OPERATIONS_PER_FILE_MAX = 250_000
"""Rows of an operations file; a key with more has files of its own."""

NOT_UNDONE = "not undone: the run was cut short"
NOT_BEGUN = "its start is missing in the history"


@dataclass(frozen=True, slots=True)
class Exported:
    """A run's history: schema.EVENTS by index, schema.OPERATIONS by (key, call_ns).

    `windows` are the faults as done. `incomplete` says in words why events are known to
    be missing, if they are. `end_ns` is when the run ended.
    """

    events: pa.Table
    operations: pa.Table
    windows: tuple[FaultWindow, ...]
    incomplete: str | None
    end_ns: int


def export(folder: RunFolder) -> Exported:
    """Merge and pair the segments; write events.parquet, operations/*.parquet, history.jsonl.

    Works for a run whose harness was killed: run.json may be absent. Of run.json it reads
    "segments" ({"worker-0.seg": events written, or null for a worker that died}) and
    "phases" ([{"name", "start_ns", "stop_ns"}]). Without "segments" (a killed run) the
    sizes noted in recorded.json say whether a recording was cut or lost since.

    Raises:
        HarnessError: there are no segments, or a file cannot be read or written.
    """
    paths = sorted(folder.segments.glob("*.seg"))
    facts = _run_facts(folder)
    counted: dict[str, int | None] = facts.get("segments") or {}
    if not paths:
        raise HarnessError(f"{folder.segments}: holds no recordings (*.seg): nothing to judge")
    segments = [read_segment(path) for path in paths]
    merged = merge([segment.events for segment in segments])
    values = [_value_json(event) for event in merged.events]
    events = _events_table(merged.events, values)
    operations = _operations_table(merged.operations)
    end_ns = _end_ns(facts, merged.events)
    _write_file(folder.events_parquet, lambda temp: pq.write_table(events, temp))
    _write_operations(operations, folder.operations)
    _write_file(folder.history_jsonl, lambda temp: _write_json_lines(merged.events, values, temp))
    noted = watermark.read(folder)
    missing = [*_missing(segments, counted), *_missing_of_killed(paths, counted, noted)]
    missing += merged.problems
    return Exported(
        events=events,
        operations=operations,
        windows=fault_windows(events, end_ns),
        incomplete="; ".join(missing) or None,
        end_ns=end_ns,
    )


def fault_windows(events: pa.Table, run_end_ns: int) -> tuple[FaultWindow, ...]:
    """Pair the nemesis' start and stop events by fault number, in order of start.

    A fault that was never undone lasts until the run's end, and whether it bit is not
    known: it does not count as having bitten.
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


def load_operations(folder: RunFolder) -> pa.Table:
    """Read an exported run's operations, sorted by (key, call_ns).

    Raises:
        HarnessError: they were not exported, or a file is damaged.
    """
    paths = sorted(folder.operations.glob("*.parquet"))
    if not paths:
        raise HarnessError(f"{folder.operations}: holds no Parquet files: export the run first")
    return pa.concat_tables([_read_table(path, OPERATIONS) for path in paths])


def load_events(folder: RunFolder) -> pa.Table:
    """Read an exported run's events, by index.

    Raises:
        HarnessError: they were not exported, or the file is damaged.
    """
    return _read_table(folder.events_parquet, EVENTS)


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
        bit=bool(stop.get("bit", False)) if stop else False,
        evidence=evidence if start else f"{evidence} ({NOT_BEGUN})".strip(),
        began_ns=_began_ns(known, start_ns),
    )


def _began_ns(known: dict[str, Any], start_ns: int) -> int | None:
    """When it began to be applied, if that is told and makes sense."""
    began_ns = known.get("began_ns")
    return began_ns if isinstance(began_ns, int) and began_ns <= start_ns else None


def _run_facts(folder: RunFolder) -> dict[str, Any]:
    """Read run.json; {} if the run was killed before it was written."""
    try:
        return msgspec.json.decode(folder.run_json.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        raise HarnessError(f"cannot read {folder.run_json}: {error}") from error


def _end_ns(facts: dict[str, Any], events: Sequence[Event]) -> int:
    phases = facts.get("phases") or []
    stops = [int(phase["stop_ns"]) for phase in phases if phase.get("stop_ns") is not None]
    last = events[-1].time_ns if events else 0
    return max([last, *stops])


def _missing(segments: Sequence[Segment], counted: dict[str, int | None]) -> list[str]:
    """Say which recordings are known to lack events that were written.

    An open segment that ends in a torn record is what SIGKILL leaves: it lacks nothing
    that matters, since an operation whose invoke was torn was never sent.
    """
    told: list[str] = []
    kept: dict[str, int] = {}
    for segment in segments:
        name, count = segment.path.name, len(segment.events)
        expected = counted.get(name)
        kept[name] = count
        if segment.damaged and segment.torn:
            told.append(segment.torn)
        elif expected is not None and count != expected:
            detail = segment.torn or f"{name}: {count} events kept"
            told.append(f"{detail}, but the run had recorded {expected}")
    absent = sorted(counted.keys() - kept.keys())
    return told + [f"{name}: the recording is gone" for name in absent]


def _missing_of_killed(
    paths: Sequence[Path], counted: Mapping[str, int | None], noted: Mapping[str, int] | None
) -> list[str]:
    """Say which recordings without a count are less than what was noted while they grew.

    A killed run has no counts at all, a worker that died has none. Without a note the run
    was killed before its clients did anything: then anything may lack.
    """
    if noted is None:
        return [] if counted else ["the run was killed before it noted how far it had recorded"]
    sizes = {path.name: path.stat().st_size for path in paths}
    told = []
    for name, size in sorted(noted.items()):
        if counted.get(name) is not None:
            continue
        if name not in sizes:
            told.append(f"{name}: the recording is gone")
        elif sizes[name] < size:
            told.append(f"{name}: cut to {sizes[name]} bytes, it had {size} before the kill")
    return told


def _events_table(events: Sequence[Event], values: Sequence[str | None]) -> pa.Table:
    columns: dict[str, Sequence[Any]] = {
        "index": list(range(len(events))),
        "time_ns": [event.time_ns for event in events],
        "process": [event.process for event in events],
        "type": [event.type for event in events],
        "f": [event.f for event in events],
        "key": [event.key for event in events],
        "value": values,
        "error": [event.error for event in events],
        "node": [event.node for event in events],
    }
    return pa.table(columns, schema=EVENTS)


def _value_json(event: Event) -> str | None:
    """Return the event's value as JSON: the nemesis' own, else the columns that are set."""
    if event.process == NEMESIS_PROCESS:
        return event.extra
    parts = [
        f'"{name}":{value}'
        for name, value in (
            ("input", event.input),
            ("output", event.output),
            ("offset", event.offset),
            ("expected", event.expected),
            ("extra", event.extra),
        )
        if value is not None
    ]
    return "{" + ",".join(parts) + "}"


def _operations_table(operations: Sequence[Paired]) -> pa.Table:
    ordered = sorted(operations, key=lambda o: (o.invoke.key or "", o.invoke.time_ns, o.op))
    ends = [operation.completion for operation in ordered]
    outcomes = [end.type if end else "info" for end in ends]
    columns: dict[str, list[Any]] = {
        "op": [operation.op for operation in ordered],
        "process": [operation.invoke.process for operation in ordered],
        "f": [operation.invoke.f for operation in ordered],
        "key": [operation.invoke.key for operation in ordered],
        "input": [operation.invoke.input for operation in ordered],
        "expected": [operation.invoke.expected for operation in ordered],
        "output": [end.output if end else None for end in ends],
        "offset": [_offset(operation) for operation in ordered],
        "call_ns": [operation.invoke.time_ns for operation in ordered],
        "return_ns": [
            end.time_ns if end and outcome != "info" else None
            for end, outcome in zip(ends, outcomes, strict=True)
        ],
        "outcome": outcomes,
        "error": [end.error if end else None for end in ends],
        "node": [end.node if end else None for end in ends],
        "extra": [
            (end.extra if end else None) or o.invoke.extra
            for o, end in zip(ordered, ends, strict=True)
        ],
    }
    return pa.table(columns, schema=OPERATIONS)


def _offset(operation: Paired) -> int | None:
    end = operation.completion
    if end is not None and end.offset is not None:
        return end.offset
    return operation.invoke.offset


def _write_operations(operations: pa.Table, path: Path) -> None:
    fresh = temp_beside(path)
    try:
        fresh.mkdir()
        for number, (start, length) in enumerate(_file_ranges(operations["key"].to_pylist())):
            part = operations.slice(start, length)
            pq.write_table(part, fresh / f"part-{number:05d}.parquet")
        replace_folder(fresh, path)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise HarnessError(f"cannot write {path}: {error}") from error


def _file_ranges(
    keys: Sequence[str | None], rows_max: int = OPERATIONS_PER_FILE_MAX
) -> list[tuple[int, int]]:
    """Cut sorted rows into (start, length) of files.

    A file holds whole keys as long as they fit; a key longer than a file fills several.
    No rows at all make one empty file, so that the schema can be read.
    """
    bounds = [i for i in range(1, len(keys)) if keys[i] != keys[i - 1]]
    ranges: list[tuple[int, int]] = []
    start = 0
    for begin, end in zip([0, *bounds], [*bounds, len(keys)], strict=True):
        if begin > start and end - start > rows_max:
            ranges.append((start, begin - start))
            start = begin
        while end - start > rows_max:
            ranges.append((start, rows_max))
            start += rows_max
    return [*ranges, (start, len(keys) - start)]


def _write_json_lines(events: Sequence[Event], values: Sequence[str | None], path: Path) -> None:
    encode = msgspec.json.Encoder().encode
    with path.open("wb") as file:
        for index, (event, value) in enumerate(zip(events, values, strict=True)):
            line = {
                "index": index,
                "time_ns": event.time_ns,
                "process": event.process,
                "type": event.type,
                "f": event.f,
                "key": event.key,
                "value": None if value is None else msgspec.Raw(value.encode()),
                "error": event.error,
                "node": event.node,
            }
            file.write(encode(line) + b"\n")


def _write_file(path: Path, write: Callable[[Path], None]) -> None:
    temp = temp_beside(path)
    try:
        write(temp)
        temp.replace(path)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise HarnessError(f"cannot write {path}: {error}") from error


def _read_table(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = pq.read_table(path, partitioning=None)
    except FileNotFoundError as error:
        raise HarnessError(f"{path}: not there: export the run first") from error
    except (OSError, pa.ArrowInvalid) as error:
        why = " ".join(str(error).split())
        raise HarnessError(f"{path}: cut or damaged: {why}") from error
    if table.schema != schema:
        raise HarnessError(f"{path}: its columns are not those of this version's history")
    return table
