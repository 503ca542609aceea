"""Simulated groups that do not serve, or do not come back: violations that name the node first."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.nemesis import UNDO_ATTEMPTS_MAX
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.processes.disks import Disks
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.harness.runtime.simulated.world import SimulatedWorld
from shaketable.harness.targets.simulated_group import BrokerGroup
from shaketable.reports.run_page.view import RunView

SHORT: dict[str, Any] = {
    "world": "sim",
    "seed": "7",
    "workload": "log",
    "concurrency": "2n",
    "steady_s": 1.0,
    "rate_hz": 60.0,
    "nemesis_interval_s": 0.5,
    "fault_duration_min_s": 0.5,
    "fault_duration_max_s": 0.5,
}


def played(store: Path, **changes: Any) -> tuple[RunFolder, RunView]:
    """Run a short campaign and judge it."""
    campaign = resolve(Campaign(**{**SHORT, **changes}))
    folder = run_folder.create(store, campaign.name, datetime.now(UTC))
    run_simulated(campaign, folder, SilentObserver())
    judge.judge(folder, campaign, engines.Engine(engines.LOCAL, "local[*]"), lambda step: None)
    return folder, judge.render(folder).view


def test_a_group_that_never_serves_is_a_violation_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_all = SimulatedWorld.start_all

    def start_one(world: SimulatedWorld) -> tuple[str, ...]:
        started = start_all(world)
        world._group.pause("n1")
        world._group.pause("n2")
        return started

    monkeypatch.setattr(SimulatedWorld, "start_all", start_one)
    folder, view = played(tmp_path, time_limit_s=3.0)
    facts = json.loads(folder.run_json.read_bytes())
    assert [phase["name"] for phase in facts["phases"]] == ["setup", "teardown"]
    assert view.verdict == "INVALID"
    assert view.why.startswith("The invariant group-serves was broken at n1, 60")
    assert "n1 does not answer; n2 does not answer" in view.why


def test_a_node_that_does_not_come_back_is_a_violation_with_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = BrokerGroup.start

    def start_once(group: BrokerGroup, node: str) -> None:
        if node != "n2" or group.incarnation(node) == 0:
            start(group, node)

    monkeypatch.setattr(BrokerGroup, "start", start_once)
    folder, view = played(
        tmp_path, time_limit_s=3.0, faults=("kill",), victims=("n2",), scenarios=()
    )
    assert view.verdict == "INVALID"
    assert view.why.startswith("The invariant every-node-runs was broken at n2")
    page = (folder.path / "violations" / "001-invariant-broken.html").read_text()
    assert "Every node is up again once the faults are over." in page
    assert "n2 does not run" in page


def test_a_node_that_ends_by_itself_though_nothing_was_done_to_it_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = BrokerGroup.start

    def start_and_end(group: BrokerGroup, node: str) -> None:
        start(group, node)
        host = group._world.members[node]
        if node == "n1" and host.incarnation == 1:
            world = group._world
            at_ms = world.clock.now_ms + 2500
            world.heap.push(at_ms, world.process_ended, host, OSError("no such file"))

    monkeypatch.setattr(BrokerGroup, "start", start_and_end)
    folder, view = played(tmp_path, time_limit_s=3.0, faults=())
    assert view.verdict == "INVALID"
    found = json.loads(folder.results_json.read_bytes())["checkers"]["invariants"]
    assert [each["kind"] for each in found["findings"]] == ["ended-unharmed"]


@pytest.mark.parametrize("is_for_good", [False, True])
def test_a_disk_that_was_not_given_back_while_faults_went_on_is_given_back_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_for_good: bool
) -> None:
    readmit, tries = Disks.readmit, []

    async def readmit_late(disks: Disks, node: str) -> None:
        tries.append(node)
        await trio.sleep(0.5)
        if is_for_good or len(tries) <= UNDO_ATTEMPTS_MAX:
            raise IndefiniteError("it has not copied what its master has")
        await readmit(disks, node)

    monkeypatch.setattr(Disks, "readmit", readmit_late)
    folder, view = played(
        tmp_path, time_limit_s=2.0, steady_s=0.5, faults=("wipe",), scenarios=(), concurrency="1n"
    )
    assert len(tries) > UNDO_ATTEMPTS_MAX
    facts = json.loads(folder.run_json.read_bytes())
    assert facts["left"] == ["wipe"] * len(facts["left"])
    if is_for_good:
        node = tries[-1]
        begins = f"The invariant every-node-runs was broken at {node}, "
        assert view.why.startswith(begins)
        assert f"{node} never got its disk back" in view.why
    else:
        assert facts["problems"] == []
        assert not facts["broken"]
