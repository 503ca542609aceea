"""The run folder's files -> a pure view model, tolerant of what a killed run did not write."""

from __future__ import annotations

from pathlib import Path

from reports.model import RunView


def build_view(folder_path: Path) -> RunView:
    """Read a run folder into the view model of its report."""
    raise NotImplementedError
