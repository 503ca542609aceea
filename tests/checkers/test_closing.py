"""Unknown outcomes are closed before the search: same verdicts, and each with its evidence."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import pyarrow as pa
import pytest

from shaketable.checkers.evidence import CITED_MAX
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.models.model import values_of
from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS, OPERATIONS_CODED
from shaketable.reports.check_page.checked_history import failing_part
from shaketable.reports.check_page.pictures import text_lines
from tests.support.checker_histories import context, op
from tests.support.model_histories import parse_model_history
from tests.support.random_objects import OBJECTS, random_history
from tests.support.volume import volume

RESOLVED = (
    "append-log", "cas-register", "deque", "fifo-queue", "min-priority-queue", "priority-queue",
    "register", "set", "stack", "unordered-queue",
)  # fmt: skip

MODELS = {name: discovery.get("models", name) for name in OBJECTS}


class SearchAlone:
    """A model that says nothing of its values: nothing is closed."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        if name == "values":
            raise AttributeError(name)
        return getattr(self._model, name)


def judge(model, rows, **more):
    checker = Linearizable(model, **more)
    tables = {"operations": pa.Table.from_pylist(rows, OPERATIONS)}
    return checker.conclude(checker.check(tables, context()), context())


def test_which_models_say_what_they_put():
    said = {name for name, model in MODELS.items() if values_of(model, model.initial(None))}
    assert said == set(RESOLVED)
    assert values_of(SearchAlone(MODELS["set"]), frozenset()) is None
    values = values_of(MODELS["fifo-queue"], MODELS["fifo-queue"].initial('[1, "a", 2]'))
    assert values.initial == frozenset((1, 2))


@pytest.fixture(scope="module", params=RESOLVED)
def searched(request):
    """Histories of a model, and what the search alone says: once for both ways to judge them."""
    name, judged_alone = request.param, []
    for seed in range(volume(1200)):
        rows = random_history(name, Random(f"{name} {seed}"), unknown=0.5, lies=0.6, size_max=12)
        judged_alone.append((rows, judge(SearchAlone(MODELS[name]), rows, use_special_cases=False)))
    return MODELS[name], judged_alone


@pytest.mark.parametrize("use_special_cases", [True, False])
def test_closing_by_reads_changes_no_verdict(searched, use_special_cases):
    model, judged_alone = searched
    seen = Counter()
    for seed, (rows, alone) in enumerate(judged_alone):
        ours = judge(model, rows, use_special_cases=use_special_cases)
        assert ours.outcome is alone.outcome, f"seed {seed}"
        assert "closed_by_reads" not in alone.counts
        if closed := ours.counts.get("closed_by_reads"):
            assert f"unknown outcome{'s' * (closed > 1)} closed: {closed} by reads" in ours.summary
            assert len(ours.data["closed"]) == min(closed, CITED_MAX)
        for same in ("operations", "unknown_outcomes"):
            assert ours.counts[same] == alone.counts[same]
        seen[ours.outcome, bool(closed)] += 1
    assert min(seen[outcome, True] for outcome in (Outcome.VALID, Outcome.INVALID)) > volume(5), (
        seen
    )


CLOSED = """
    0..?   p0 write 7 -> info
    2..5   p1 read -> ok 7
    6..8   p1 write 8 -> ok
    9..10  p2 read -> ok 7
"""


def with_ids(text):
    return [row | {"op": n, "key": None} for n, row in enumerate(parse_model_history(text))]


@pytest.mark.parametrize("use_special_cases", [True, False])
def test_a_refutation_shows_why_an_operation_of_unknown_outcome_counts(use_special_cases):
    """Once the write is known to be over by 5, the read of 7 at 9 has none to see."""
    rows = with_ids(CLOSED)
    verdict = judge(MODELS["register"], rows, use_special_cases=use_special_cases)
    assert verdict.outcome is Outcome.INVALID
    citation = "op 0 (7) happened before op 1, which showed its value, returned."
    (finding,) = verdict.findings
    assert finding.message.endswith(f" Indeterminate: {citation}")
    shown = {each["op"]: each for each in finding.details["operations"]}
    assert shown[0] == {
        "op": 0, "process": 0, "call": "write 7: ?", "call_ns": 0, "return_ns": None,
        "outcome": "info", "closed": citation,
    }  # fmt: skip
    assert 1 in shown  # the evidence stands beside it
    assert all("closed" not in each for n, each in shown.items() if n)
    assert verdict.data["closed"] == [citation]
    assert verdict.summary.endswith("; 1 unknown outcome closed: 1 by reads")
    assert verdict.counts["unknown_outcomes"] == verdict.counts["closed_by_reads"] == 1
    assert failing_part(finding, {}).evidence == (citation,)
    assert f"Indeterminate: {citation}" in " ".join(text_lines(failing_part(finding, {}), 96))


def test_one_that_cannot_be_placed_says_by_when_it_had_to_be():
    rows = with_ids("0..? p0 cas 1 2 -> info\n3..9 p1 read -> ok 2\n10..11 p1 read -> ok 2")
    verdict = judge(MODELS["cas-register"], rows)
    assert verdict.findings[0].message == (
        "read 2 by process 1 (op 1) cannot take effect before it returns: it read 2, the register"
        " holds nothing. Without op 1, what was called until it returned has an order."
        " Indeterminate: op 0 (2) happened before op 1, which showed its value, returned."
    )


def test_citations_are_few_and_the_same_however_keys_come_together():
    rows = []
    for n in range(40):
        key = f"k{n // 4}"
        rows.append(op(len(rows), "add", 10 * n, None, "info", key=key, input=n))
        extra = json.dumps({"output": list(range(4 * (n // 4), n + 1))})
        rows.append(op(len(rows), "read", 10 * n + 5, 10 * n + 6, key=key, extra=extra))
    coded = pa.Table.from_pylist(rows, OPERATIONS).cast(OPERATIONS_CODED)
    checker = Linearizable(MODELS["set"])
    told = []
    for size in (8, 16, 80):
        found = []
        for begin in range(0, 80, size):
            bounds = range(0, size + 1, 8)
            found.append(checker.check_keys(coded.slice(begin, size), bounds_of(bounds), context()))
        verdict = checker.conclude(pa.concat_tables(found), context())
        assert verdict.outcome is Outcome.VALID
        assert verdict.counts["closed_by_reads"] == 40
        told.append((verdict.data["closed"], verdict.summary))
    assert told[0] == told[1] == told[2]
    assert len(told[0][0]) == CITED_MAX
    assert told[0][0][0] == "k0: op 0 (0) happened before op 1, which showed its value, returned."


def bounds_of(numbers):
    return pa.array(list(numbers), pa.int64()).to_numpy()


def test_an_incomplete_history_closes_nothing():
    checker = Linearizable(MODELS["register"])
    lacking = context(incomplete="a segment is damaged")
    tables = {"operations": pa.Table.from_pylist(with_ids(CLOSED), OPERATIONS)}
    verdict = checker.conclude(checker.check(tables, lacking), lacking)
    assert verdict.outcome is Outcome.UNKNOWN
    assert "closed_by_reads" not in verdict.counts
