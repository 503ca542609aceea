"""A run that went wrong by itself is never valid, and never invalid either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging.judge import judge_run_as_planned

GOOD: dict[str, Any] = {"status": "complete", "exits": [], "problems": [], "drained": True}
ENDED = {"node": "n0", "incarnation": 2, "returncode": 74, "last_line": "disk failed"}


def course(tmp_path: Path, **changes: Any) -> tuple[Outcome, str, list[str]]:
    (tmp_path / "run.json").write_text(json.dumps({**GOOD, **changes}))
    verdict = judge_run_as_planned(RunFolder(tmp_path))
    return verdict.outcome, verdict.summary, [found.kind for found in verdict.findings]


@pytest.mark.parametrize("status", ["complete", "interrupted"])
def test_a_run_that_took_its_course_is_valid(tmp_path: Path, status: str) -> None:
    assert course(tmp_path, status=status)[0] is Outcome.VALID


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({"status": "running"}, ["cut-short"]),
        ({"drained": False}, ["not-drained"]),
        ({"drained": False, "phases": [{"name": "setup"}]}, ["not-begun"]),
        ({"drained": False, "phases": [{"name": "setup"}, {"name": "steady"}]}, ["not-drained"]),
        ({"exits": [ENDED], "problems": ["n0 ended ..."]}, ["node-ended"]),
        ({"problems": ["worker 1 died"]}, ["problem"]),
        (
            {"exits": [ENDED], "problems": ["worker 1 died", "n0 ended ..."], "drained": False},
            ["node-ended", "problem", "not-drained"],
        ),
    ],
)
def test_what_went_wrong_makes_it_unknown(
    tmp_path: Path, changes: dict[str, Any], kinds: list[str]
) -> None:
    outcome, _, found = course(tmp_path, **changes)
    assert (outcome, found) == (Outcome.UNKNOWN, kinds)


def test_what_is_not_recorded_is_unknown_and_what_is_damaged_is_an_error(tmp_path: Path) -> None:
    assert judge_run_as_planned(RunFolder(tmp_path)).outcome is Outcome.UNKNOWN
    (tmp_path / "run.json").write_text('{"status": ')
    with pytest.raises(HarnessError, match=r"run\.json"):
        judge_run_as_planned(RunFolder(tmp_path))
