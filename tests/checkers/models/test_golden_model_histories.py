"""Golden histories of every model, good and bad, each decided by the method that it must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from tests.support.brute_force import is_linearizable
from tests.support.model_fuzz import check_evidence, judge
from tests.support.model_histories import golden

FOLDER = Path(__file__).parents[2] / "histories" / "models"
PATHS = sorted(FOLDER.glob("*.txt"))
GOLDEN = {path: golden(path) for path in PATHS}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_golden_model_history(path):
    history = GOLDEN[path]
    model = discovery.get("models", history.model)
    assert is_linearizable(model, model.initial(None), history.rows) == (history.verdict == "valid")
    verdict = judge(Linearizable(model), history.rows)
    assert verdict.outcome is Outcome[history.verdict.upper()], verdict.summary
    alone = judge(Linearizable(model, use_special_cases=False), history.rows)
    assert alone.outcome is verdict.outcome
    is_searched = history.method in ("search", "window")
    assert f"by_{'search' if is_searched else history.method}" in verdict.counts
    if verdict.outcome is Outcome.INVALID:
        check_evidence(verdict, history.rows)
        (finding,) = verdict.findings
        assert history.says
        assert history.says in finding.message
        searches = ("search", "window")
        assert finding.details["method"] in (searches if is_searched else (history.method,))
        assert alone.findings[0].details["could_not"]


def test_every_model_has_a_good_and_a_bad_history():
    shown = {(history.model, history.verdict) for history in GOLDEN.values()}
    assert shown == {(m, v) for m in discovery.find("models") for v in ("valid", "invalid")}


def test_every_special_case_has_a_good_and_a_bad_history():
    shown = {(history.method, history.verdict) for history in GOLDEN.values()}
    methods = (
        "zones", "fifo", "bag", "set-levels", "log-offsets", "bottoms", "words", "priorities",
        "permits", "elements", "ends", "counts", "register-groups",
    )  # fmt: skip
    both = {(m, v) for m in methods for v in ("valid", "invalid")}
    assert shown >= both - {("ends", "valid")}  # it refutes only
