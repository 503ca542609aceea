"""What an engine has to check: plain data, the same for every engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from shaketable.harness.contracts.plugins import CheckContext, Checker

ReadLog = Callable[[Path, str], Iterator[pa.RecordBatch]]
"""`Target.read_log`, or a function like it: (node's folder, node) -> batches of ENTRIES.

It is pickled and called on Spark's executors, so it must be importable there.
"""


@dataclass(frozen=True, slots=True)
class SegmentedReader:
    """How a target's logs are read in parts (see `contracts.abilities.SegmentedLog`)."""

    log_segments: Callable[[Path, str], Sequence[str]]
    read_segment: Callable[[Path, str, str], Iterator[pa.RecordBatch]]


Progress = Callable[[str], None]
"""Called with a short text on what the engine does next, in the caller's thread."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A recorded run and the checkers that judge it.

    `operations` are Parquet files of OPERATIONS; `logs` maps each node to the folder that
    `read_log` decodes (may be empty: then no checker may need entries). `segments` reads the same
    logs in parts, if the target can.
    """

    operations: tuple[Path, ...]
    logs: Mapping[str, Path]
    read_log: ReadLog
    context: CheckContext
    checkers: tuple[Checker, ...]
    segments: SegmentedReader | None = None


def with_clock(job: CheckJob) -> CheckJob:
    """Return the job with a clock for its checkers, unless it has one."""
    if job.context.clock_unix_s is not None:
        return job
    return replace(job, context=replace(job.context, clock_unix_s=time.time))


def no_progress(_text: str) -> None:
    """Ignore the progress."""
