"""Plans of a calibration: every bug by every method, from seeds that never overlap."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.harness import calibration, discovery
from shaketable.harness.calibration import (
    CLEAN,
    METHODS,
    SEED_STRIDE,
    Effort,
    attempts,
    make_plan,
    run_hunt,
)
from shaketable.harness.contracts.abilities import PlantedBug, planted_bugs
from shaketable.harness.contracts.verdict import ExitCode

BUG = PlantedBug(name="no-prevote", family="consensus", targets=("dledger",), breaks="votes")


def test_each_bug_is_hunted_by_each_method_and_the_correct_system_by_all_but_its_family() -> None:
    plan = make_plan([BUG], {"dledger": 2}, METHODS, 3, Effort(), 7)
    hunted = [(hunt.method, hunt.repeat) for hunt in plan.hunts if hunt.bug]
    assert hunted == [(method, repeat) for method in METHODS for repeat in (1, 2, 3)]
    clean = [(hunt.method, hunt.repeat) for hunt in plan.hunts if hunt.bug == CLEAN]
    campaigns = [("default", 1), ("default", 2), ("default-sim", 1), ("default-sim", 2)]
    assert clean == [*campaigns, ("sim", 1), ("sim", 2)]


@given(st.integers(0, 2**31), st.integers(1, 4))
def test_hunts_have_names_and_seeds_of_their_own_and_a_seed_repeats_a_plan(
    seed: int, repeats: int
) -> None:
    plan = make_plan([BUG], {"dledger": repeats}, METHODS, repeats, Effort(), seed)
    assert len({hunt.id for hunt in plan.hunts}) == len(plan.hunts)
    seeds = sorted(hunt.seed for hunt in plan.hunts)
    assert all(later - earlier >= SEED_STRIDE for earlier, later in pairwise(seeds))
    assert plan == make_plan([BUG], {"dledger": repeats}, METHODS, repeats, Effort(), seed)
    assert plan != make_plan([BUG], {"dledger": repeats}, METHODS, repeats, Effort(), seed + 1)


def test_a_bug_of_several_targets_is_there_once() -> None:
    targets = [discovery.get("targets", name) for name in ("dledger", "multi-master")]
    bugs = planted_bugs(targets)
    assert len({bug.name for bug in bugs}) == len(bugs) >= 33
    assert next(bug for bug in bugs if bug.name == "ack-before-quorum").targets == ("dledger",)


def test_simulated_campaigns_come_between_seeds_of_both_worlds() -> None:
    plan = make_plan([BUG], {"dledger": 1}, ["sim"], 1, Effort(runs_max=5), 7)
    seeded, clean = plan.hunts
    tried = list(attempts(plan.effort, seeded))
    assert [one for one in tried if isinstance(one, int)] == [0, 1, 2, 3, 4]
    assert isinstance(tried[8], int), "after four seeds of each world"
    asks = [one for one in tried if not isinstance(one, int)]
    assert len({(one.seed, one.world) for one in asks}) == len(asks) == 40
    assert not any(isinstance(one, int) for one in attempts(plan.effort, clean))
    unseeded = msgspec.structs.replace(seeded, bug="committed-before-handled")  # of a client
    assert list(attempts(plan.effort, unseeded)) == [0, 1, 2, 3, 4]


def test_masters_and_slaves_have_seeds_too() -> None:
    (bug,) = (
        each
        for each in planted_bugs(discovery.find("targets").values())
        if each.name == "any-report-counts"
    )
    (hunt,) = make_plan([bug], {}, ["sim"], 1, Effort(virtual_s_max=60.0, runs_max=1), 7).hunts
    seeds = [one for one in attempts(Effort(virtual_s_max=60.0, runs_max=1), hunt) if one != 0]
    assert len(seeds) == 2


@pytest.mark.parametrize("bug", ["no-prevote", CLEAN])
def test_a_seed_that_cannot_be_run_is_told_of_a_planted_bug_and_hides_nothing_of_the_correct_system(
    bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise IndexError("pop from empty list")

    target = discovery.get("targets", "dledger")
    monkeypatch.setattr(type(target.simulator), "run", lambda _, ask: fails(ask))
    monkeypatch.setattr(calibration, "_run", lambda *_: (ExitCode.VALID, ""))
    plan = make_plan([BUG], {"dledger": 1}, ["sim"], 1, Effort(virtual_s_max=30.0, runs_max=1), 7)
    (hunt,) = (one for one in plan.hunts if one.bug == bug)
    if bug == CLEAN:
        with pytest.raises(IndexError):
            run_hunt(tmp_path, plan.effort, hunt)
        return
    outcome = run_hunt(tmp_path, plan.effort, hunt)
    assert len(outcome.failed) == 2, "one of each world"
    assert "pop from empty list" in outcome.failed[0]
