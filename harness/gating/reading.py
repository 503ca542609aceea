"""Read the runs that a gate judges: folders of runs and matrices, files of `check` and `simulate`.

An unreadable part of a run makes its verdict or its numbers unknown, never valid.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.gating import matrices, stored_runs
from shaketable.harness.gating.verdict_file import (
    FILE_BYTES_MAX,
    CheckFile,
    HuntsFile,
    UnreadableError,
    conclusions_of,
    decode_json,
    outcome_of,
)
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.gating.policy import Policy
from shaketable.reports.gating.rulings import RunFacts


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
        return _file(path, policy)
    if matrices.is_matrix(path):
        return matrices.read(path, policy)
    return [stored_runs.read(run_folder.open_existing(path), str(path), policy)]


def _file(path: Path, policy: Policy) -> list[RunFacts]:
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
