"""Read the runs that a gate judges: folders of runs and matrices, files of `check` and `simulate`.

An unreadable part of a run makes its verdict or its numbers unknown, never valid.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.program import PROGRAM
from shaketable.harness.contracts.verdict import ExitCode, Outcome
from shaketable.harness.gating import stored_runs
from shaketable.harness.gating.verdict_file import (
    COUNT_MAX,
    FILE_BYTES_MAX,
    SECONDS_MAX,
    CheckFile,
    HuntsFile,
    UnreadableError,
    conclusions_of,
    decode_json,
    outcome_of,
)
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import NoPlainFileError, RunFolder, read_plain
from shaketable.harness.matrix import folder as folders
from shaketable.harness.matrix.folder import Event, MatrixFolder
from shaketable.harness.matrix.folder import Outcome as Attempt
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import FaultEffects, RunFacts


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
    return [stored_runs.read(run_folder.open_existing(path), str(path), policy)]


def _verdict_file(path: Path, policy: Policy) -> list[RunFacts]:
    """Read a file that `check --json` or `simulate --table --json` wrote."""
    try:
        data = read_plain(path, FILE_BYTES_MAX)
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
            facts = stored_runs.read(
                RunFolder(run), _below(path, where), policy, f"{name} {run.name}"
            )
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
    faults = {fault: FaultEffects(of.bit, of.done) for fault, of in attempt.faults.items()}
    run = folder.path / attempt.run
    if attempt.run and run.is_dir() and _is_below(run, folder.path):
        facts = stored_runs.read(RunFolder(run), _below(path, attempt.run), policy, name)
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
            "faults_bit": min(sum(effects.took_effect for effects in faults.values()), COUNT_MAX),
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
        whole, _, _ = read_plain(path, FILE_BYTES_MAX).rpartition(b"\n")
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
