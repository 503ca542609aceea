"""The folder of a matrix: its plan, its queue, its cells' campaigns, what they printed, their runs.

store/matrix-NAME/<UTC time>/
  matrix.toml         as it was given
  plan.json           all cells, those that will not be run with the reason
  journal.jsonl       the queue: what was begun, what came of it
  cells/ID.toml       each cell's campaign
  output/ID.1.txt     what its first attempt printed
  runs/ID/<UTC time>/ the run's own folder
  results.json        what came of all
  matrix.html         the same, to be read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from shaketable.harness.campaigns import campaign as campaigns
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.history.run_folder import LATEST, utc_name, write_atomically
from shaketable.harness.matrix.plan import Plan

PREFIX = "matrix-"


@dataclass(frozen=True, slots=True)
class MatrixFolder:
    """The names of a matrix's files; makes none of them."""

    path: Path

    @property
    def matrix_toml(self) -> Path:
        """The matrix file as it was given."""
        return self.path / "matrix.toml"

    @property
    def plan_json(self) -> Path:
        """All cells."""
        return self.path / "plan.json"

    @property
    def journal(self) -> Path:
        """The queue."""
        return self.path / "journal.jsonl"

    @property
    def runs(self) -> Path:
        """The store of its runs."""
        return self.path / "runs"

    @property
    def results_json(self) -> Path:
        """What came of all cells, for machines."""
        return self.path / "results.json"

    @property
    def page(self) -> Path:
        """What came of all cells, to be read."""
        return self.path / "matrix.html"

    def campaign(self, cell: str) -> Path:
        """The campaign file of a cell."""
        return self.path / "cells" / f"{cell}.toml"

    def output(self, cell: str, attempt: int) -> Path:
        """What an attempt at a cell printed."""
        return self.path / "output" / f"{cell}.{attempt}.txt"


def create(
    store: Path, plan: Plan, campaigns_of: Mapping[str, Campaign], source: Path, now_utc: datetime
) -> MatrixFolder:
    """Make the folder of a new matrix with its plan and the campaigns of its cells.

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
    """Open the folder of a matrix that was begun.

    Raises:
        UsageError: it is none.
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
