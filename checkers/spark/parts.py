"""Durability and equal logs in Spark: logs and appends are read, cut, and judged on executors.

One task reads one part of one node's log, or some row groups of the operations, and deals
what it read to parts (checkers.engine.log_parts). What is shuffled are a few large rows a
part, never an entry. The driver sees findings, and the numbers of the places and windows
that a second round must look at.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.checkers.engine.job import CheckJob, ReadLog, SegmentedReader
from shaketable.checkers.engine.judge import TAGGED
from shaketable.checkers.engine.log_parts import (
    OTHER_WINDOWS,
    PACKED,
    RANGE,
    UNREADABLE,
    UNSETTLED_AT,
    LogSource,
    LogUnit,
    OperationsUnit,
    Plan,
    ValueChecker,
    WindowChecker,
    judge_part,
    judge_places,
    open_places,
    pack_log,
    pack_operations,
)
from shaketable.checkers.logs.append_fates import PLACES
from shaketable.checkers.logs.committed_prefix import WINDOW_ENTRIES
from shaketable.checkers.spark.frames import ddl
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Checker

APPENDS_A_PART = 150_000
"""Operations in a part of values, about: what bounds the memory of judging it."""

PARTS_A_SEGMENT = 4
"""Parts for each piece into which a log is split: it may hold far more than was acknowledged."""

SIDE_BY_SIDE_MIN = 4
"""Segments of a log from which on one task reads the same one of all nodes."""

PLACES_A_PART = 50_000
OPERATIONS_A_TASK = 1_000_000

_PACKED = "part bigint, kind string, payload binary"
_NOTES = (UNREADABLE, RANGE, UNSETTLED_AT, OTHER_WINDOWS)
_Unit = LogUnit | OperationsUnit
_Batches = Iterator[pa.RecordBatch]


def is_split(checker: Checker) -> bool:
    """True if `judge_split` can run this checker."""
    if checker.partition == "key":
        return isinstance(checker, ValueChecker)
    return checker.partition == "bucket" and isinstance(checker, WindowChecker)


def judge_split(
    session: Any, job: CheckJob, checkers: Sequence[Checker]
) -> tuple[pa.Table, list[str]]:
    """Run checkers that judge split logs; return rows of TAGGED, and what cannot be read.

    Raises:
        HarnessError: the operations cannot be read.
    """
    units, plan = _plan(job, checkers)
    if not units:
        return TAGGED.empty_table(), []
    pyspark = importlib.import_module("pyspark")
    packed = _read(session, units, plan).repartition(max(1, plan.parts // 2), "part")
    packed = packed.persist(pyspark.StorageLevel.DISK_ONLY)
    try:
        told = _judged(packed, judge_part, plan)
        unreadable = sorted(set(_notes(told, UNREADABLE)["message"].to_pylist()))
        found = [told.filter(pc.invert(pc.is_in(told["kind"], pa.array(_NOTES))))]
        if not unreadable:
            found += [
                _look_at_places(packed, plan, checker, told)
                for checker in plan.by_value
                if _numbers(told, UNSETTLED_AT, checker.name)
            ]
    finally:
        packed.unpersist()
    if not unreadable and (windows := _numbers(told, OTHER_WINDOWS)):
        found.append(_look_at_windows(session, units, plan, told, windows))
    return pa.concat_tables(found), unreadable


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads what a unit names; called on executors."""

    read_log: ReadLog
    segments: SegmentedReader | None

    def __call__(self, source: LogSource) -> _Batches:
        if source.segment is None or self.segments is None:
            return self.read_log(Path(source.path), source.node)
        return self.segments.read_segment(Path(source.path), source.node, source.segment)


def _plan(job: CheckJob, checkers: Sequence[Checker]) -> tuple[list[_Unit], Plan]:
    by_value = tuple(c for c in checkers if isinstance(c, ValueChecker))
    by_window = tuple(c for c in checkers if isinstance(c, WindowChecker))
    units: list[_Unit] = []
    sources = {
        node: [LogSource(node, str(path), name) for name in _segments(job, node, path)]
        for node, path in sorted(job.logs.items())
    }
    for number, together in enumerate(_side_by_side(sources)):
        units.append(LogUnit(number, tuple(together)))
    rows = 0
    if by_value:
        for path in job.operations:
            more, rows_more = _operations_units(path)
            units, rows = [*units, *more], rows + rows_more
    segments_max = max((len(of) for of in sources.values()), default=1)
    parts = max(math.ceil(rows / APPENDS_A_PART), PARTS_A_SEGMENT * segments_max)
    reader = _Reader(job.read_log, job.segments)
    return units, Plan(parts, job.context, by_value, by_window, reader)


def _side_by_side(sources: Mapping[str, Sequence[LogSource]]) -> list[list[LogSource]]:
    """Put segments of the same name together: they hold about the same entries.

    Where there are few, each gets a task of its own: then there is nothing to save.
    """
    by_name: dict[str | None, list[LogSource]] = {}
    for source in (each for of in sources.values() for each in of):
        by_name.setdefault(source.segment, []).append(source)
    if len(by_name) >= SIDE_BY_SIDE_MIN:
        return list(by_name.values())
    return [[each] for of in sources.values() for each in of]


def _segments(job: CheckJob, node: str, path: Path) -> Sequence[str | None]:
    """Name the parts of a node's log; what is wrong with it, its reading will say."""
    if job.segments is None:
        return (None,)
    try:
        return job.segments.log_segments(path, node)
    except Exception:  # a plug-in's function
        return (None,)


def _operations_units(path: Path) -> tuple[list[OperationsUnit], int]:
    """Split a file of operations by row groups; also return how many rows it has."""
    try:
        about = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise HarnessError(f"operations {path} cannot be read: {error}") from error
    units, group, rows = [], [], 0
    for number in range(about.num_row_groups):
        group.append(number)
        rows += about.row_group(number).num_rows
        if rows >= OPERATIONS_A_TASK or number == about.num_row_groups - 1:
            units.append(OperationsUnit(str(path), tuple(group)))
            group, rows = [], 0
    return units, about.num_rows


def _read(session: Any, units: Sequence[_Unit], plan: Plan) -> Any:
    """Return a data frame of PACKED; each unit is a task of its own."""

    def pack(batches: _Batches) -> _Batches:
        for batch in batches:
            for number in batch["id"].to_pylist():
                unit = units[number]
                is_log = isinstance(unit, LogUnit)
                yield from pack_log(unit, plan) if is_log else pack_operations(unit, plan)

    return session.range(0, len(units), 1, len(units)).mapInArrow(pack, _PACKED)


def _judged(packed: Any, judge: Callable[..., pa.Table], *about: object) -> pa.Table:
    """Judge each part; bring back the rows of TAGGED."""

    def one(rows: pa.Table) -> pa.Table:
        return judge(rows.cast(PACKED), *about)

    return packed.groupBy("part").applyInArrow(one, ddl(TAGGED)).toArrow().cast(TAGGED)


def _look_at_places(packed: Any, plan: Plan, checker: ValueChecker, told: pa.Table) -> pa.Table:
    """Judge the appends that were not where they must be, with all that stands there."""
    places = _numbers(told, UNSETTLED_AT, checker.name)
    parts = math.ceil(len(places) / PLACES_A_PART)
    is_wanted = np.zeros(PLACES, dtype=np.bool_)
    is_wanted[places] = True
    bits = np.packbits(is_wanted).tobytes()

    told_by = _notes(told, UNSETTLED_AT)
    told_by = told_by.filter(pc.equal(told_by["checker"], checker.name))
    unsettled = frozenset(told_by["offset"].to_pylist())

    def open_one(rows: pa.Table) -> pa.Table:
        return open_places(rows.cast(PACKED), plan, checker, (bits, unsettled), parts)

    values = packed.where(f"part < {plan.parts}").groupBy("part")
    opened = values.applyInArrow(open_one, _PACKED).repartition(parts, "part")
    return _judged(opened, judge_places, plan, checker)


def _look_at_windows(
    session: Any, units: Sequence[_Unit], plan: Plan, told: pa.Table, windows: list[int]
) -> pa.Table:
    """Read those parts of the logs again that hold these windows, and compare every entry."""
    again = []
    for text in _notes(told, RANGE)["message"].to_pylist():
        number, low, high = (int(word) for word in text.split())
        at = np.searchsorted(windows, low // WINDOW_ENTRIES)
        if at < len(windows) and windows[at] <= high // WINDOW_ENTRIES:
            again.append(units[number])
    narrower = replace(plan, by_value=(), kept=frozenset(windows))
    packed = _read(session, again, narrower).repartition(max(1, plan.parts // 2), "part")
    told = _judged(packed, judge_part, narrower)
    return told.filter(pc.invert(pc.is_in(told["kind"], pa.array(_NOTES))))


def _notes(told: pa.Table, kind: str) -> pa.Table:
    return told.filter(pc.equal(told["kind"], kind))


def _numbers(told: pa.Table, kind: str, checker: str | None = None) -> list[int]:
    """Return the numbers that rows of a kind name, each once, in order."""
    rows = _notes(told, kind)
    if checker is not None:
        rows = rows.filter(pc.equal(rows["checker"], checker))
    return sorted({number for named in rows["operations"].to_pylist() for number in named})
