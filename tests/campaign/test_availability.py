"""What cannot be done to a group is told with its reason, and never drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest
from fake_target import FakeTarget

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.campaigns.scripts import Step
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.faults.process import Kill
from shaketable.harness.runtime import availability

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
        "fault transfer is not available: the target rigid cannot be asked to transfer its"
        " leadership"
    ]
    assert {planned.fault for planned in schedule(campaign, choice.faults)} == set(choice.faults)


@pytest.mark.usefixtures("_rigid")
def test_a_campaign_of_which_nothing_is_left_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="none of the requested faults is available: fault tr"):
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
    campaign = Campaign(seed="7", time_limit_s=120, faults=("kill", "pause", "partition"))
    plain = {name: discovery.get("faults", name) for name in campaign.faults}
    assert schedule(campaign, availability.choose(campaign).faults) == schedule(campaign, plain)


class Foreign(Kill):
    """Somebody's fault, one of whose methods does what it may not."""

    name = "foreign"

    def configured(self, options: Json) -> Foreign:
        """Take no options."""
        return self


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> type[Foreign]:
    """The class of a fault that is found by its name."""
    get = discovery.get

    class Mine(Foreign):
        """One for each test."""

    monkeypatch.setattr(
        discovery, "get", lambda kind, name: Mine() if name == "foreign" else get(kind, name)
    )
    return Mine


def raises(error: BaseException) -> Callable[..., object]:
    def method(*_: object) -> object:
        raise error

    return method


@pytest.mark.parametrize(
    ("method", "does", "line"),
    [
        ("configured", raises(KeyError("door")), "its configured fails: KeyError: 'door'"),
        ("configured", raises(SystemExit(3)), "its configured fails: SystemExit: 3"),
        ("configured", lambda *_: None, "its configured returned is no Fault: has no name"),
        ("configured", lambda *_: Kill(), "its configured returned 'kill'"),
        ("unavailable", raises(KeyError("a\nb")), "its unavailable fails: KeyError: 'a"),
        ("unavailable", raises(UsageError("no")), "its unavailable fails: UsageError: no"),
        ("unavailable", lambda *_: 5, "its unavailable fails: it returned 5 in place of words"),
        ("plan", raises(SystemExit(3)), "its plan fails: SystemExit: 3"),
        ("plan", lambda *_: None, "its plan is no JSON"),
    ],
)
@pytest.mark.parametrize("scripted", [False, True])
def test_a_plug_in_that_cannot_be_asked_is_named_in_one_line(
    foreign: type[Foreign], method: str, does: Callable[..., object], line: str, scripted: bool
) -> None:
    setattr(foreign, method, does)
    step = Step(fault="foreign", at=1.0, duration=2.0, victims=("n1",))
    campaign = Campaign(
        seed="7", faults=() if scripted else ("foreign",), script=(step,) if scripted else ()
    )
    with pytest.raises(HarnessError) as told:
        schedule(campaign, availability.choose(campaign).faults)
    assert line in str(told.value)
    assert str(told.value).startswith("fault foreign: ")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("does", "line"),
    [
        (raises(KeyError("door")), "fault foreign: its min_duration_s fails: KeyError: 'door'"),
        (
            lambda *_: "long",
            "fault foreign: its min_duration_s fails: it returned 'long' in place of sec",
        ),
        (
            lambda *_: math.nan,
            "fault foreign: its min_duration_s fails: it returned nan in place of sec",
        ),
    ],
)
def test_a_plug_in_that_cannot_say_how_long_it_acts_is_named(
    foreign: type[Foreign], does: Callable[..., object], line: str
) -> None:
    foreign.act = raises(RuntimeError())  # type: ignore[attr-defined]
    foreign.min_duration_s = does  # type: ignore[attr-defined]
    campaign = Campaign(seed="7", faults=("foreign",))
    with pytest.raises(HarnessError) as told:
        schedule(campaign, availability.choose(campaign).faults)
    assert str(told.value).startswith(line)


def test_a_fault_may_refuse_an_option_of_a_script_as_ever(foreign: type[Foreign]) -> None:
    foreign.configured = raises(UsageError("not so"))  # type: ignore[method-assign, assignment]
    with pytest.raises(UsageError, match="not so"):
        availability.choose(Campaign(seed="7", faults=("foreign",)))
