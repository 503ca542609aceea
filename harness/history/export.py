"""Turns the recordings of a run into the two tables that checkers and reports read."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from harness.history.run_folder import RunFolder
from harness.plugins import FaultWindow


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
    "phases" ([{"name", "start_ns", "stop_ns"}]).

    Raises:
        HarnessError: there are no segments, or a file cannot be read or written.
    """
    raise NotImplementedError


def fault_windows(events: pa.Table, run_end_ns: int) -> tuple[FaultWindow, ...]:
    """Pair the nemesis' start and stop events by fault number, in order of start."""
    raise NotImplementedError


def load_operations(folder: RunFolder) -> pa.Table:
    """Read an exported run's operations, sorted by (key, call_ns).

    Raises:
        HarnessError: they were not exported, or a file is damaged.
    """
    raise NotImplementedError


def load_events(folder: RunFolder) -> pa.Table:
    """Read an exported run's events, by index.

    Raises:
        HarnessError: they were not exported, or the file is damaged.
    """
    raise NotImplementedError
