"""What cannot be done to a group is told with its reason, and never drawn."""

from __future__ import annotations

from random import Random

import pytest
from fake_target import FakeTarget

from harness import availability, discovery
from harness.campaign import Campaign
from harness.errors import UsageError
from harness.schedule import schedule

ALL = ("kill", "partition", "pause", "transfer")


class Rigid(FakeTarget):
    """A target whose leader cannot be asked for anything."""

    name = "rigid"
    transfer_leadership = None  # type: ignore[assignment]


@pytest.fixture
def _rigid(monkeypatch: pytest.MonkeyPatch) -> None:
    get = discovery.get

    def find(kind: str, name: str) -> object:
        return Rigid() if kind == "targets" else get(kind, name)

    monkeypatch.setattr(discovery, "get", find)


def test_the_built_in_target_can_be_shaken_by_every_fault() -> None:
    choice = availability.choose(Campaign(faults=ALL))
    assert tuple(choice.faults) == ALL
    assert choice.unavailable == {}


@pytest.mark.usefixtures("_rigid")
def test_a_fault_that_the_target_cannot_have_is_told_and_not_drawn() -> None:
    campaign = Campaign(faults=ALL, seed="7", time_limit_s=120)
    choice = availability.choose(campaign)
    assert sorted(choice.faults) == ["kill", "partition", "pause"]
    assert availability.tell(choice.unavailable) == [
        "fault transfer is not available: the target rigid cannot be asked to hand leadership over"
    ]
    assert {planned.fault for planned in schedule(campaign, choice.faults)} == set(choice.faults)


@pytest.mark.usefixtures("_rigid")
def test_a_campaign_of_which_nothing_is_left_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="none of the faults asked for is available: fault tr"):
        availability.choose(Campaign(faults=("transfer",)))


def test_a_group_of_one_has_no_links_and_no_successor() -> None:
    choice = availability.choose(Campaign(nodes=1, faults=ALL))
    assert sorted(choice.faults) == ["kill", "pause"]
    assert sorted(choice.unavailable) == ["partition", "transfer"]
    assert availability.choose(Campaign(nodes=1, faults=())).unavailable == {}


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_victims_say_whom_faults_on_processes_strike(fault: str) -> None:
    campaign = Campaign(faults=(fault,), victims=("leader",))
    chosen = availability.choose(campaign).faults[fault]
    nodes = ("n0", "n1", "n2")
    for turn in range(20):
        plan = chosen.plan(Random(turn), nodes, turn)
        assert chosen.aim(plan, nodes, "n1")["victims"] == ["n1"]
    others = availability.choose(Campaign(faults=(fault,), victims=("minority",))).faults[fault]
    assert {others.plan(Random(turn), nodes, turn)["variant"] for turn in range(9)} == {"minority"}


@pytest.mark.parametrize(
    ("fault", "victims", "line"),
    [
        ("wipe", ("all",), "victims all: wipe can strike: leader, one"),
        ("wipe", ("n0+n1",), r"victims n0\+n1: wipe can strike: leader, one"),
        ("kill", ("n7",), "unknown victim 'n7'"),
        ("kill", ("ledaer",), r"unknown victim 'ledaer'; did you mean 'leader'\?"),
        ("kill", ("leader", "no"), "unknown victim 'no'"),
    ],
)
def test_victims_that_a_fault_cannot_strike_are_refused(fault, victims, line) -> None:
    with pytest.raises(UsageError, match=line):
        availability.choose(Campaign(faults=(fault,), victims=victims))


def test_no_victims_leave_the_draw_as_it_was() -> None:
    campaign = Campaign(seed="7", time_limit_s=120)
    plain = {name: discovery.get("faults", name) for name in campaign.faults}
    assert schedule(campaign, availability.choose(campaign).faults) == schedule(campaign, plain)
