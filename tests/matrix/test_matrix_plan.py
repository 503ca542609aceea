"""Matrix files: what their cells are, and what is refused in one clear line."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shaketable.harness.campaigns import built_in
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.matrix import running
from shaketable.harness.matrix.plan import Matrix, expand, read_matrix

FAULTS = ("kill", "pause", "loss")


def read(text: str) -> Matrix:
    seeds = (f"drawn-{number}" for number in itertools.count(1))
    return read_matrix(text, "m.toml", FAULTS, seeds)


def ids(text: str) -> list[str]:
    return [wanted.id for wanted in expand(read(text))]


def test_cells_are_the_product_of_the_axes() -> None:
    cells = expand(
        read('worlds = ["process", "sim"]\nfaults = ["kill", ["kill", "loss"]]\nseeds = 2')
    )
    assert len(cells) == 2 * 2 * 2
    assert cells[0].id == "kill-process-s1"
    assert cells[-1].id == "kill+loss-sim-s2"
    assert cells[-1].campaign == {
        "faults": ["kill", "loss"],
        "world": "sim",
        "seed": "drawn-2",
    }


def test_each_is_one_cell_a_fault_and_none_is_a_value() -> None:
    assert ids('faults = "each"') == ["kill", "pause", "loss"]
    none = expand(read('faults = ["none"]'))[0]
    assert (none.id, none.campaign["faults"]) == ("none", [])


def test_what_a_file_says_of_some_cells_is_for_these_alone() -> None:
    cells = expand(
        read(
            """
            faults = "each"
            worlds = ["process", "sim"]
            [campaign]
            rate = 100.0
            [[adjust]]
            faults = ["kill"]
            campaign = { rate = 200.0 }
            [[adjust]]
            faults = ["kill", "pause"]
            worlds = ["sim"]
            campaign = { rate = 300.0 }
            [[exclude]]
            faults = ["loss"]
            why = "too loud"
            """
        )
    )
    rates = {cell.id: cell.campaign["rate"] for cell in cells}
    assert rates["kill-process"] == 200.0
    assert rates["kill-sim"] == rates["pause-sim"] == 300.0
    assert rates["pause-process"] == 100.0
    left_out = {cell.id: cell.excluded for cell in cells if cell.excluded}
    assert left_out == {"loss-process": "too loud", "loss-sim": "too loud"}


def test_a_name_of_other_people_s_is_fit_for_a_folder() -> None:
    assert ids('faults = ["their/fault two"]') == ["their_fault_two"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("faults = [", "not TOML"),
        ("fault = 'each'", "did you mean 'faults'"),
        ("faults = []", "a list of one at least"),
        ("faults = 'kill'", "a list of one at least"),
        ("faults = ['kill', 'kill']", "twice"),
        ("faults = [['kill'], 'kill']", "kill is there twice"),
        ("worlds = [3]", "worlds: expected a name, not 3"),
        ("seeds = 0", "seeds 0: expected 1 to"),
        ("seeds = true", "a list of one at least"),
        ("name = 'a/b'", "cannot name a folder"),
        ("effects_min = -1", "effects_min -1"),
        ("faults = 'each'\n[campaign]\nfaults = ['kill']", "faults is set by the axis faults"),
        ("[campaign]\nstore = 'x'", "store is none that a matrix can set"),
        ("faults = 'each'\n[[adjust]]\nfaults = ['kil']", "did you mean 'kill'"),
        ("faults = 'each'\n[[exclude]]\nwhy = 'so'", "names no axis"),
        ("faults = 'each'\n[[exclude]]\nworlds = ['sim']", "unknown key 'worlds'"),
        ("exclude = 3", "expected [[exclude]] tables"),
        ("[campaign]\nseed = 2026-01-01", "seed: 2026-01-01 is no value of a campaign"),
        (
            "faults = 'each'\n[[adjust]]\nfaults = ['kill']\ncampaign.victims = [07:30:00]",
            "adjust 1: victims: 07:30:00 is no value of a campaign",
        ),
        ("campaign = 3", "expected a table"),
        ("seeds = 1000\nworlds = ['a','b','c','d','e','f','g','h','i','j','k']", "11,000 cells"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        expand(read(text))
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def adjusted(key: str) -> str:
    """A matrix of which one cell, and no other, has that key."""
    return f'faults = ["kill", "pause"]\n[[adjust]]\nfaults = ["kill"]\ncampaign.{key}\n'


def plan(text: str, tmp_path: Path) -> running.Planned:
    file = tmp_path / "m.toml"
    file.write_text(text, encoding="utf-8")
    return running.load(file, lambda _: None)


def test_what_a_world_or_a_target_cannot_do_is_kept_with_its_reason(tmp_path: Path) -> None:
    planned = plan(
        'faults = ["kill", "loss"]\nworlds = ["process", "sim"]\n'
        'targets = ["dledger", "multi-master"]\n[campaign]\ntime_limit = 20.0',
        tmp_path,
    )
    skipped = {cell.id: cell.skipped for cell in planned.plan.cells if cell.skipped}
    assert set(planned.campaigns) == {
        "dledger-kill-process",
        "dledger-kill-sim",
        "dledger-loss-sim",
        "multi-master-kill-process",
        "multi-master-kill-sim",
    }
    assert "a TCP stream" in skipped["dledger-loss-process"]
    assert "multi-master-loss-sim" in skipped  # its nodes have no links
    assert {campaign.seed for campaign in planned.campaigns.values()} == {
        planned.plan.cells[0].seed
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('faults = ["kil"]', "m.toml: kil: unknown fault 'kil'; did you mean 'kill'"),
        ('faults = ["kill"]\n[campaign]\nnodes = 10', "kill: nodes 10: expected"),
        ('faults = ["kill"]\n[campaign]\nnods = 3', "unknown key 'nods'; did you mean 'nodes'"),
        ('worlds = ["moon"]', "unknown world 'moon'"),
        ('faults = ["kill"]\n[campaign]\ntime_limit = 5.0', "leaves 0 s for faults"),
        ('faults = ["loss"]\n[campaign]\nworld = "process"', "no cell can be run: loss: world"),
        (
            adjusted('mutant = "ack-before-quorun"'),
            "kill: unknown mutant 'ack-before-quorun'; did you mean 'ack-before-quorum'",
        ),
        (adjusted('promise = "dleger"'), "kill: unknown target 'dleger'; did you mean 'dledger'"),
        (adjusted('victims = ["leadr"]'), "kill: unknown victim 'leadr'; did you mean 'leader'"),
        (adjusted('spark_remote = "http://x"'), "kill: --spark-remote http://x: expected sc://"),
    ],
)
def test_what_no_run_could_make_sense_of_is_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        plan(text, tmp_path)
    assert says in str(refused.value)


def test_a_mutant_that_another_target_has_is_a_lack_and_no_mistake(tmp_path: Path) -> None:
    planned = plan(
        'targets = ["dledger", "multi-master"]\nfaults = ["kill", "cpu"]\n'
        '[campaign]\nmutant = "ack-before-quorum"',
        tmp_path,
    )
    skipped = {cell.id: cell.skipped for cell in planned.plan.cells}
    assert skipped["dledger-kill"] == ""
    assert "unknown mutant of multi-master" in skipped["multi-master-kill"]


def test_a_victim_that_another_fault_can_strike_is_a_lack_and_no_mistake(tmp_path: Path) -> None:
    planned = plan('faults = ["kill", "wipe"]\n[campaign]\nvictims = ["all"]', tmp_path)
    skipped = {cell.id: cell.skipped for cell in planned.plan.cells}
    assert skipped == {"kill": "", "wipe": "victims all: wipe can strike: leader, one"}


FIVE_NODES = '[[adjust]]\nfaults = ["pause"]\ncampaign.nodes = 5\n'


@pytest.mark.parametrize("victims", [["n4"], ["n0+n4"], ["leader", "masters", "n3"]])
def test_a_victim_that_another_cell_has_is_a_lack_and_no_mistake(
    victims: list[str], tmp_path: Path
) -> None:
    planned = plan(
        f'faults = ["kill", "pause"]\n{FIVE_NODES}[campaign]\nvictims = {victims}', tmp_path
    )
    skipped = {cell.id: cell.skipped for cell in planned.plan.cells}
    assert skipped["pause"] == ""
    assert f"unknown victim '{victims[-1]}'" in skipped["kill"]


@pytest.mark.parametrize("victims", [["n5"], ["n4", "leadr"], ["n0+n5"]])
def test_a_victim_that_no_cell_has_is_a_mistake(victims: list[str], tmp_path: Path) -> None:
    text = f'faults = ["kill", "pause"]\n{FIVE_NODES}[campaign]\nvictims = {victims}'
    with pytest.raises(UsageError, match=r"m\.toml: kill: unknown victim"):
        plan(text, tmp_path)


@pytest.mark.parametrize("name", built_in.names(built_in.MATRICES))
def test_built_in_matrices_can_be_planned(name: str) -> None:
    file = built_in.find(Path(name), built_in.MATRICES, "matrix")
    planned = running.load(file, lambda _: None)
    assert planned.campaigns
    assert planned.plan.name == name


def test_every_fault_is_tried_on_every_world_that_has_it() -> None:
    planned = running.load(built_in.MATRICES / "every-fault.toml", lambda _: None)
    worlds: dict[str, list[str]] = {}
    for cell in planned.plan.cells:
        worlds.setdefault(cell.faults[0], []).append("" if cell.skipped else cell.world)
    assert all(any(tried) for tried in worlds.values()), worlds
    assert worlds["kill"] == ["process", "netns", "sim"]
    assert planned.plan.effects_min == 3
