"""Campaigns that move leadership: by kills of the leader alone, by transfer; real and simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.shaketable_runs import shaketable
from tests.support.volume import whole

pytestmark = pytest.mark.e2e

SHAKEN = (
    "--faults", "kill,transfer", "--victims", "leader", "--seed", "3", "--rate", "200",
    "--engine", "local",
)  # fmt: skip


def faults_done(run: Path) -> list[dict[str, Any]]:
    """The nemesis' stop events, in order."""
    events = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    values = [event["value"] for event in events if event["process"] == -1]
    return [value for value in values if value["phase"] == "stop"]


@pytest.mark.parametrize("world", ["process", pytest.param("sim", marks=whole)])
def test_leadership_moves_and_writes_go_on(tmp_path: Path, world: str) -> None:
    store = tmp_path / "store"
    done = shaketable(
        "run", "--world", world, "--store", store, *SHAKEN, "--steady", "8", "--time-limit", "27"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    run = (store / "latest").resolve()
    results = json.loads((run / "results.json").read_text())
    assert results["valid"] is True
    evidence = [fault["evidence"] for fault in faults_done(run)]
    assert any(text.startswith("leadership went from n") for text in evidence), evidence
    kills = [fault for fault in faults_done(run) if fault["description"].startswith("kill leader")]
    assert len(kills) == results["failover"]["leader_kills"] >= 1
    assert results["failover"]["never"] == 0
    assert f"{len(kills)} kill" in " ".join(done.stdout.split())
    page = (run / "report.html").read_text()
    assert "next acknowledged write after a kill of the leader" in page
