"""Whole campaigns in the simulated world: the same phases, files and verdicts, by one seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.compute as pc
import pytest
from fake_target import FakeTarget

from shaketable.harness.campaigns.campaign import Campaign, resolve
from shaketable.harness.campaigns.schedule import decode_schedule
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Evidence, Json, World
from shaketable.harness.faults.process import Kill
from shaketable.harness.history import run_folder
from shaketable.harness.history.export import load_operations
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging import engines, judge
from shaketable.harness.runtime.ledger import open_faults
from shaketable.harness.runtime.observer import PHASES, SilentObserver
from shaketable.harness.runtime.simulated.run import groups_of, run_simulated
from shaketable.harness.runtime.supervisor import RunResult
from shaketable.harness.targets.simulated_group import BrokerGroup
from shaketable.harness.terminal import summary
from shaketable.reports.availability import active_until, phase_spans
from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.stories.promises import PROMISES

CAMPAIGN = Campaign(
    world="sim",
    seed="7",
    workload="log",
    concurrency="4n",
    time_limit_s=15.0,
    steady_s=1.0,
    rate_hz=80.0,
    faults=("kill", "pause", "partition", "transfer"),
    nemesis_interval_s=1.0,
    fault_duration_min_s=1.0,
    fault_duration_max_s=1.5,
)


class Tape(SilentObserver):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.notes: list[str] = []

    def phase_started(self, phase: str, at_ns: int, planned_s: float | None) -> None:
        self.phases.append(phase)

    def note(self, line: str) -> None:
        self.notes.append(line)


def play(store: Path, **changes: object) -> tuple[RunResult, Tape, Campaign]:
    settings = {name: getattr(CAMPAIGN, name) for name in CAMPAIGN.__struct_fields__}
    campaign = resolve(Campaign(**{**settings, **changes}))
    folder = run_folder.create(store, campaign.name, datetime.now(UTC))
    tape = Tape()
    return run_simulated(campaign, folder, tape), tape, campaign


def judged(folder: RunFolder, campaign: Campaign) -> dict[str, bool | str]:
    told = judge.judge(
        folder, campaign, engines.Engine(engines.LOCAL, "local[*]"), lambda step: None
    )
    return {verdict.checker: verdict.outcome.json_value for verdict in told.verdicts}


def digests(folder: RunFolder) -> Iterator[tuple[str, str]]:
    for path in sorted([*folder.segments.glob("*.seg"), *(folder.path / "nodes").rglob("*")]):
        if path.is_file():
            name = str(path.relative_to(folder.path))
            yield name, hashlib.blake2b(path.read_bytes()).hexdigest()
    for path in (folder.status_jsonl, folder.faults_jsonl, folder.drain_json):
        yield path.name, path.read_text()


def test_clocks_and_disks_of_simulated_nodes_are_harmed_and_heal(tmp_path: Path) -> None:
    result, tape, campaign = play(
        tmp_path,
        time_limit_s=20.0,
        faults=("clock", "power", "disk-full", "disk-errors", "disk-slow", "disk-stall"),
        nemesis_interval_s=0.5,
    )
    assert (result.status, result.is_drained, result.problems) == ("complete", True, ())
    assert result.faults.applied >= result.faults_planned >= 9
    assert result.faults.took_effect >= result.faults.applied - 3, (
        "a moment may have nothing to lose"
    )
    assert tape.notes == []
    told = judged(result.folder, campaign)
    assert set(told.values()) == {True}, "such a moment is tried again if it is all of its kind"


def test_a_kind_of_fault_without_effect_is_tried_again_while_clients_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed = []

    async def probe(self: Kill, plan: Json, undo: Json, world: World) -> Evidence:
        probed.append(plan)
        return Evidence(len(probed) > 2, "as the test wants it")

    monkeypatch.setattr(Kill, "probe", probe)
    result, tape, campaign = play(
        tmp_path, time_limit_s=8.0, faults=("kill", "pause"), nemesis_interval_s=4.0, scenarios=()
    )
    kills = len([plan for plan in probed if plan["victims"]])
    assert tape.phases == ["setup", "steady", "chaos", "retry", "heal", "drain", "teardown"]
    assert kills == 3, "twice in vain, and no more once one took effect"
    assert result.faults.applied == result.faults_planned + 3 - kills_planned(result.folder)
    assert set(judged(result.folder, campaign).values()) == {True}
    told = json.loads(result.folder.run_json.read_bytes())["phases"]
    phases = {phase["name"]: phase for phase in told}
    assert active_until(phase_spans(told, 10**12), 8.0) == phases["retry"]["stop_ns"] > 8 * 10**9
    last_call_ns = pc.max(load_operations(result.folder, ("call_ns",))["call_ns"]).as_py()
    assert phases["retry"]["start_ns"] < last_call_ns


def kills_planned(folder: RunFolder) -> int:
    planned = decode_schedule(folder.schedule_json.read_bytes(), "schedule")
    return len([one for one in planned if one.fault == "kill"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Tape, Campaign]:
    return play(tmp_path_factory.mktemp("sim"))


def test_every_fault_takes_effect_and_the_group_comes_back(
    run: tuple[RunResult, Tape, Campaign],
) -> None:
    result, tape, _ = run
    assert (result.status, result.is_drained, result.problems) == ("complete", True, ())
    assert result.faults.applied == result.faults.took_effect == result.faults_planned >= 4
    assert result.counts.ok > 500
    assert tape.phases == list(PHASES)
    assert tape.notes == []
    assert open_faults(result.folder.faults_jsonl) == ()
    facts = json.loads(result.folder.run_json.read_bytes())
    assert (facts["world"], facts["status"]) == ("sim", "complete")
    assert facts["phases"][2]["stop_ns"] >= 15 * 10**9, "times are the world's"


def test_the_checkers_judge_it_like_any_run(run: tuple[RunResult, Tape, Campaign]) -> None:
    result, _, campaign = run
    assert set(judged(result.folder, campaign).values()) == {True}
    assert judge.render(result.folder).view.verdict == "VALID"
    assert result.folder.report_html.exists()


def test_the_same_seed_gives_the_same_history_and_files(
    run: tuple[RunResult, Tape, Campaign], tmp_path: Path
) -> None:
    again, _, _ = play(tmp_path)
    assert dict(digests(again.folder)) == dict(digests(run[0].folder))
    other, _, _ = play(tmp_path / "other", seed="8", time_limit_s=8.0, faults=("kill",))
    assert dict(digests(other.folder)) != dict(digests(run[0].folder))


@pytest.mark.parametrize("faults", [("partition", "kill"), ("mtu",)], ids=["partition", "mtu"])
def test_a_planted_bug_is_found_by_the_checkers(tmp_path: Path, faults: tuple[str, ...]) -> None:
    healthy, _, campaign = play(tmp_path / "healthy", faults=faults, rate_hz=200.0)
    assert judged(healthy.folder, campaign)["durability"] is True
    result, _, campaign = play(tmp_path, mutant="ack-before-quorum", faults=faults, rate_hz=200.0)
    assert judged(result.folder, campaign)["durability"] is False


def test_an_invariant_that_breaks_is_a_violation_whatever_the_checkers_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = BrokerGroup.start

    def start_badly(group: BrokerGroup, node: str) -> None:
        start(group, node)
        group._world.violated(Violated("one-leader-a-term", "two lead term 3"), "n1")

    monkeypatch.setattr(BrokerGroup, "start", start_badly)
    result, tape, campaign = play(tmp_path, faults=(), time_limit_s=3.0)
    assert tape.notes == ["invariant one-leader-a-term broken at n1: two lead term 3"], "once"
    assert result.problems == ()
    verdicts = judged(result.folder, campaign)
    assert verdicts.pop("invariants") is False
    assert set(verdicts.values()) == {True}
    checkers = json.loads(result.folder.results_json.read_bytes())["checkers"]
    assert next(iter(checkers)) == "invariants"


def test_a_bug_that_only_the_world_and_the_nodes_see_is_named_first(tmp_path: Path) -> None:
    """Of its own accord no client and no log shows it: the node stops before anybody is told."""
    result, _, campaign = play(
        tmp_path,
        seed="3",
        mutant="committed-survives-truncation",
        time_limit_s=20.0,
        rate_hz=120.0,
        faults=("kill", "pause", "partition", "power"),
        nemesis_interval_s=0.4,
        fault_duration_min_s=0.5,
    )
    verdicts = judged(result.folder, campaign)
    assert {name for name, told in verdicts.items() if told is False} == {"invariants"}
    view = judge.render(result.folder).view
    assert view.verdict == "INVALID"
    assert view.why.startswith("The invariant followers-commit-what-they-share was broken at n0")
    assert view.first_page == "violations/001-invariant-broken.html"
    label, first = summary.rows(view, "report.html")[0]
    assert (label, first.partition(":")[0]) == (
        "finding", "invariant-broken (2 of them)",
    )  # fmt: skip
    page = (result.folder.path / view.first_page).read_text()
    assert PROMISES["followers-commit-what-they-share"].statement in page
    assert "Invariant followers-commit-what-they-share was broken" in page
    index = json.loads((result.folder.path / "violations" / "index.json").read_bytes())
    kinds = [each["kind"] for each in index["pages"]]
    assert kinds[:3] == ["invariant-broken", "invariant-broken", "rule-broken"], "then the nodes"


def test_a_log_that_no_fault_damaged_and_that_is_damaged_is_named_first(tmp_path: Path) -> None:
    result, _, campaign = play(
        tmp_path,
        seed="3",
        mutant="mark-ahead-of-fsync",
        time_limit_s=12.0,
        rate_hz=120.0,
        faults=("power", "kill"),
        nemesis_interval_s=0.4,
        fault_duration_min_s=0.5,
    )
    assert judged(result.folder, campaign)["invariants"] is False
    view = judge.render(result.folder).view
    assert view.verdict == "INVALID"
    assert view.first_page == "violations/001-damage-found.html"
    assert "is damaged, and no fault had touched that: LogDamaged: " in view.why


def test_a_target_without_simulated_worlds_is_told() -> None:
    with pytest.raises(UsageError, match="world sim: the target fake has no simulated world"):
        groups_of(FakeTarget())
