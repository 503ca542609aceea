"""Folders of runs and matrices as the harness writes them, small, for what reads stored runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shaketable.harness.history.schema import EVENTS, OPERATIONS
from shaketable.harness.matrix.folder import Event, Outcome
from shaketable.harness.matrix.plan import Cell, Plan

MS = 1_000_000
S = 1_000 * MS
FAULT = (4 * S, 6 * S)
"""When the one fault of a run was on; for a second after it began nothing is acknowledged."""


def write_run(folder: Path, results: Mapping[str, Any], **changes: Any) -> Path:
    """Write a run of ten seconds with one fault: an append every 10 ms, done after 2 ms."""
    segments, operations = folder / "history" / "segments", folder / "history" / "operations"
    segments.mkdir(parents=True)
    operations.mkdir()
    (folder / "campaign.toml").write_text('name = "quick"\n')
    (folder / "report.html").write_text("<!doctype html>")
    phases = [{"name": "steady", "start_ns": 0, "stop_ns": 10 * S}]
    run = {"status": "complete", "phases": phases}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "results.json").write_text(json.dumps({**results, **changes}))
    pq.write_table(appends(), operations / "part-0.parquet")
    pq.write_table(fault_events(), folder / "history" / "events.parquet")
    return folder


def appends() -> pa.Table:
    """The appends of a run."""
    rows = []
    for number in range(1000):
        call_ns = number * 10 * MS
        is_out = FAULT[0] <= call_ns < FAULT[0] + S
        row = dict.fromkeys(OPERATIONS.names)
        row |= {"op": 2 * number, "process": 0, "f": "append", "key": "q/0", "input": number}
        row |= {"call_ns": call_ns, "return_ns": None if is_out else call_ns + 2 * MS}
        rows.append({**row, "outcome": "info" if is_out else "ok"})
    return pa.Table.from_pylist(rows, schema=OPERATIONS)


def fault_events() -> pa.Table:
    """The events of a run's one fault, and when clients gave up what no node answered."""
    value = {"fault": 0, "plan": {}, "description": "kill n0", "evidence": "", "measures": {}}
    phases = (("start", FAULT[0], {}), ("stop", FAULT[1], {"took_effect": True}))
    rows = []
    for phase, at_ns, more in phases:
        row = dict.fromkeys(EVENTS.names)
        row |= {"index": at_ns, "time_ns": at_ns, "process": -1, "type": "info", "f": "kill"}
        rows.append({**row, "value": json.dumps({**value, "phase": phase, **more})})
    return pa.Table.from_pylist(rows, schema=EVENTS)


def results(
    valid: bool | str = True, *, kind: str = "lost-append", took_effect: int = 1
) -> dict[str, Any]:
    """The results.json of a run with one kill."""
    finding = {"kind": kind, "message": "value 7 of q/0 is gone", "key": "q/0", "operations": [14]}
    durability = {
        "valid": valid,
        "summary": "1 lost-append" if valid is False else "all stand",
        "counts": {kind: 1} if valid is False else {},
        "findings_total": 1 if valid is False else 0,
        "findings": [finding] if valid is False else [],
    }
    return {
        "format": 1,
        "valid": valid,
        "mutant": None,
        "faults_asked": ["kill"],
        "faults": {
            "applied": 1,
            "took_effect": took_effect,
            "by_name": {"kill": {"done": 1, "took_effect": took_effect}},
        },
        "faults_unavailable": {},
        "repeat": "./shaketable run --seed 7",
        "checkers": {"durability": durability},
    }


def write_matrix(
    folder: Path, attempts: Mapping[str, Sequence[Outcome]], effects_min: int = 1
) -> Path:
    """Write a matrix with a cell for each of `attempts`, and one that is left out."""
    folder.mkdir(parents=True)
    common = {"target": "dledger", "workload": "log", "faults": ("kill",), "seed": "1"}
    cells = [Cell(id=cell, world="sim", **common) for cell in attempts]
    cells.append(Cell(id="wipe-sim", world="sim", skipped="disks are never lost", **common))
    plan = Plan(name="m", effects_min=effects_min, cells=tuple(cells))
    (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
    events = [
        Event(cell=cell, attempt=one.attempt, event="ended", at_utc="now", outcome=one)
        for cell, ended in attempts.items()
        for one in ended
    ]
    lines = b"".join(msgspec.json.encode(event) + b"\n" for event in events)
    (folder / "journal.jsonl").write_bytes(lines + b'{"cell": "torn')
    return folder
