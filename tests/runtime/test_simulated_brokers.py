"""Consumer groups, name servers and brokers without a group in the simulated world."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.harness.runtime.supervisor import RunResult

TARGETS = ("dledger", "multi-master", "async-replication", "sync-double-write")


SHORT = {"time_limit_s": 6.0, "faults": ("kill", "wipe")}


class Tape(SilentObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def play(store: Path, target: str, **changes: object) -> tuple[RunResult, Campaign, list[str]]:
    settings = {
        "target": target,
        "world": "sim",
        "seed": "7",
        "faults": ("default",),
        "workload": "queue",
        "time_limit_s": 8.0,
        "steady_s": 1.0,
        "rate_hz": 80.0,
        "nemesis_interval_s": 1.0,
        "fault_duration_min_s": 1.0,
        "fault_duration_max_s": 1.5,
    }
    campaign = resolve(Campaign(**{**settings, **changes}))
    tape = Tape()
    folder = run_folder.create(store, campaign.name, datetime.now(UTC))
    return run_simulated(campaign, folder, tape), campaign, tape.notes


def judged(folder: RunFolder, campaign: Campaign) -> Mapping[str, Verdict]:
    told = judge.judge(
        folder, campaign, engines.Engine(engines.LOCAL, "local[*]"), lambda step: None
    )
    return {verdict.checker: verdict for verdict in told.verdicts}


def digests(folder: RunFolder) -> dict[str, str]:
    paths = [*folder.segments.glob("*.seg"), *(folder.path / "nodes").rglob("*")]
    return {
        str(path.relative_to(folder.path)): hashlib.blake2b(path.read_bytes()).hexdigest()
        for path in sorted([*paths, folder.status_jsonl, folder.drain_json])
        if path.is_file()
    }


@pytest.mark.parametrize("target", TARGETS)
def test_a_healthy_group_keeps_its_promises_to_consumers(target: str, tmp_path: Path) -> None:
    result, campaign, notes = play(tmp_path, target)
    assert (result.status, result.is_drained, result.problems) == ("complete", True, ())
    # A kind that had no effect is retried (ADR 42).
    assert 1 <= result.faults.took_effect <= result.faults_planned <= result.faults.applied
    assert notes == []
    assert result.counts.ok > 300
    assert "event=serving" in (result.folder.path / "nodes" / "ns0" / "node.log").read_text()
    verdicts = judged(result.folder, campaign)
    assert {"group-delivery", "consumer-offsets", "durability"} <= verdicts.keys()
    told = {name: verdict.outcome.json_value for name, verdict in verdicts.items()}
    assert set(told.values()) == {True}, told


@pytest.mark.parametrize(("target", "nodes"), [("multi-master", 2), ("async-replication", 4)])
def test_a_log_is_read_to_its_end_though_a_disk_took_the_topic_with_it(
    target: str, nodes: int, tmp_path: Path
) -> None:
    """Nobody sends any more when the last wiped master is back: its topic is made by who reads."""
    script = (Step(fault="wipe", at=4.2, duration=0.6, victims=("n0",)),)
    result, campaign, _ = play(
        tmp_path, target, workload="log", nodes=nodes, faults=(), script=script, time_limit_s=6.0
    )
    assert result.faults.took_effect == 1
    assert (result.status, result.is_drained) == ("complete", True)
    outcomes = {verdict.outcome for verdict in judged(result.folder, campaign).values()}
    assert Outcome.INVALID not in outcomes


@pytest.mark.parametrize("target", ["dledger", "sync-double-write"])
def test_the_same_seed_gives_the_same_history_in_every_process(target: str, tmp_path: Path) -> None:
    """Also where Python's order of sets is another: name servers and clients have some."""
    here, _, _ = play(tmp_path / "here", target, **SHORT)
    argv = (sys.executable, __file__, target, str(tmp_path / "there"))
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found == digests(here.folder)
    assert sum(name.endswith(".seg") for name in found) >= 2


def test_what_a_masters_disk_takes_with_it_breaks_the_promises_of_a_group(tmp_path: Path) -> None:
    """Nothing is promised about it here, and everything where it is held to dledger's promises."""
    asked = {"faults": ("wipe",), "victims": ("leader",), "rate_hz": 400.0}
    result, campaign, notes = play(tmp_path, "async-replication", promise="dledger", **asked)
    assert result.problems == ()
    assert notes == []
    durability = judged(result.folder, campaign)["durability"]
    assert durability.outcome.json_value is False
    assert "lost" in durability.summary


def test_a_wiped_member_comes_back_by_another_id(tmp_path: Path) -> None:
    result, campaign, notes = play(tmp_path, "dledger", faults=("wipe", "members"), workload="log")
    assert (result.status, result.problems, notes) == ("complete", (), [])
    assert result.faults.took_effect == result.faults.applied >= 2
    confs = [path.read_text() for path in (result.folder.path / "nodes").glob("*/broker.conf")]
    assert len(confs) == 3
    assert any("shaketableJoin=true" in conf for conf in confs)
    told = {name: v.outcome.json_value for name, v in judged(result.folder, campaign).items()}
    assert set(told.values()) == {True}, told


if __name__ == "__main__":
    run, _, _ = play(Path(sys.argv[2]), sys.argv[1], **SHORT)
    sys.stdout.write(json.dumps(digests(run.folder)))
