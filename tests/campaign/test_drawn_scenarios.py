"""Scenarios: each can be planned in every group, is drawn where it may be, and keeps its cast."""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec
import pytest

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign, loads, resolve, to_toml
from shaketable.harness.campaigns.scenarios import (
    SCENARIOS,
    Cast,
    Setting,
    check_name,
    roles_of,
    span_s,
)
from shaketable.harness.campaigns.schedule import Planned, schedule
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.runtime import availability
from shaketable.system.sim.schedules.scenarios import SCENARIOS as SIMULATED

EVERY_FAULT = tuple(sorted({name for each in SCENARIOS.values() for name in each.faults}))
CAMPAIGN = Campaign(seed="7", time_limit_s=300.0, faults=EVERY_FAULT, world="sim", workload="queue")
OF_CAMPAIGNS = {"full-follower", "late-word", "lost-while-behind", "reset-while-unflushed"}
"""What seeds have no part for: name servers, and masters whose slaves may lack something."""


def drawn(campaign: Campaign) -> list[Planned]:
    return schedule(campaign, availability.choose(campaign).faults)


def names(planned: list[Planned]) -> Counter[str]:
    begun = {one.scenario for one in planned if one.scenario}
    return Counter(name.partition(" ")[0] for name in begun)


# ---- the catalog -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        (name, nodes)
        for name, scenario in SCENARIOS.items()
        for nodes in range(scenario.nodes_min, 8)
    ],
)
def test_a_scenario_is_made_of_its_faults_and_can_be_planned(name: str, nodes: int) -> None:
    scenario = SCENARIOS[name]
    for number in range(20):
        alone = Setting(nodes, scenario.faults, leases_ms=number % 2 * 200)
        steps = scenario.steps(Random(number), alone)
        assert {step.fault for step in steps} <= scenario.faults
        assert 0 < span_s(steps) < 9
        assert all(step.at is None or step.at >= 0 for step in steps)
    only = msgspec.structs.replace(CAMPAIGN, nodes=nodes, scenarios=(name,), time_limit_s=120.0)
    for seed in range(5):
        planned = drawn(msgspec.structs.replace(only, seed=str(seed)))
        assert names(planned)[name] >= 1, "planned, each value of its plans looked at"


def test_those_of_the_simulated_seeds_have_the_same_names() -> None:
    alike = SCENARIOS.keys() - OF_CAMPAIGNS
    assert {name.replace("-", "_") for name in alike} <= SIMULATED.keys()


# ---- which are drawn ---------------------------------------------------------------------


def test_each_comes_up_as_often_as_the_others_and_the_last_one_last() -> None:
    planned = drawn(CAMPAIGN)
    count = names(planned)
    assert count.keys() == SCENARIOS.keys()
    assert count.pop("final-power-loss") == 1
    assert max(count.values()) - min(count.values()) <= 1
    assert planned[-1].scenario == "final-power-loss"
    assert planned[-1].start_s + planned[-1].duration_s == pytest.approx(295.0)
    assert [one.number for one in planned] == list(range(len(planned)))


def test_without_scenarios_the_single_faults_are_the_same() -> None:
    some, none = (
        drawn(msgspec.structs.replace(CAMPAIGN, scenarios=scenarios))
        for scenarios in (("all",), ())
    )
    assert not names(none)
    plans = [(one.fault, one.plan) for one in some if not one.scenario]
    assert plans == [(one.fault, one.plan) for one in none][: len(plans)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"faults": ("kill",)}, set()),
        ({"faults": ("kill", "pause")}, {"strike-the-elected"}),
        ({"victims": ("leader",)}, set()),
        ({"nemesis_schedule": "periodic"}, set()),
        ({"victims": ("leader",), "scenarios": ("figure-8",)}, {"figure-8"}),
        ({"nodes": 1}, {"final-power-loss"}),
        ({"nodes": 1, "scenarios": ("figure-8",)}, set()),
        (
            {"target": "sync-double-write", "nodes": 4},
            {"lost-while-behind", "reset-while-unflushed"},
        ),
    ],
)
def test_they_are_made_of_the_faults_asked_for_where_they_come_to_anything(
    changes: dict, expected: set[str]
) -> None:
    assert set(names(drawn(msgspec.structs.replace(CAMPAIGN, **changes)))) == expected


def test_steps_that_wait_for_an_election_are_over_with_their_scenario() -> None:
    campaign = msgspec.structs.replace(CAMPAIGN, scenarios=("strike-the-elected",))
    planned = drawn(campaign)
    waiting = [one for one in planned if one.on is not None]
    assert waiting
    for one in waiting:
        assert one.until_s is not None
        after = [
            other.start_s
            for other in planned
            if other.start_s > one.start_s and other.scenario != one.scenario
        ]
        assert one.until_s + one.duration_s <= min(after, default=300.0) + 0.01


# ---- scripts -----------------------------------------------------------------------------

SCRIPT = """
seed = 7
[[script]]
scenario = "stale-tail"
at = 4
[[script]]
fault = "pause"
at = 15.0
victims = ["@led"]
remember = "old"
[[script]]
fault = "kill"
on = "leader-elected"
victims = ["@old", "@follower-1"]
"""


def test_a_script_names_scenarios_and_roles() -> None:
    campaign = resolve(loads(SCRIPT, "file"))
    assert loads(to_toml(campaign), "again") == campaign
    planned = drawn(campaign)
    assert names(planned) == {"stale-tail": 1, "script": 1}
    first, *_, pause, kill = planned
    assert (first.fault, first.start_s, first.roles) == ("partition", 4.0, "@led")
    assert (pause.roles, pause.remember, kill.roles) == ("@led", "old", "@old+@follower-1")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("scenario = 'figure-9'\nat = 1", "unknown scenario 'figure-9'"),
        ("scenario = 'figure-8'\non = 'leader-elected'", "a scenario has no 'on'"),
        ("scenario = 'figure-8'\nat = 34", "ends after the 35 s"),
        ("fault = 'kill'\nat = 1\nvictims = ['@led', 'n1']", "expected roles alone"),
        ("fault = 'kill'\nat = 1\nvictims = ['@L']", "expected roles alone"),
        ("fault = 'kill'\nat = 1\nremember = 'led'", "a name of its own"),
    ],
)
def test_a_script_that_names_what_is_none_is_refused(entry: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        drawn(resolve(loads(f"seed = 7\n[[script]]\n{entry}", "file")))


# ---- casts -------------------------------------------------------------------------------


def test_roles_are_given_out_once() -> None:
    cast = Cast("n2", ["n4", "n2", "n0", "n1", "n3"])
    assert cast.nodes("@led") == ["n2"]
    assert cast.nodes("@followers") == ["n4", "n0", "n1", "n3"]
    assert cast.nodes("@follower-2+@led") == ["n0", "n2"]
    assert cast.nodes("@minority") == ["n4", "n0"]
    assert cast.nodes("@led+@rest") == ["n2", "n1", "n3"]
    assert cast.nodes("@follower-5") == cast.nodes("@old") == []
    cast.remember("old", ["n3"])
    assert cast.nodes("@old") == ["n3"]
    assert Cast(None, ["n1", "n0"]).nodes("@led") == ["n1"]


@pytest.mark.parametrize("nodes", range(2, 8))
def test_who_led_and_the_rest_are_just_a_majority(nodes: int) -> None:
    cast = Cast("n0", [f"n{number}" for number in range(nodes)])
    assert len(cast.nodes("@led+@rest")) == (nodes // 2 + 1 if nodes > 2 else 1)


def test_a_plan_is_aimed_at_those_who_play_its_roles() -> None:
    cast = Cast("n2", ["n0", "n1", "n2"])
    plan = {"variant": "leader", "order": ["n0", "n1", "n2"], "more": 1}
    aimed = {"variant": "n2+n0", "order": ["n2", "n0", "n1"], "more": 1}
    assert cast.aimed(plan, "@led+@follower-1") == aimed
    assert cast.aimed({"order": ["n0", "n1", "n2"]}, "@follower-2") == {"order": ["n1", "n0", "n2"]}
    assert cast.aimed(plan, "@follower-3") is None


def test_steps_say_whom_they_aim_at() -> None:
    assert roles_of(("leader",)) == roles_of(()) == ""
    assert roles_of(("@led", "@rest")) == "@led+@rest"
    check_name("old-leader")
    assert str(Step(scenario="figure-8", at=3.0)) == "figure-8 at 3.0"
    assert discovery.find("faults").keys() >= set(EVERY_FAULT)
