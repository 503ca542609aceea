"""Reads what is known of one stored run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from harness.errors import HarnessError
from harness.gating.verdict_file import ResultsFile, conclusions_of, outcome_of
from harness.history.export import fault_windows, load_events, load_operations
from harness.history.run_folder import RunFolder
from reports.gating.measures import CEILINGS
from reports.gating.measuring import COLUMNS, Measured, measure_loss, measure_operations
from reports.gating.model import Bites, RunFacts
from reports.gating.policy import Policy

NS_PER_S: Final = 1e9
MEASURED: Final = tuple(key for key in CEILINGS if key != "acknowledged_loss")
"""Ceilings for which the operations are read."""


class PhaseFile(msgspec.Struct, frozen=True):
    """A phase in run.json."""

    stop_ns: int = 0


class RunFile(msgspec.Struct, frozen=True):
    """What a gate reads of run.json."""

    status: str = ""
    mutant: str | None = None
    command: str = ""
    phases: tuple[PhaseFile, ...] = ()


def read(folder: RunFolder, shown: str, policy: Policy, name: str = "") -> RunFacts:
    """Read what is known of a run; `shown` is its path for people."""
    name = name or f"{folder.path.parent.name}/{folder.path.name}"
    run = _run_file(folder)
    seconds = max((phase.stop_ns for phase in run.phases), default=0) / NS_PER_S
    campaign, report = _relative(folder.campaign_toml), _relative(folder.report_html)
    report = report if folder.report_html.exists() else ""
    try:
        results = msgspec.json.decode(folder.results_json.read_bytes(), type=ResultsFile)
    except (OSError, msgspec.DecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return RunFacts(
            name=name,
            path=shown,
            outcome=None,
            failure=f"no verdict: nothing was judged, or its results.json cannot be read ({why});"
            f" ./shaketable analyze {shown}",
            mutant=run.mutant,
            repeat=run.command,
            campaign=campaign,
            report=report,
            seconds=seconds,
        )
    conclusions = conclusions_of(results.checkers)
    measured = _measured(folder, policy)
    loss = measure_loss(conclusions)
    if results.faults.bit is not None:
        measured.values["faults_bit"] = results.faults.bit
    return RunFacts(
        name=name,
        path=shown,
        outcome=outcome_of(results.valid, conclusions),
        failure="" if conclusions else "unknown: no checker judged the run",
        conclusions=conclusions,
        asked=tuple(one for one in results.faults_asked if one not in results.faults_unavailable),
        unavailable=results.faults_unavailable,
        faults={one: Bites(of.bit, of.done) for one, of in results.faults.by_name.items()},
        measures={**measured.values, **loss.values},
        missing={**measured.missing, **loss.missing},
        mutant=results.mutant,
        repeat=results.repeat or run.command,
        campaign=campaign,
        report=report,
        seconds=seconds,
    )


def _measured(folder: RunFolder, policy: Policy) -> Measured:
    """Measure the operations, if the policy asks for a number of theirs."""
    asked = [key for key in MEASURED if getattr(policy.ceilings, key, None) is not None]
    if policy.floors.operations:
        asked.append("operations")
    if not asked:
        return Measured()
    try:
        operations = load_operations(folder, COLUMNS)
        events = load_events(folder)
        end_ns = max(pc.max(column).as_py() or 0 for column in _ends(operations, events))
        windows = fault_windows(events, end_ns)
        return measure_operations(operations, windows, policy.unavailable_from_s)
    except (HarnessError, ValueError, KeyError, TypeError) as error:
        return Measured(missing=dict.fromkeys(asked, str(error)))


def _ends(operations: pa.Table, events: pa.Table) -> tuple[Any, ...]:
    return (operations["call_ns"], operations["return_ns"], events["time_ns"])


def _run_file(folder: RunFolder) -> RunFile:
    try:
        return msgspec.json.decode(folder.run_json.read_bytes(), type=RunFile)
    except (OSError, msgspec.DecodeError):
        return RunFile()  # a run that was killed; what depends on it is told by its verdict


def _relative(path: Path) -> str:
    """The path from here, as CI systems want it, where it is below; else from the root."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
