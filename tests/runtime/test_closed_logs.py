"""Targets whose nodes' logs nobody can read: what they lose is told, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_campaign
import pytest
from fake_campaign import QUICK, Tape, run_fake
from fake_target import FakeTarget

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.judging import engines, judge
from shaketable.harness.terminal import summary
from shaketable.reports.run_page.view import build_view

PROMISED = Promises(
    durable_under=frozenset({"kill"}), linearizable=frozenset({"append", "read", "end"})
)
pytestmark = pytest.mark.e2e


class Untold(FakeTarget):
    """It promises what it cannot keep under kills, and says nothing of its logs."""

    promises = PROMISED


class Closed(Untold):
    """It says that nobody can read its logs."""

    logs_readable = False


def campaign(
    monkeypatch: pytest.MonkeyPatch, store: Path, target: type[FakeTarget], **more: Any
) -> tuple[Any, dict[str, Any]]:
    """Run and judge one; return its view and its results.json."""
    fake_campaign.patch(monkeypatch.setattr, target)
    folder = run_fake(store, Tape(), workload="log", **more).folder
    asked = Campaign(**{**QUICK, "workload": "log", **more})
    judge.judge(folder, asked, engines.Engine(engines.LOCAL, "local[*]"), lambda _step: None)
    return build_view(folder.path), json.loads(folder.results_json.read_bytes())


def said(view: Any) -> str:
    return " ".join([view.why, *(text for _, text in summary.rows(view, "report.html"))])


@pytest.mark.parametrize("target", [Closed, Untold])
def test_a_healthy_one_is_told_to_have_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: type[FakeTarget]
) -> None:
    """One node alone: several of them lose what they have wherever one stands still for 0.4 s."""
    view, told = campaign(monkeypatch, tmp_path, target, faults=(), nodes=1)
    assert view.verdict == ("VALID" if target is Closed else "UNKNOWN"), view.why
    assert "lost" not in said(view)
    assert not [found for each in told["checkers"].values() for found in each["findings"]]
    assert not view.losses.total, "0, or nobody can say"
    if target is Closed:
        assert "durability" not in told["checkers"]
        summary_ = told["checkers"]["final-reads"]["summary"]
        assert "judged by what clients read after the heal" in summary_
        assert summary_.endswith("were looked at, and are")
    else:
        assert told["checkers"]["durability"]["summary"].startswith("not judged: no log")


def test_one_that_loses_what_it_acknowledged_is_found_by_its_final_reads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No node has what another one took: with the leader go the appends that it acknowledged."""
    view, told = campaign(
        monkeypatch, tmp_path, Closed, faults=("kill",), victims=("leader",), mutant="forgets"
    )
    assert view.verdict == "INVALID", view.why
    verdict = told["checkers"]["final-reads"]
    assert verdict["valid"] is False
    assert {found["kind"] for found in verdict["findings"]} == {"lost-append"}
    assert "lost" in view.why
