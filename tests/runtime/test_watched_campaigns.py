"""Simulated campaigns that are watched: a planted bug is seen live, a sound group never accused."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shaketable.harness.campaigns.campaign import Campaign, resolve, to_toml
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history import run_folder
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging.judge import judge_run_as_planned
from shaketable.harness.runtime import supervisor
from shaketable.harness.runtime.observer import SilentObserver
from shaketable.harness.runtime.simulated.run import run_simulated
from shaketable.harness.runtime.supervisor import NOT_WATCHED
from tests.support.volume import whole


class Noting(SilentObserver):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, line: str) -> None:
        self.notes.append(line)


def campaign(**changed: Any) -> Campaign:
    usual: dict[str, Any] = {
        "world": "sim",
        "seed": "3",
        "workload": "log",
        "concurrency": "4n",
        "time_limit_s": 20.0,
        "steady_s": 2.0,
        "rate_hz": 200.0,
        "faults": ("kill", "partition"),
        "nemesis_interval_s": 1.0,
    }
    return resolve(Campaign(**{**usual, **changed}))


def run(store: Path, of: Campaign) -> tuple[RunFolder, list[str], dict[str, Any]]:
    folder = run_folder.create(store, of.name, datetime.now(UTC))
    run_folder.write_atomically(folder.campaign_toml, to_toml(of))
    observer = Noting()
    run_simulated(of, folder, observer)
    return folder, observer.notes, json.loads(folder.run_json.read_text())


def digest(folder: RunFolder) -> str:
    data = [path.read_bytes() for path in sorted(folder.segments.glob("worker-*.seg"))]
    return hashlib.sha256(b"".join(data)).hexdigest()


def test_a_planted_bug_is_seen_while_clients_work_and_may_end_the_run(tmp_path: Path) -> None:
    bug = {"mutant": "ack-before-quorum"}
    _, notes, facts = run(tmp_path, campaign(**bug))
    assert [note for note in notes if note.startswith("violation seen: shaketable/")]
    assert facts["seen_live"]["count"] > 0
    assert facts["stopped_at"] is None
    again, _, early = run(tmp_path, campaign(**bug, stop_at_first_violation=True))
    assert early["status"] == "complete"
    seen = [facts["seen_live"]["first"][0]["text"]]
    seen += [f"{each['invariant']}: {each['finding']}" for each in early["broken"]]
    assert early["stopped_at"] in seen
    phases = {span["name"]: span["stop_ns"] - span["start_ns"] for span in early["phases"]}
    assert {"heal", "drain"} <= phases.keys(), "faults are undone, and clients finish"
    assert phases["chaos"] < 18e9 - 1e9
    course = judge_run_as_planned(again)
    assert course.outcome is Outcome.UNKNOWN
    assert "ended at the first violation that was seen" in course.summary


def test_of_a_combined_workload_the_log_alone_is_watched(tmp_path: Path) -> None:
    combined = {"workload": "combined", "concurrency": "6n", "rate_hz": 200.0}
    _, notes, facts = run(tmp_path, campaign(**combined))
    assert facts["seen_live"]["count"] == 0
    _, notes, facts = run(tmp_path, campaign(**combined, mutant="ack-before-quorum"))
    seen = [note for note in notes if note.startswith("violation seen: ")]
    assert seen
    assert all(note.startswith("violation seen: log/") for note in seen)


def test_a_rule_that_a_client_breaks_may_end_the_run(tmp_path: Path) -> None:
    shaken = campaign(
        mutant="answers-by-arrival", workload="queue-push", stop_at_first_violation=True
    )
    _, _, facts = run(tmp_path, shaken)
    assert facts["stopped_at"].startswith("answers-fit-their-requests: request ")
    assert facts["broken"][0]["invariant"] == "answers-fit-their-requests"
    chaos = next(span for span in facts["phases"] if span["name"] in ("steady", "chaos"))
    assert chaos["stop_ns"] - chaos["start_ns"] < 5e9


@pytest.mark.parametrize(
    ("changed", "is_told"),
    [({}, False), ({"faults": ("rollback",)}, True), ({"workload": "register"}, True)],
)
@pytest.mark.parametrize("stops", [False, True])
def test_who_waits_for_the_first_violation_is_told_where_nobody_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], is_told: bool,
    stops: bool,
) -> None:  # fmt: skip
    rig: Any = SimpleNamespace(
        campaign=Campaign(**{"workload": "log", **changed}, stop_at_first_violation=stops),
        folder=RunFolder(tmp_path),
        observer=Noting(),
        workers=SimpleNamespace(pids=list),
        facts=SimpleNamespace(now_ns=lambda: 0, update=lambda **_: None),
        services=(),
        close=lambda: None,
    )

    async def fails(*_: object) -> None:
        raise HarnessError("there is no group")

    for phase in ("_listen_for_signals", "_run_phases", "_tear_down"):
        monkeypatch.setattr(supervisor, phase, fails)
    with pytest.raises(HarnessError):
        trio.run(supervisor.run_rig, rig)
    assert rig.observer.notes == ([NOT_WATCHED] if is_told and stops else [])


@pytest.mark.parametrize("seed", ["1", pytest.param("2", marks=whole)])
def test_a_sound_group_is_not_accused(tmp_path: Path, seed: str) -> None:
    sound = campaign(seed=seed, faults=("kill", "pause", "partition"))
    folder, notes, facts = run(tmp_path, sound)
    assert facts["seen_live"] == {"count": 0, "first": []}
    assert not [note for note in notes if "violation" in note]
    stopping, _, as_well = run(
        tmp_path,
        campaign(
            seed=seed,
            faults=("kill", "pause", "partition"),
            stop_at_first_violation=True,
        ),
    )
    assert as_well["stopped_at"] is None
    assert digest(stopping) == digest(folder), "watching changes nothing of what happens"
