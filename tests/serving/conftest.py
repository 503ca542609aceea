"""A store with runs of every state, some of them hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

HOSTILE = "<script>alert('body')</script>"
Write = Callable[..., Path]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def write_run(store: Path) -> Write:
    """Write a run's folder with what of it the store reads."""

    def write(
        name: str = "quick",
        time: str = "20261122T101500.000Z",
        *,
        valid: bool | str | None = True,
        why: str = "",
        campaign: str = "",
        report: str | None = "<!DOCTYPE html><title>a report</title>",
    ) -> Path:
        folder = store / name / time
        (folder / "history" / "segments").mkdir(parents=True)
        (folder / "nodes" / "n0").mkdir(parents=True)
        (folder / "campaign.toml").write_text(
            campaign
            or f'name = {json.dumps(name)}\ntarget = "dledger"\nworkload = "log"\n'
            'world = "process"\nfaults = ["kill", "pause"]\nseed = "7"\n'
        )
        if valid is not None:
            checkers = {"log": {"valid": valid, "summary": why}}
            results = {"valid": valid, "checkers": checkers}
            (folder / "results.json").write_text(json.dumps(results))
            (folder / "run.json").write_text(json.dumps({"counts": {"ok": 1200, "info": 3}}))
        if report is not None:
            (folder / "report.html").write_text(report)
        (folder / "nodes" / "n0" / "node.log").write_text(f"{HOSTILE}\n")
        return folder

    return write
