"""Tables as Spark data frames, and the logs that executors read, split and judge."""

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

from shaketable.checkers.engine.judge import (
    BUCKET_ENTRIES,
    SCHEMAS,
    TAGGED,
    CheckJob,
    ReadLog,
    SegmentedReader,
    judge_partition,
    needs,
)
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
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import CheckContext, Checker

_TYPES = {pa.int64(): "bigint", pa.string(): "string", pa.list_(pa.int64()): "array<bigint>"}


def ddl(schema: pa.Schema) -> str:
    """Return the schema as Spark DDL: "`op` bigint, `f` string"."""
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)


def read_operations(session: Any, paths: Sequence[Path]) -> Any:
    """Return a data frame of all operations; paths are taken literally."""
    schema = ddl(SCHEMAS["operations"])
    if not paths:
        return session.createDataFrame([], schema)
    for path in paths:
        if not path.is_file():
            raise HarnessError(f"operations {path} cannot be read: there is no such file")
    return session.read.schema(schema).parquet(*[_literal(path) for path in paths])


def _literal(path: Path) -> str:
    """Return a path with the characters quoted that Hadoop would take for a pattern."""
    text = str(path.resolve())
    return "file:" + "".join(f"\\{char}" if char in "*?[]{}\\," else char for char in text)


def judge_groups(
    frames: Mapping[str, Any], partition: str, context: CheckContext, checkers: Sequence[Checker]
) -> pa.Table:
    """Group the tables that the checkers read, judge each group, and collect the findings."""
    columns = {"key": "`key`", "bucket": f"`index` div {BUCKET_ENTRIES}", "history": "0"}
    column = columns[partition]
    names = tuple(name for name in frames if needs(checkers, name))
    grouped = [frames[name].selectExpr("*", f"{column} as part").groupBy("part") for name in names]
    schema = ddl(TAGGED)
    judge = _judge_function(tuple(checkers), names, context)
    if len(grouped) == 1:
        found = grouped[0].applyInArrow(judge, schema)
    else:
        found = grouped[0].cogroup(grouped[1]).applyInArrow(judge, schema)
    return found.toArrow().cast(TAGGED)


def _judge_function(
    checkers: tuple[Checker, ...], names: tuple[str, ...], context: CheckContext
) -> Callable[..., pa.Table]:
    """Return the function that judges one group on an executor, for one or two tables."""

    def judge(parts: Sequence[pa.Table]) -> pa.Table:
        tables = {
            name: part.select(SCHEMAS[name].names).cast(SCHEMAS[name])
            for name, part in zip(names, parts, strict=True)
        }
        return judge_partition(checkers, tables, context)

    def judge_one(table: pa.Table) -> pa.Table:
        return judge((table,))

    def judge_two(left: pa.Table, right: pa.Table) -> pa.Table:
        return judge((left, right))

    assert len(names) in (1, 2), f"checkers read operations and entries, not {names}"
    return judge_one if len(names) == 1 else judge_two


# Durability and equal logs in Spark: logs and appends are read, split and judged on executors.
#
# One task reads one segment of one node's log, or some row groups of the operations, and
# distributes what it read to parts (checkers.engine.log_parts). Only a few large rows for each
# part are shuffled, never single entries. The driver gets findings, and the numbers of the places
# and windows that a second round must check.

APPENDS_A_PART = 150_000
"""Operations in a part of values, about: bounds the memory to judge it."""

PARTS_A_SEGMENT = 4
"""Parts for each segment of a log, which may hold far more entries than were acknowledged."""

SIDE_BY_SIDE_MIN = 4
"""With so many segments of a log, one task reads the same segment of all nodes."""

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
    """Run checkers that judge split logs; return rows of TAGGED, and which logs are unreadable.

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
        judged = _judged(packed, judge_part, plan)
        unreadable = sorted(set(_notes(judged, UNREADABLE)["message"].to_pylist()))
        found = [judged.filter(pc.invert(pc.is_in(judged["kind"], pa.array(_NOTES))))]
        if not unreadable:
            found += [
                _recheck_places(packed, plan, checker, judged)
                for checker in plan.by_value
                if _numbers(judged, UNSETTLED_AT, checker.name)
            ]
    finally:
        packed.unpersist()
    if not unreadable and (windows := _numbers(judged, OTHER_WINDOWS)):
        found.append(_recheck_windows(session, units, plan, judged, windows))
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
    """Group segments by name: those of the same name hold about the same entries.

    If there are few, each gets a task of its own: then grouping saves nothing.
    """
    by_name: dict[str | None, list[LogSource]] = {}
    for source in (each for of in sources.values() for each in of):
        by_name.setdefault(source.segment, []).append(source)
    if len(by_name) >= SIDE_BY_SIDE_MIN:
        return list(by_name.values())
    return [[each] for of in sources.values() for each in of]


def _segments(job: CheckJob, node: str, path: Path) -> Sequence[str | None]:
    """Return the names of the segments of a node's log; errors are reported when it is read."""
    if job.segments is None:
        return (None,)
    try:
        return job.segments.log_segments(path, node)
    except Exception:  # a plug-in's function
        return (None,)


def _operations_units(path: Path) -> tuple[list[OperationsUnit], int]:
    """Split a file of operations by row groups; return the units, and the number of rows."""
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
    """Judge each part; collect the rows of TAGGED."""

    def one(rows: pa.Table) -> pa.Table:
        return judge(rows.cast(PACKED), *about)

    return packed.groupBy("part").applyInArrow(one, ddl(TAGGED)).toArrow().cast(TAGGED)


def _recheck_places(packed: Any, plan: Plan, checker: ValueChecker, judged: pa.Table) -> pa.Table:
    """Judge the appends that were not at their places, with all entries at these places."""
    places = _numbers(judged, UNSETTLED_AT, checker.name)
    parts = math.ceil(len(places) / PLACES_A_PART)
    is_wanted = np.zeros(PLACES, dtype=np.bool_)
    is_wanted[places] = True
    bits = np.packbits(is_wanted).tobytes()

    judged_by = _notes(judged, UNSETTLED_AT)
    judged_by = judged_by.filter(pc.equal(judged_by["checker"], checker.name))
    unsettled = frozenset(judged_by["offset"].to_pylist())

    def open_one(rows: pa.Table) -> pa.Table:
        return open_places(rows.cast(PACKED), plan, checker, (bits, unsettled), parts)

    values = packed.where(f"part < {plan.parts}").groupBy("part")
    opened = values.applyInArrow(open_one, _PACKED).repartition(parts, "part")
    return _judged(opened, judge_places, plan, checker)


def _recheck_windows(
    session: Any, units: Sequence[_Unit], plan: Plan, judged: pa.Table, windows: list[int]
) -> pa.Table:
    """Read the segments again that contain these windows, and compare every entry."""
    again = []
    for text in _notes(judged, RANGE)["message"].to_pylist():
        number, low, high = (int(word) for word in text.split())
        at = np.searchsorted(windows, low // WINDOW_ENTRIES)
        if at < len(windows) and windows[at] <= high // WINDOW_ENTRIES:
            again.append(units[number])
    narrower = replace(plan, by_value=(), kept=frozenset(windows))
    packed = _read(session, again, narrower).repartition(max(1, plan.parts // 2), "part")
    judged = _judged(packed, judge_part, narrower)
    return judged.filter(pc.invert(pc.is_in(judged["kind"], pa.array(_NOTES))))


def _notes(judged: pa.Table, kind: str) -> pa.Table:
    return judged.filter(pc.equal(judged["kind"], kind))


def _numbers(judged: pa.Table, kind: str, checker: str | None = None) -> list[int]:
    """Return the numbers in the rows of a kind, each once, sorted."""
    rows = _notes(judged, kind)
    if checker is not None:
        rows = rows.filter(pc.equal(rows["checker"], checker))
    return sorted({number for named in rows["operations"].to_pylist() for number in named})
