"""Runs checkers over split logs as the Spark engine does, in this process and without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shaketable.checkers.engine.judge import TAGGED, conclude
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
    judge_part,
    judge_places,
    open_places,
    pack_log,
    pack_operations,
)
from shaketable.checkers.logs.append_fates import PLACES

NOTES = pa.array((UNREADABLE, RANGE, UNSETTLED_AT, OTHER_WINDOWS))


def grouped(batches: Iterable[pa.RecordBatch]) -> list[pa.Table]:
    packed = pa.Table.from_batches(batches, PACKED)
    parts = sorted(set(packed["part"].to_pylist()))
    return [packed.filter(pc.equal(packed["part"], part)) for part in parts]


def numbers(told: pa.Table, kind: str) -> list[int]:
    rows = told.filter(pc.equal(told["kind"], kind))["operations"].to_pylist()
    return sorted({number for row in rows for number in row})


def run_split(
    path: Path,
    operations: pa.Table,
    logs: Mapping[str, Sequence[pa.Table]],
    context: Any,
    checkers: Sequence[Any],
    parts: int,
    *,
    side_by_side: bool,
) -> tuple[list[Any], dict[str, int]]:
    """Judge `operations` and each node's segments (tables of ENTRIES) in `parts` parts;
    `side_by_side`: one task reads the same segment of all nodes.

    Returns the verdicts, and how many places and windows a second round looked at.
    """
    path.mkdir(exist_ok=True)
    pq.write_table(operations, path / "operations.parquet", row_group_size=5)
    names = max((len(of) for of in logs.values()), default=0)
    sources = [
        [LogSource(node, "", str(n)) for node, of in logs.items() if n < len(of)]
        for n in range(names)
    ]
    if not side_by_side:
        sources = [[source] for of in sources for source in of]
    units = [LogUnit(number, tuple(of)) for number, of in enumerate(sources)]

    def read(source: LogSource) -> Iterable[pa.RecordBatch]:
        return iter(logs[source.node][int(source.segment)].to_batches(max_chunksize=3))

    value = tuple(c for c in checkers if hasattr(c, "judge_values"))
    window = tuple(c for c in checkers if hasattr(c, "judge_windows"))
    plan = Plan(parts, context, value, window, read)
    batches = [batch for unit in units for batch in pack_log(unit, plan)]
    groups = pq.read_metadata(path / "operations.parquet").num_row_groups
    for group in range(groups):
        unit = OperationsUnit(str(path / "operations.parquet"), (group,))
        batches += list(pack_operations(unit, plan))
    told = pa.concat_tables(
        [TAGGED.empty_table(), *(judge_part(rows, plan) for rows in grouped(batches))]
    )
    found = [told.filter(pc.invert(pc.is_in(told["kind"], NOTES)))]
    told_by = told.filter(pc.equal(told["kind"], UNSETTLED_AT))["offset"].to_pylist()
    places, windows = numbers(told, UNSETTLED_AT), numbers(told, OTHER_WINDOWS)
    if places:
        is_wanted = np.zeros(PLACES, dtype=np.bool_)
        is_wanted[places] = True
        bits = np.packbits(is_wanted).tobytes()
        opened = [
            batch
            for rows in grouped(batches)
            if rows["part"][0].as_py() < parts
            for batch in open_places(
                rows, plan, value[0], (bits, frozenset(told_by)), 3
            ).to_batches()
        ]
        found += [judge_places(rows, plan, value[0]) for rows in grouped(opened)]
    if windows:
        again = Plan(parts, context, (), window, read, frozenset(windows))
        kept = [batch for unit in units for batch in pack_log(unit, again)]
        found += [judge_part(rows, again) for rows in grouped(kept)]
    findings = pa.concat_tables(found)
    findings = findings.filter(pc.invert(pc.is_in(findings["kind"], NOTES)))
    return conclude(checkers, findings, context), {"places": len(places), "windows": len(windows)}
