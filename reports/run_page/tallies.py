"""Counts and lists of the run's page: outcomes, errors, the nodes' last status, files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.plain_json import mapping
from shaketable.reports.run_view import DrainRow, StatsRow

ERRORS_MAX: Final = 30
"""Different error texts that are listed."""


def outcomes(operations: pa.Table) -> tuple[int, int, int]:
    """Count operations that ended ok, fail and info."""
    counts = Counter(
        {row["values"]: row["counts"] for row in pc.value_counts(operations["outcome"]).to_pylist()}
    )
    return counts["ok"], counts["fail"], counts["info"]


def stats_rows(operations: pa.Table, windows: Sequence[FaultWindow]) -> tuple[StatsRow, ...]:
    """Count operations by f and outcome, inside and outside of fault windows (by their call)."""
    if operations.num_rows == 0:
        return ()
    calls = operations["call_ns"]
    inside = pc.less(calls, 0)  # false everywhere
    for window in windows:
        during = pc.and_(
            pc.greater_equal(calls, window.start_ns), pc.less_equal(calls, window.stop_ns)
        )
        inside = pc.or_(inside, during)
    grouped = (
        pa.table({"f": operations["f"], "outcome": operations["outcome"], "inside": inside})
        .group_by(["f", "outcome", "inside"])
        .aggregate([([], "count_all")])
        .to_pylist()
    )
    counts = {(row["f"], row["inside"], row["outcome"]): row["count_all"] for row in grouped}
    return tuple(
        StatsRow(f, "inside faults" if place else "outside faults", *cells)
        for f in sorted({row["f"] for row in grouped})
        for place in (False, True)
        if any(cells := [counts.get((f, place, outcome), 0) for outcome in ("ok", "fail", "info")])
    )


def error_texts(operations: pa.Table) -> tuple[tuple[str, str, int], ...]:
    """Count errors by outcome and text, the most frequent first."""
    failed = operations.filter(pc.is_valid(operations["error"]))
    rows = failed.group_by(["outcome", "error"]).aggregate([([], "count_all")]).to_pylist()
    rows.sort(key=lambda row: (-row["count_all"], row["error"]))
    listed = [(row["outcome"], row["error"], row["count_all"]) for row in rows[:ERRORS_MAX]]
    if rest := rows[ERRORS_MAX:]:
        listed.append(("", f"{len(rest)} other texts", sum(row["count_all"] for row in rest)))
    return tuple(listed)


def drain_rows(drain: Mapping[str, Any]) -> tuple[DrainRow, ...]:
    """Return the status that each node reported while draining."""
    rows = []
    for node, answer in sorted(mapping(drain.get("nodes")).items()):
        status = mapping(answer)
        rows.append(
            DrainRow(
                node=str(node),
                role=status.get("role"),
                term=status.get("term"),
                leader=status.get("leader"),
                committed_index=status.get("committed_index"),
                end_index=status.get("end_index"),
            )
        )
    return tuple(rows)


def existing_files(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the relative paths and descriptions of files to open, those that exist."""
    named = [
        ("campaign.toml", "the campaign as resolved, seed included"),
        ("schedule.json", "the faults as drawn, with their times"),
        ("results.json", "the verdicts with their evidence"),
        ("history.jsonl", "every event, one a line"),
        ("history/events.parquet", "every event, as a table"),
        ("history/operations", "every operation, as Parquet"),
        ("faults.jsonl", "the ledger of faults"),
        ("status.jsonl", "changes of the nodes' roles and terms"),
        (
            "samples.jsonl",
            "how far the nodes' logs were and what their clocks showed, now and then",
        ),
        ("drain.json", "what the nodes reported while draining"),
        ("run.json", "facts of the run"),
        ("memory.jsonl", "what the harness and its workers had of memory"),
        ("shaketable.log", "the harness's log"),
        ("junit.xml", "the verdicts for CI"),
    ]
    files = [(path, what) for path, what in named if (folder / path).exists()]
    logs = sorted(folder.glob("nodes/*/node.log"))
    files += [(log.relative_to(folder).as_posix(), f"log of {log.parent.name}") for log in logs]
    return tuple(files)


# Faults by family: how many were injected and how many took effect, from results.json.

NOT_KNOWN = "other"


def families(results: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
    """Return (family, took effect, injected) by family; empty for results of older versions."""
    took_effect: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for of_fault in mapping(mapping(results.get("faults")).get("by_name")).values():
        family = str(of_fault["family"]) if "family" in mapping(of_fault) else NOT_KNOWN
        took_effect[family] += int(mapping(of_fault).get("bit") or 0)
        done[family] += int(mapping(of_fault).get("done") or 0)
    return tuple((family, took_effect[family], done[family]) for family in sorted(done))
