"""The campaigns that come with the project: found by name, and planned on each world."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from shaketable.harness import discovery
from shaketable.harness.campaigns import built_in
from shaketable.harness.campaigns.campaign import Campaign, load, resolve
from shaketable.harness.campaigns.schedule import schedule
from shaketable.harness.contracts.capabilities import family_of
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS, FAMILIES
from shaketable.harness.runtime import availability

NAMES = built_in.names(built_in.CAMPAIGNS)
WORLDS = ("process", "netns", "sim")
NETNS_ONLY = {"loss", "duplicate", "reorder", "corrupt"}


def loaded(name: str, world: str = "process") -> Campaign:
    file = built_in.find(Path(name), built_in.CAMPAIGNS, "campaign")
    return resolve(load(file, {"seed": "1", "world": world}))


@pytest.mark.parametrize("name", NAMES)
def test_each_is_named_as_its_file_and_can_be_planned_on_every_world(name: str) -> None:
    for world in WORLDS:
        campaign = loaded(name, world)
        assert campaign.name == name
        choice = availability.look(campaign)
        if choice.unavailable and not choice.faults:
            assert (name, world) == ("rollback", "sim"), choice.unavailable
            continue
        planned = schedule(campaign, choice.faults)
        done = Counter(one.fault for one in planned)
        assert set(done) == set(choice.faults), "each kind comes up in a round"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_campaign_of_a_family_has_all_its_faults(family: str) -> None:
    assert set(loaded(family).faults) >= FAMILIES[family]


def test_everything_has_every_fault_in_rounds_of_equal_turns() -> None:
    assert set(loaded("everything").faults) == BUILT_IN_FAULTS
    assert {family_of(discovery.get("faults", name)) for name in BUILT_IN_FAULTS} == {
        *FAMILIES,
        "rollback",
    }
    for world in ("process", "netns"):
        campaign = loaded("everything", world)
        choice = availability.look(campaign)
        assert set(choice.unavailable) == (
            (NETNS_ONLY if world == "process" else set()) | {"name-server-links", "name-servers"}
        )
        planned = schedule(campaign, choice.faults)
        done = Counter(one.fault for one in planned if not one.scenario)
        assert min(done.values()) >= 6
        assert max(done.values()) - min(done.values()) <= 1


def test_a_name_that_is_none_is_told_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="did you mean 'everything'"):
        built_in.find(Path("everythin"), built_in.CAMPAIGNS, "campaign")


def test_a_file_of_the_caller_s_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "soak").write_text("nodes = 3")
    assert built_in.find(Path("soak"), built_in.CAMPAIGNS, "campaign") == Path("soak")
    missing = Path("there/is/none.toml")
    assert built_in.find(missing, built_in.CAMPAIGNS, "campaign") == missing


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[script]]\nfault = "kill"\nat = 1.0\nvictims = ["n1"]\nlives = 3', "'lives' is neither"),
        ('[[script]]\nfault = "delay"\nat = 1.0\nlink_shape = { loss = 7 }', "link_shape"),
        ('time_limit = 5.2\nfaults = ["kill", "pause"]', "too little to try each of 2 once"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_a_folder_is_made(
    text: str, says: str, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "shaketable", "run", "c.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 254
    assert says in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_the_quick_campaign_is_the_one_without_a_name() -> None:
    quick = loaded("quick")
    asked = load(built_in.CAMPAIGNS / "quick.toml")
    assert asked.faults == ("default",)
    target = discovery.get("targets", "dledger")
    assert quick.faults == target.default_faults, "those of its target"
    assert (asked.workload, quick.workload) == ("default", target.default_workload)
    as_asked = {"seed": None, "faults": asked.faults, "workload": asked.workload}
    assert msgspec.structs.replace(quick, **as_asked) == asked
