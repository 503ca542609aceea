"""The folder of a matrix: its plan, its journal, and the campaigns, outputs and runs of its cells.

store/matrix-NAME/<UTC time>/
  matrix.toml         as it was given
  plan.json           all cells, skipped ones with the reason
  journal.jsonl       the queue: attempts that began, and their outcomes
  cells/ID.toml       each cell's campaign
  output/ID.1.txt     what its first attempt printed
  runs/ID/<UTC time>/ the run's own folder
  results.json        the outcomes of all cells
  matrix.html         the same as a page
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.verdict import ExitCode
from shaketable.harness.history.run_folder import LATEST, utc_name, write_atomically
from shaketable.harness.matrix.plan import Plan

PREFIX = "matrix-"


@dataclass(frozen=True, slots=True)
class MatrixFolder:
    """The paths of a matrix's files; creates none of them."""

    path: Path

    @property
    def matrix_toml(self) -> Path:
        """The matrix file as it was given."""
        return self.path / "matrix.toml"

    @property
    def plan_json(self) -> Path:
        """The plan: all cells."""
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        """The journal of the queue."""
        return self.path / "journal.jsonl"

    @property
    def runs(self) -> Path:
        """The store of its runs."""
        return self.path / "runs"

    @property
    def results_json(self) -> Path:
        """The outcomes of all cells, for programs."""
        return self.path / "results.json"

    @property
    def page(self) -> Path:
        """The page with the outcomes of all cells."""
        return self.path / "matrix.html"

    def campaign(self, cell: str) -> Path:
        """The campaign file of a cell."""
        return self.path / "cells" / f"{cell}.toml"

    def output(self, cell: str, attempt: int) -> Path:
        """The output of an attempt at a cell."""
        return self.path / "output" / f"{cell}.{attempt}.txt"


def create(
    store: Path, plan: Plan, campaigns_of: Mapping[str, Campaign], source: Path, now_utc: datetime
) -> MatrixFolder:
    """Create the folder of a new matrix with its plan and the campaigns of its cells.

    Raises:
        UsageError: the store cannot be written.
    """
    parent = store.resolve() / f"{PREFIX}{plan.name}"
    folder = MatrixFolder(parent / utc_name(now_utc))
    try:
        folder.path.mkdir(parents=True)
        for name in ("cells", "output", "runs"):
            (folder.path / name).mkdir()
        folder.matrix_toml.write_bytes(source.read_bytes())
        for cell, campaign in campaigns_of.items():
            folder.campaign(cell).write_text(campaigns.to_toml(campaign), encoding="utf-8")
        link = parent / LATEST
        fresh = parent / f".{folder.path.name}"
        fresh.symlink_to(folder.path.name, target_is_directory=True)
        fresh.replace(link)
    except OSError as error:
        raise UsageError(f"store {store}: {error.strerror}: {error.filename}") from error
    write_atomically(folder.plan_json, msgspec.json.format(msgspec.json.encode(plan), indent=1))
    return folder


def open_existing(path: Path) -> tuple[MatrixFolder, Plan]:
    """Open the folder of an existing matrix.

    Raises:
        UsageError: it is not the folder of a matrix.
    """
    folder = MatrixFolder(path.resolve())
    try:
        return folder, msgspec.json.decode(folder.plan_json.read_bytes(), type=Plan)
    except OSError as error:
        raise UsageError(
            f"{path}: not the folder of a matrix ({folder.plan_json.name}: {error.strerror});"
            f" give one such as store/{PREFIX}NAME/{LATEST}"
        ) from error
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: its plan cannot be read: {error}") from error


# The queue of a matrix on disk: a journal of attempts and their outcomes.
#
# A line is one event, written by one write(2) and synced: a harness that is killed loses at most
# the line that it was writing. A cell whose attempt began and did not end is run again. Outcomes
# are never changed; further attempts are appended.
#
# Source: etcd's write-ahead log, for the torn tail; Bazel's build event log.


class FaultCount(msgspec.Struct, frozen=True):
    """How often a fault was injected, and how often it took effect (`took_effect`)."""

    took_effect: int
    done: int


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one attempt at a cell.

    Attributes:
        attempt: its number, from 1.
        code: the exit code of its run, or 2 if a fault took effect too seldom.
        why: what was found, in a sentence.
        run: the run's folder, relative to the matrix's; "" if there is none.
        faults: how often each was injected and took effect.
        lacking: requested faults that are not available there, each with the reason.
        recovery_ns, recovery_max_ns: time until an append was acknowledged again after faults that
            took effect, median and worst; None if there was no such fault.
        operations: number of client operations.
        took_s: duration of the run and its check.
    """

    attempt: int
    code: int
    why: str = ""
    run: str = ""
    faults: dict[str, FaultCount] = {}
    lacking: dict[str, str] = {}
    recovery_ns: int | None = None
    recovery_max_ns: int | None = None
    operations: int = 0
    took_s: float = 0.0


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of the journal: an attempt at a cell began, or ended with an outcome."""

    cell: str
    attempt: int
    event: Literal["began", "ended"]
    at_utc: str
    outcome: Outcome | None = None


class Journal:
    """The journal of one matrix, open for one process at a time.

    Attributes:
        attempts: the outcomes of each cell's ended attempts, in order.
        begun: how many attempts at each cell began.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the journal, and lock it.

        Raises:
            UsageError: another process has it open, or it cannot be written.
            HarnessError: the file is no journal.
        """
        self.attempts: dict[str, list[Outcome]] = {}
        self.begun: dict[str, int] = {}
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise UsageError(f"{path.parent}: another process runs this matrix now") from error
        self._read()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it; another process may then open it."""
        os.close(self._file)

    def began(self, cell: str, at_utc: str) -> int:
        """Record that an attempt at a cell begins; return its number, from 1."""
        attempt = self.begun.get(cell, 0) + 1
        self._write(Event(cell=cell, attempt=attempt, event="began", at_utc=at_utc))
        return attempt

    def ended(self, cell: str, at_utc: str, outcome: Outcome) -> None:
        """Record the outcome of an attempt at a cell."""
        number = outcome.attempt
        self._write(Event(cell=cell, attempt=number, event="ended", at_utc=at_utc, outcome=outcome))

    def _write(self, event: Event) -> None:
        line = msgspec.json.encode(event) + b"\n"
        try:
            end = os.fstat(self._file).st_size
            written = os.write(self._file, line)
            if written < len(line):
                os.ftruncate(self._file, end)  # the next line must not be appended to a torn one
            os.fsync(self._file)
        except OSError as error:
            raise HarnessError(f"cannot write {self._path}: {error.strerror}") from error
        if written < len(line):
            raise HarnessError(f"cannot write {self._path}: only a part of a line fitted")
        self._apply(event)

    def _apply(self, event: Event) -> None:
        self.begun[event.cell] = max(event.attempt, self.begun.get(event.cell, 0))
        if event.outcome is not None:
            self.attempts.setdefault(event.cell, []).append(event.outcome)

    def _read(self) -> None:
        data = self._path.read_bytes()
        whole, _, torn = data.rpartition(b"\n")
        for number, line in enumerate(whole.splitlines(), 1):
            if not line:
                continue
            try:
                self._apply(msgspec.json.decode(line, type=Event))
            except msgspec.DecodeError as error:
                raise HarnessError(
                    f"{self._path}: line {number} is none of ours: {error}"
                ) from error
        if torn:  # the harness was killed while writing this: drop it
            os.ftruncate(self._file, len(data) - len(torn))


def code_of(attempts: Iterable[Outcome]) -> int | None:
    """Return a cell's exit code: that of its last attempt, but an invalid one is never hidden."""
    codes = [attempt.code for attempt in attempts]
    if not codes:
        return None
    return ExitCode.INVALID if ExitCode.INVALID in codes else codes[-1]


def pending(cells: Iterable[str], attempts: Mapping[str, list[Outcome]], again: bool) -> list[str]:
    """Return the cells still to be run; with `again` also those whose outcome is not valid."""
    return [
        cell
        for cell in cells
        if not attempts.get(cell) or (again and code_of(attempts[cell]) != ExitCode.VALID)
    ]
