"""Read the results of one stored run."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.gating.verdict_file import (
    ResultsFile,
    UnreadableError,
    conclusions_of,
    outcome_of,
    read_json,
)
from shaketable.harness.history.export import (
    fault_windows,
    load_given_up,
    load_nemesis,
    load_operations,
)
from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, read_plain
from shaketable.reports.availability import ClientActivity, active_until, phase_spans
from shaketable.reports.gating.policy import CEILINGS, Policy
from shaketable.reports.gating.rulings import Conclusion, FaultEffects, RunFacts
from shaketable.reports.gating.run_measures import (
    COLUMNS,
    Measured,
    measure_loss,
    measure_operations,
)
from shaketable.reports.violation_page.page_index import read_index

NS_PER_S: Final = 1e9
MEASURED: Final = tuple(key for key in CEILINGS if key != "acknowledged_loss")
"""Ceilings for which the operations are read."""
CAMPAIGN_BYTES_MAX: Final = 1 << 20


def read(folder: RunFolder, shown: str, policy: Policy, name: str = "") -> RunFacts:
    """Read the results of a run; `shown` is its path as printed."""
    name = name or f"{folder.path.parent.name}/{folder.path.name}"
    run = _run_facts(folder)
    stops = [span.stop_ns for span in phase_spans(run.get("phases"), 0)]
    seconds = max(stops, default=0) / NS_PER_S
    campaign, report = _relative(folder.campaign_toml), _relative(folder.report_html)
    report = report if folder.report_html.exists() else ""
    try:
        results = read_json(folder.results_json, ResultsFile)
    except UnreadableError as error:
        return RunFacts(
            name=name,
            path=shown,
            outcome=None,
            failure=f"no verdict: nothing was judged, or its results.json cannot be read ({error});"
            f" {PROGRAM} analyze {shown}",
            mutant=_text(run, "mutant") or None,
            repeat=_text(run, "command"),
            campaign=campaign,
            report=report,
            seconds=seconds,
        )
    conclusions = _with_pages(conclusions_of(results.checkers), folder)
    measured = _measured(folder, policy, run)
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
        faults={one: FaultEffects(of.bit, of.done) for one, of in results.faults.by_name.items()},
        measures={**measured.values, **loss.values},
        missing={**measured.missing, **loss.missing},
        at_least=frozenset(measured.at_least | loss.at_least),
        mutant=results.mutant,
        repeat=results.repeat or _text(run, "command"),
        campaign=campaign,
        report=report,
        seconds=seconds,
    )


def _with_pages(conclusions: tuple[Conclusion, ...], folder: RunFolder) -> tuple[Conclusion, ...]:
    """Add to each kind the page of its first violation that has one."""
    pages = {
        (page.checker, page.kind): _relative(folder.violations / page.file)
        for page in reversed(read_index(folder.violations))
    }
    return tuple(
        replace(
            one,
            kinds=tuple(replace(k, page=pages.get((one.checker, k.name), "")) for k in one.kinds),
        )
        for one in conclusions
    )


def _measured(folder: RunFolder, policy: Policy, run: Mapping[str, Any]) -> Measured:
    """Measure the operations, if the policy needs one of their numbers."""
    needed = [key for key in MEASURED if getattr(policy.ceilings, key, None) is not None]
    if policy.floors.operations:
        needed.append("operations")
    if not needed:
        return Measured()
    try:
        operations = load_operations(folder, COLUMNS)
        nemesis, given_up = load_nemesis(folder), load_given_up(folder)
        times = (operations["call_ns"], operations["return_ns"], nemesis["time_ns"])
        end_ns = max(pc.max(column).as_py() or 0 for column in (*times, given_up["time_ns"]))
        windows = fault_windows(nemesis, end_ns)
        activity = _client_activity(folder, run, end_ns, given_up)
        return measure_operations(operations, windows, activity, policy.unavailable_from_s)
    except (HarnessError, ValueError, KeyError, TypeError, OverflowError) as error:
        return Measured(missing=dict.fromkeys(needed, str(error)))


def _client_activity(
    folder: RunFolder, run: Mapping[str, Any], end_ns: int, given_up: pa.Table
) -> ClientActivity | None:
    """Return when clients worked, if run.json has it."""
    phases = phase_spans(run.get("phases"), end_ns)
    until_ns = active_until(phases, _time_limit_s(folder))
    return None if until_ns is None else ClientActivity(until_ns, given_up)


def _time_limit_s(folder: RunFolder) -> float | None:
    try:
        text = read_plain(folder.campaign_toml, CAMPAIGN_BYTES_MAX).decode()
        limit = tomllib.loads(text).get("time_limit")
    except (NoPlainFileError, ValueError, RecursionError):
        return None
    return float(limit) if isinstance(limit, int | float) and 0 < limit < 1e9 else None


def _run_facts(folder: RunFolder) -> Mapping[str, Any]:
    """Read run.json; {} for a killed run, whose other files show that it is incomplete."""
    try:
        return read_json(folder.run_json, dict[str, Any])
    except UnreadableError:
        return {}


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""


def _relative(path: Path) -> str:
    """Return a path below the working directory as relative, as CI systems need it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
