"""Reads what a gate judges: run folders, matrix folders, what `check --json` wrote.

What cannot be read of a run makes its verdict or its numbers unknown, never valid.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from harness.errors import HarnessError, UsageError
from harness.gating import matrices, stored_runs
from harness.gating.verdict_file import CheckFile, conclusions_of, outcome_of
from harness.history import run_folder
from reports.gating.model import RunFacts
from reports.gating.policy import Policy

FILE_BYTES_MAX: Final = 256 << 20


def read(paths: Sequence[Path], policy: Policy) -> list[RunFacts]:
    """Read what is known of the runs at `paths`; what is given twice is read once.

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
        return _histories(path)
    if matrices.is_one(path):
        return matrices.read(path, policy)
    return [stored_runs.read(run_folder.open_existing(path), str(path), policy)]


def _histories(path: Path) -> list[RunFacts]:
    """What `check --json` wrote: verdicts on histories of others, without faults."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(f"{path}: more than {FILE_BYTES_MAX >> 20} MiB: not from check --json")
        checked = msgspec.json.decode(path.read_bytes(), type=CheckFile)
    except OSError as error:
        raise HarnessError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}: neither a folder of a run or a matrix nor a file of check --json: {error}"
        ) from error
    return [
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
