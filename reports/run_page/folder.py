"""Read a run folder, complete or not: what is missing becomes a note, never a traceback."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.schema import EVENTS, NEMESIS_PROCESS, OPERATIONS

Json = dict[str, Any]
Part = TypeVar("Part")

REBUILD = "`shaketable analyze` on this folder rebuilds it"
"""Advice for a missing part that the recorded segments can restore."""

NEMESIS_COLUMNS = ["time_ns", "process", "f", "value"]

SAMPLES_MAX = 200_000
"""Rows of samples.jsonl that are read: as many as a run writes."""

NOTES_MAX = 20
"""Further notes are only counted."""


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The parts of a run folder, each empty if its file is missing or damaged."""

    folder: Path
    run: Json
    campaign: Json
    results: Json | None
    operations: pa.Table
    nemesis: pa.Table
    given_up: pa.Table
    status: tuple[Json, ...]
    samples: tuple[Json, ...]
    drain: Json
    notes: tuple[str, ...]


@dataclass(slots=True)
class _Reader:
    """Reads parts of the folder and collects notes about missing and damaged ones."""

    folder: Path
    notes: list[str] = field(default_factory=list)

    def part(self, name: str, read: Callable[[Path], Part], absent: Part, consequence: str) -> Part:
        path = self.folder / name
        if not path.exists():
            self.notes.append(f"{name} is missing: {consequence}")
            return absent
        if not (path.is_file() or path.is_dir()):  # reading a pipe would block
            self.notes.append(f"{name} is no regular file: {consequence}")
            return absent
        try:
            return read(path)
        except pa.ArrowException:
            why = "it is cut, or no Parquet file"
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = _first_line(error)
        self.notes.append(f"{name} cannot be read ({why}): {consequence}")
        return absent

    def lines(self, path: Path) -> tuple[Json, ...]:
        """Read JSON lines; skip damaged ones, such as the cut last line of a killed writer."""
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
        rows, damaged = [], 0
        for text in texts:
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            if isinstance(row, dict):
                rows.append(row)
            else:
                damaged += 1
        if damaged:
            self.notes.append(f"{path.name} has {damaged} cut or damaged line(s), left out here")
        return tuple(rows)

    def operations(self, directory: Path) -> pa.Table:
        """Read operations/*.parquet file by file: one damaged file does not hide the rest."""
        tables = []
        for path in sorted(directory.glob("*.parquet")):
            name = f"history/operations/{path.name}"
            table = self.part(
                name, _read_operations, None, f"its operations are left out; {REBUILD}"
            )
            if table is not None:
                tables.append(table)
        return pa.concat_tables(tables) if tables else OPERATIONS.empty_table()


def read_run(folder: Path) -> RunFiles:
    """Read a run folder.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a run's folder: there is no such directory")
    reader = _Reader(folder)
    part = reader.part
    absent: Json = {}
    run = part("run.json", _read_json, absent, "the facts of the run are not known here")
    if run and run.get("status") not in (None, "complete"):
        reader.notes.append(f"the run's status is {run['status']!r}: it did not come to its end")
    return RunFiles(
        folder=folder,
        run=run,
        campaign=part("campaign.toml", _read_toml, absent, "what was requested is not known here"),
        results=part("results.json", _read_json, None, f"nothing was judged; {REBUILD}"),
        operations=part(
            "history/operations",
            reader.operations,
            OPERATIONS.empty_table(),
            f"no operation can be shown; {REBUILD}",
        ),
        nemesis=(
            events := part(
                "history/events.parquet",
                _read_events,
                (EVENTS.empty_table(), GIVEN_UP.empty_table()),
                f"the faults' times are not known; {REBUILD}",
            )
        )[0],
        given_up=events[1],
        status=part("status.jsonl", reader.lines, (), "who led is not known"),
        samples=_samples(reader),
        drain=part(
            "drain.json", _read_json, absent, "what the nodes reported while draining is lost"
        ),
        notes=_bounded(reader.notes),
    )


def _samples(reader: _Reader) -> tuple[Json, ...]:
    """Read the samples, if there are any: runs of earlier versions have none."""
    name = "samples.jsonl"
    if not (reader.folder / name).exists():
        return ()
    none: tuple[Json, ...] = ()
    rows = reader.part(name, reader.lines, none, "the nodes' logs and clocks are not shown")
    return rows[:SAMPLES_MAX]


def _bounded(notes: list[str]) -> tuple[str, ...]:
    if len(notes) <= NOTES_MAX:
        return tuple(notes)
    rest = len(notes) - NOTES_MAX
    return (*notes[:NOTES_MAX], f"and {rest} more parts that are missing or damaged")


def _read_json(path: Path) -> Json:
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise TypeError("it holds no JSON object")
    return value


def _read_toml(path: Path) -> Json:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _read_operations(path: Path) -> pa.Table:
    table = pq.read_table(path)
    absent = [name for name in OPERATIONS.names if name not in table.column_names]
    if absent:
        raise KeyError(f"no column {absent[0]}")
    return table.select(OPERATIONS.names).cast(OPERATIONS)


def _read_events(path: Path) -> tuple[pa.Table, pa.Table]:
    """Return the nemesis's rows by time, and when clients gave up on indeterminate operations."""
    schema = pa.schema([EVENTS.field(name) for name in NEMESIS_COLUMNS])
    is_nemesis = [("process", "=", NEMESIS_PROCESS)]
    nemesis = pq.read_table(path, columns=NEMESIS_COLUMNS, filters=is_nemesis)
    is_info = [("type", "=", "info"), ("process", ">", NEMESIS_PROCESS)]
    given_up = pq.read_table(path, columns=GIVEN_UP.names, filters=is_info)
    return nemesis.cast(schema).sort_by("time_ns"), given_up.cast(GIVEN_UP)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
