"""Read what a gate is given: policy files, and the results of runs.

An unreadable part of a run makes its verdict or its numbers unknown, never valid.
"""

from __future__ import annotations

import datetime
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.errors import HarnessError, UsageError, unknown_name
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import FINDINGS_KEPT_MAX, ExitCode, Outcome
from shaketable.harness.history import run_folder
from shaketable.harness.history.export import (
    fault_windows,
    load_given_up,
    load_nemesis,
    load_operations,
)
from shaketable.harness.history.run_folder import (
    COUNT_MAX,
    RESULTS_BYTES_MAX,
    SECONDS_MAX,
    CheckerFile,
    Count,
    FindingFile,
    NoPlainFileError,
    RunFolder,
    Seconds,
    UnreadableError,
    Valid,
    decode_json,
    read_json,
    read_plain,
    read_results,
)
from shaketable.harness.matrix import folder as folders
from shaketable.harness.matrix.folder import Event, MatrixFolder
from shaketable.harness.matrix.folder import Outcome as Attempt
from shaketable.reports.availability import ClientActivity, active_until, phase_spans
from shaketable.reports.gating.policy import (
    CEILINGS,
    UNAVAILABLE,
    Allowance,
    Ceilings,
    Detection,
    Floors,
    Policy,
)
from shaketable.reports.gating.rulings import Conclusion, FaultEffects, Kind, RunFacts
from shaketable.reports.gating.run_measures import (
    COLUMNS,
    Measured,
    measure_loss,
    measure_operations,
)
from shaketable.reports.run_page.violations import kind_totals
from shaketable.reports.violation_page.violation_view import read_index

# Policy files.

ALLOWED_DAYS_MAX: Final = 366
"""The longest allowance: an exception must be reviewed again after this time."""
POLICY_BYTES_MAX: Final = 1 << 20

_TABLES: Final[Mapping[str, type[msgspec.Struct]]] = {
    "floors": Floors,
    "ceilings": Ceilings,
    "detection": Detection,
}


def load_policy(path: Path, today_utc: datetime.date) -> Policy:
    """Read a policy file.

    Raises:
        UsageError: it cannot be read, is no TOML, or is invalid.
    """
    try:
        with path.open("rb") as file:
            data = file.read(POLICY_BYTES_MAX + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot read the policy {path}: {why}") from error
    if len(data) > POLICY_BYTES_MAX:
        raise UsageError(f"{path}: more than {POLICY_BYTES_MAX >> 20} MiB: no policy")
    return parse_policy(text, str(path), today_utc)


def parse_policy(text: str, where: str, today_utc: datetime.date) -> Policy:
    """Read a policy from TOML text; `where` names the file in errors.

    Raises:
        UsageError: as for `load`.
    """
    try:
        given = tomllib.loads(text)
    except ValueError as error:
        raise UsageError(f"{where}: not TOML: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{where}: nested too deeply") from error
    _refuse_unknown_keys(given, where)
    for table in _tables(given.get("allow")):
        for key in ("runs", "checkers", "faults"):
            if isinstance(table.get(key), str):  # one name is a list of one
                table[key] = [table[key]]
    try:
        policy = msgspec.convert(given, Policy)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {_error_text(error)}") from error
    for allowance in policy.allow:
        _check_allowance(allowance, where, today_utc)
    return policy


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _refuse_unknown_keys(given: Mapping[str, Any], where: str) -> None:
    _refuse(given, Policy, where, "")
    for table, struct in _TABLES.items():
        if isinstance(given.get(table), dict):
            _refuse(given[table], struct, where, f"[{table}]: ")
    for allowance in _tables(given.get("allow")):
        if allowance.get("verdict") == "invalid":
            raise UsageError(f"{where}: [[allow]]: no policy can allow an invalid verdict")
        _refuse(allowance, Allowance, where, "[[allow]]: ")


def _refuse(given: Mapping[str, Any], struct: type[msgspec.Struct], where: str, at: str) -> None:
    known = [field.encode_name for field in msgspec.structs.fields(struct)]
    for key in given:
        if key not in known:
            raise UsageError(f"{where}: {at}{unknown_name('key', key, known)}")


def _check_allowance(allowance: Allowance, where: str, today_utc: datetime.date) -> None:
    if (allowance.verdict == UNAVAILABLE) != bool(allowance.faults):
        raise UsageError(
            f'{where}: [[allow]]: "{UNAVAILABLE}" names the faults that a run may lack'
            ' (faults = ["..."]), and nothing else does'
        )
    days = (allowance.until - today_utc).days
    if days > ALLOWED_DAYS_MAX:
        raise UsageError(
            f"{where}: [[allow]]: until {allowance.until} is {days} days away; "
            f"at most {ALLOWED_DAYS_MAX} may be allowed at once"
        )


def _error_text(error: msgspec.ValidationError) -> str:
    """Return where in the file the error is, and what was expected."""
    match = re.fullmatch(r"(.*?) - at `\$\.?(.*?)`", str(error), re.DOTALL)
    what, place = match.groups() if match else (str(error), "")
    what = what.replace("`", "")
    return f"{place}: {what}" if place else what


# Results of runs.


def read(paths: Sequence[Path], policy: Policy) -> list[RunFacts]:
    """Read the results of the runs at `paths`; a path that is given twice is read once.

    Raises:
        UsageError: one of them holds no run; one line.
    """
    once = {os.path.realpath(path): path for path in reversed(paths)}
    found: list[RunFacts] = []
    for path in reversed(once.values()):
        found += _read(path, policy)
    return found


def _read(path: Path, policy: Policy) -> list[RunFacts]:
    if path.is_file():
        return _verdict_file(path, policy)
    if is_matrix(path):
        return read_matrix(path, policy)
    return [read_stored(run_folder.open_existing(path), str(path), policy)]


def _verdict_file(path: Path, policy: Policy) -> list[RunFacts]:
    """Read a file that `check --json` or `simulate --table --json` wrote."""
    try:
        data = read_plain(path, RESULTS_BYTES_MAX)
        if "planted_bugs" in decode_json(data, dict[str, msgspec.Raw]):
            return _hunts(path, decode_json(data, HuntsFile), policy)
        return _histories(path, decode_json(data, CheckFile))
    except NoPlainFileError as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    except UnreadableError as error:
        raise UsageError(
            f"{path}: neither a folder of a run or a matrix nor a file of check --json"
            f" or simulate --table --json: {error}"
        ) from error


def _histories(path: Path, checked: CheckFile) -> list[RunFacts]:
    """Return the verdicts on foreign histories; a refused history has none."""
    refused = [
        RunFacts(name=one.path, path=str(path), outcome=None, failure=f"not read: {one.why}")
        for one in checked.refused
    ]
    return refused + [
        RunFacts(
            name=one.path,
            path=str(path),
            outcome=outcome_of(one.valid, conclusions := conclusions_of(one.checkers)),
            conclusions=conclusions,
            measures={"operations": sum(one.operations.values())},
            seconds=one.seconds,
        )
        for one in checked.histories
    ]


def _hunts(path: Path, hunted: HuntsFile, policy: Policy) -> list[RunFacts]:
    """Return the planted bugs hunted in a simulated world; a bug counts if every hunt found it."""
    if policy.detection is None:
        raise UsageError(f"{path}: planted bugs, which the policy does not mention ([detection])")
    where = "/".join(part for part in ("simulated", hunted.target, hunted.world) if part)
    return [
        RunFacts(
            name=f"{where}/{bug}",
            path=str(path),
            outcome=Outcome.INVALID if 0 < one.hunts <= one.found else Outcome.VALID,
            failure=f"found in {one.found} of {one.hunts} hunts",
            mutant=bug,
        )
        for bug, one in hunted.planted_bugs.items()
    ]


# The results of a matrix: of every attempt, not only the last one.

TOO_SELDOM: Final = "took effect too seldom"
"""The start of the journal's reason if a fault took effect too seldom."""
OUTCOMES: Final = {
    int(ExitCode.VALID): Outcome.VALID,
    int(ExitCode.UNKNOWN): Outcome.UNKNOWN,
    int(ExitCode.INVALID): Outcome.INVALID,
}


def is_matrix(path: Path) -> bool:
    """Return whether a folder is that of a matrix."""
    return MatrixFolder(path).plan_json.exists()


def read_matrix(path: Path, policy: Policy) -> list[RunFacts]:
    """Read the results of each cell, earlier attempts included.

    Raises:
        UsageError: its plan cannot be read.
        HarnessError: its journal cannot be read.
    """
    try:
        folder, plan = folders.open_existing(path)
    except RecursionError as error:
        raise UsageError(f"{path}: its plan is nested too deeply") from error
    attempts = _attempts(folder.journal)
    facts: list[RunFacts] = []
    for cell in plan.cells:
        name = f"{folder.path.parent.name}/{cell.id}"
        if cell.skipped:
            facts.append(RunFacts(name=name, path=str(path), outcome=None, skipped=cell.skipped))
            continue
        ended = attempts.get(cell.id, [])
        facts += [
            replace(one, vacuous=_seldom_faults(one, plan.effects_min))
            for one in _cell(folder, cell.id, name, path, ended, policy)
        ]
    return facts


def _seldom_faults(facts: RunFacts, effects_min: int) -> str:
    """Return which faults of a cell took effect less often than its matrix requires, or ""."""
    if facts.failure.startswith(TOO_SELDOM):
        return facts.failure
    counts = ", ".join(
        f"{name} {of.took_effect} of {of.done}"
        for name, of in facts.faults.items()
        if of.took_effect < effects_min and name not in facts.unavailable
    )
    return f"{TOO_SELDOM}, at least {effects_min} requested: {counts}" if counts else ""


def _cell(
    folder: MatrixFolder,
    cell: str,
    name: str,
    path: Path,
    attempts: list[Attempt],
    policy: Policy,
) -> Iterator[RunFacts]:
    for attempt in attempts[:-1]:
        facts = _attempt(folder, f"{name} attempt {attempt.attempt}", path, attempt, policy)
        yield replace(facts, is_retried=True)
    known = {attempt.run for attempt in attempts}
    for run in sorted(folder.runs.glob(f"{cell}/2*")):
        where = str(run.relative_to(folder.path))
        if where not in known and not run.is_symlink():
            # its matrix was killed before journaling it
            facts = read_stored(RunFolder(run), _below(path, where), policy, f"{name} {run.name}")
            yield replace(facts, is_retried=True)
    if attempts:
        yield _attempt(folder, name, path, attempts[-1], policy)
    else:
        todo = f"it was not run; to go on: {PROGRAM} matrix --resume {path}"
        yield RunFacts(name=name, path=str(path), outcome=None, failure=todo)


def _attempt(
    folder: MatrixFolder, name: str, path: Path, attempt: Attempt, policy: Policy
) -> RunFacts:
    """Join an attempt's journal entry with the results in its run's folder."""
    noted = OUTCOMES.get(attempt.code)
    faults = {fault: FaultEffects(of.took_effect, of.done) for fault, of in attempt.faults.items()}
    run = folder.path / attempt.run
    if attempt.run and run.is_dir() and _is_below(run, folder.path):
        facts = read_stored(RunFolder(run), _below(path, attempt.run), policy, name)
        if noted is None:  # its harness failed: only a violation counts as a verdict
            is_wrong = facts.outcome is Outcome.INVALID
            return replace(
                facts, outcome=Outcome.INVALID if is_wrong else None, failure=attempt.why
            )
        assert facts.outcome is not None, "a folder that is read has one, unknown at least"
        worst = max(noted, facts.outcome)
        return replace(facts, outcome=worst, failure=attempt.why or facts.failure)
    return RunFacts(
        name=name,
        path=str(path),
        outcome=noted,
        failure=attempt.why or _without_folder(attempt.code, noted),
        asked=tuple(faults),
        faults=faults,
        measures={
            "operations": min(attempt.operations, COUNT_MAX),
            "faults_took_effect": min(
                sum(effects.took_effect for effects in faults.values()), COUNT_MAX
            ),
        },
        seconds=min(attempt.took_s, SECONDS_MAX),
    )


def _without_folder(code: int, noted: Outcome | None) -> str:
    if noted is None:
        return f"its harness ended with exit code {code}"
    return f"the verdict is {noted.name.lower()} by the journal; the run's folder is not there"


def _below(path: Path, where: str) -> str:
    return os.path.join(path, where)  # noqa: PTH118 - as the user typed it


def _is_below(path: Path, root: Path) -> bool:
    """Return whether a path from the journal stays inside the matrix's own folder."""
    return path.resolve().is_relative_to(root.resolve())


def _attempts(path: Path) -> dict[str, list[Attempt]]:
    """Read the journal, also while the matrix runs; ignore a torn last line."""
    try:
        whole, _, _ = read_plain(path, RESULTS_BYTES_MAX).rpartition(b"\n")
    except NoPlainFileError as error:
        raise HarnessError(f"cannot read {path}: {error}") from error
    attempts: dict[str, list[Attempt]] = {}
    for number, line in enumerate(whole.splitlines(), 1):
        if not line:
            continue
        try:
            event = decode_json(line, Event)
        except UnreadableError as error:
            raise HarnessError(f"{path}: line {number} is none of ours: {error}") from error
        if event.outcome is not None:
            attempts.setdefault(event.cell, []).append(event.outcome)
    return attempts


# The results of one stored run.

NS_PER_S: Final = 1e9
MEASURED: Final = tuple(key for key in CEILINGS if key != "acknowledged_loss")
"""Ceilings for which the operations are read."""
CAMPAIGN_BYTES_MAX: Final = 1 << 20


def read_stored(folder: RunFolder, shown: str, policy: Policy, name: str = "") -> RunFacts:
    """Read the results of a run; `shown` is its path as printed."""
    name = name or f"{folder.path.parent.name}/{folder.path.name}"
    run = _run_facts(folder)
    stops = [span.stop_ns for span in phase_spans(run.get("phases"), 0)]
    seconds = max(stops, default=0) / NS_PER_S
    campaign, report = _relative(folder.campaign_toml), _relative(folder.report_html)
    report = report if folder.report_html.exists() else ""
    try:
        results = read_results(folder)
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
    if results.faults.took_effect is not None:
        measured.values["faults_took_effect"] = results.faults.took_effect
    return RunFacts(
        name=name,
        path=shown,
        outcome=outcome_of(results.valid, conclusions),
        failure="" if conclusions else "unknown: no checker judged the run",
        conclusions=conclusions,
        asked=tuple(one for one in results.faults_asked if one not in results.faults_unavailable),
        unavailable=results.faults_unavailable,
        faults={
            one: FaultEffects(of.took_effect, of.done) for one, of in results.faults.by_name.items()
        },
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


# The files of `check --json` and of `simulate --table --json`.


class HistoryFile(msgspec.Struct, frozen=True):
    """One history in a file of `check --json`."""

    path: str
    valid: Valid
    checkers: dict[str, CheckerFile] = {}
    operations: dict[str, Count] = {}
    seconds: Seconds = 0.0


class RefusedFile(msgspec.Struct, frozen=True):
    """A history that `check` could not read, and why."""

    path: str
    why: str


class CheckFile(msgspec.Struct, frozen=True):
    """A file of `check --json`."""

    histories: tuple[HistoryFile, ...]
    refused: tuple[RefusedFile, ...] = ()


class HuntedFile(msgspec.Struct, frozen=True):
    """How often a planted bug was hunted, and how often found."""

    hunts: Count
    found: Count
    invariants: tuple[str, ...] = ()


class HuntsFile(msgspec.Struct, frozen=True):
    """A file of `simulate --table --json`."""

    planted_bugs: dict[str, HuntedFile]
    target: str = ""
    world: str = ""


def outcome_of(valid: Valid, conclusions: Sequence[Conclusion]) -> Outcome:
    """Return the worst of a file's verdict and its checkers'; no checker at all is unknown."""
    worst = max((one.outcome for one in conclusions), default=Outcome.UNKNOWN)
    return max(worst, _outcome(valid))


def conclusions_of(checkers: Mapping[str, CheckerFile]) -> tuple[Conclusion, ...]:
    """Return the checkers' conclusions, with findings grouped by kind."""
    return tuple(
        Conclusion(
            checker=name,
            outcome=_outcome(one.valid),
            summary=one.summary,
            kinds=_kinds(one.findings, kind_totals(msgspec.to_builtins(one)), one.findings_total),
            observed=_kinds(one.observed, *_observed_totals(one)),
            counts=one.counts,
        )
        for name, one in checkers.items()
    )


def _outcome(valid: Valid) -> Outcome:
    if valid == "unknown":
        return Outcome.UNKNOWN
    return Outcome.VALID if valid else Outcome.INVALID


def _observed_totals(one: CheckerFile) -> tuple[dict[str, int], int]:
    """Return the number of observed findings by kind and in all, stored or only counted."""
    totals = dict(Counter(finding.kind for finding in one.observed))
    counted = one.data.get("observed")
    if not isinstance(counted, dict):  # an older run has only the stored ones, perhaps not all
        is_cut = len(one.observed) >= FINDINGS_KEPT_MAX
        return totals, len(one.observed) + is_cut
    for kind, count in counted.items():
        if isinstance(count, int):
            totals[kind] = max(count, totals.get(kind, 0))
    return totals, sum(totals.values())


def _kinds(
    findings: Sequence[FindingFile], totals: Mapping[str, int], total: int
) -> tuple[Kind, ...]:
    """Return each kind with its first finding; `total` counts findings of all kinds."""
    first: dict[str, FindingFile] = {}
    for finding in findings:
        first.setdefault(finding.kind, finding)
    is_least = total > sum(totals.values())
    kinds = []
    for name in dict.fromkeys((*first, *totals)):
        one = first.get(name, FindingFile(name))
        count = min(totals.get(name, 1), COUNT_MAX)
        kinds.append(Kind(name, count, one.message, one.key, one.offset, one.operations, is_least))
    return tuple(kinds)
