"""The scorecard that is kept with the project (tests.soaks.scorecard)."""

from __future__ import annotations

import msgspec
import pytest

from shaketable.harness.calibration import METHODS, HuntOutcome, read_outcomes
from tests.soaks.scorecard import KEPT, plan_of_all


@pytest.fixture(scope="module")
def outcomes() -> dict[str, HuntOutcome]:
    return read_outcomes(KEPT, plan_of_all())


def test_each_outcome_is_of_a_bug_that_there_is(outcomes: dict[str, HuntOutcome]) -> None:
    lines = (KEPT / "hunts.jsonl").read_bytes().splitlines()
    kept = [msgspec.json.decode(line, type=HuntOutcome).hunt.id for line in lines]
    assert sorted(kept) == sorted(outcomes), "of bugs that are gone, or of another plan"


def test_every_planted_bug_that_all_methods_have_hunted_was_found(
    outcomes: dict[str, HuntOutcome],
) -> None:
    by_bug: dict[str, list[HuntOutcome]] = {}
    for outcome in outcomes.values():
        if outcome.hunt.bug:
            by_bug.setdefault(outcome.hunt.bug, []).append(outcome)
    hunted = {bug for bug, some in by_bug.items() if len(some) >= len(METHODS)}
    missed = {bug for bug in hunted if not any(one.found for one in by_bug[bug])}
    assert hunted
    assert missed == set()


def test_the_correct_system_was_never_accused(outcomes: dict[str, HuntOutcome]) -> None:
    accused = [one.hunt.id for one in outcomes.values() if one.found and not one.hunt.bug]
    assert accused == []
