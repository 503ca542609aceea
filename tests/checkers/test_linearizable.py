"""The checker linearizable: doubts, budgets, evidence, several keys, engines."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from shaketable.checkers.engine.local import run_local
from shaketable.checkers.linearizability import refutation
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.search import attempt
from shaketable.harness import discovery
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import SearchBudget
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import context, job, op
from tests.support.model_histories import parse_model_history

REGISTER = discovery.get("models", "register")
CAS = discovery.get("models", "cas-register")
STALE = "0..1 p0 write 1 -> ok\n2..3 p0 write 2 -> ok\n4..5 p1 read -> ok 1\n"


def judge(tmp_path, rows, checker=None, **more):
    return run_local(job(tmp_path, rows, [checker or Linearizable(REGISTER)], **more))[0]


def keyed(text, key):
    return [row | {"key": key} for row in parse_model_history(text)]


def test_no_operations_prove_nothing(tmp_path):
    verdict = judge(tmp_path, [])
    assert verdict.outcome is Outcome.UNKNOWN
    assert "no operation of known outcome" in verdict.summary
    unknown = parse_model_history("0..? p0 write 1 -> info\n0..1 p0 write 2 -> fail\n")
    assert judge(tmp_path, unknown).outcome is Outcome.UNKNOWN


def test_each_key_is_judged_by_itself(tmp_path):
    clean = "0..1 p0 write 1 -> ok\n2..3 p1 read -> ok 1\n"
    rows = [*keyed(clean, "a"), *keyed(STALE, "b"), *keyed(clean, "c")]
    rows = [row | {"op": number} for number, row in enumerate(rows)]
    verdict = judge(tmp_path, rows)
    assert verdict.outcome is Outcome.INVALID
    assert [finding.key for finding in verdict.findings] == ["b"]
    assert verdict.counts["partitions"] == 3
    assert verdict.counts["operations"] == 7
    assert sum(count for name, count in verdict.counts.items() if name.startswith("by_")) == 3
    assert set(verdict.findings[0].operations) == {2, 3, 4}


def test_evidence_of_a_refutation(tmp_path):
    rows = parse_model_history(STALE)
    verdict = judge(tmp_path, rows, Linearizable(REGISTER, use_special_cases=False))
    (finding,) = verdict.findings
    details = finding.details
    assert [shown["call"] for shown in details["operations"]] == ["write 1", "write 2", "read 1"]
    assert details["prefix"] == [{"op": 0, "state": "1"}, {"op": 1, "state": "2"}]
    assert details["stuck"] == 2
    assert details["could_not"] == [{"op": 2, "why": "it read 1, the register holds 2"}]
    assert finding.operations[0] == 2
    assert finding.message == (
        "k: read 1 by process 1 (op 2) cannot take effect before it returns:"
        " it read 1, the register holds 2."
        " The read of op 2 is stale: write 2 (op 1), called after write 1 by process 0 (op 0) was"
        " over, had been acknowledged 1 ns before it began."
        " Without op 2, what was called until it returned has an order."
    )
    assert details["accused"] == {"operations": [2], "until_ns": 5, "why": ""}


def test_evidence_of_a_special_case_comes_with_the_search_s(tmp_path):
    (finding,) = judge(tmp_path, parse_model_history(STALE)).findings
    assert finding.details["method"] == "zones"
    assert finding.details["could_not"][0]["op"] == finding.details["stuck"]
    assert finding.message == (
        "k: write 1 by process 0 (op 0) was over before write 2 by process 0 (op 1) began and"
        " write 2 by process 0 (op 1) was over before read 1 by process 1 (op 2) began, so each of"
        " the two values must come before the other."
        " The read of op 2 is stale: write 2 (op 1), called after write 1 by process 0 (op 0) was"
        " over, had been acknowledged 1 ns before it began."
        " Without op 2, what was called until it returned has an order."
    )


def test_operations_of_another_model_are_doubts_not_crashes(tmp_path):
    verdict = judge(tmp_path, parse_model_history("0..1 p0 enqueue 1 -> ok"))
    assert verdict.outcome is Outcome.UNKNOWN
    assert "operation 0 is a 'enqueue', which the model register does not know" in verdict.summary
    assert "traceback" not in verdict.data


def test_an_incomplete_history_is_neither_valid_nor_invalid(tmp_path):
    verdict = judge(tmp_path, parse_model_history(STALE), incomplete="a worker's file is damaged")
    assert verdict.outcome is Outcome.UNKNOWN
    assert len(verdict.observed) == 1


def test_cas_on_a_missing_key(tmp_path):
    rows = parse_model_history("0..1 p0 cas 1 2 -> ok")
    verdict = judge(tmp_path, rows, Linearizable(CAS))
    assert verdict.outcome is Outcome.INVALID
    assert "it needs 1, the register holds nothing" in verdict.findings[0].message
    assert judge(tmp_path, rows, Linearizable(CAS, "1")).outcome is Outcome.VALID


def test_a_first_state_that_is_none_is_refused():
    with pytest.raises(UsageError, match="no first value for the model register"):
        Linearizable(REGISTER, "[1")


@pytest.mark.parametrize(
    ("budget", "why"), [(SearchBudget(time_s=0), "time"), (SearchBudget(memory_bytes=1), "memory")]
)
def test_what_the_budget_does_not_suffice_for_is_unknown(monkeypatch, budget, why):
    """A search that looks at the clock after five steps, and has no time or no room at all."""
    monkeypatch.setattr(attempt, "SLICE_NODES", 5)
    rows = [op(n, "write", n, n + 5, input=n % 3) for n in range(100)]
    checker = Linearizable(CAS, "0")
    tables = {"operations": pa.Table.from_pylist(rows, OPERATIONS)}
    hurried = replace(context(), search=budget, clock_unix_s=lambda: 0.0)
    verdict = checker.conclude(checker.check(tables, hurried), hurried)
    assert verdict.outcome is Outcome.UNKNOWN
    assert f"budget of {why}" in verdict.summary
    assert verdict.counts["undecided"] == 1
    assert verdict.data["undecided"][0]["why"] == why
    assert verdict.findings == ()


def test_every_operation_that_could_not_come_next_is_shown(tmp_path):
    """Also one that was called long before those that a long part has room for."""
    many = 2 * refutation.OPERATIONS_MAX
    lines = [f"{10 * n}..{10 * n + 1} p1 add 1 -> ok\n" for n in range(1, many)]
    lines.insert(0, f"1..{10 * many + 1} p0 read -> ok -7\n")
    lines.append(f"{10 * many}..{10 * many + 1} p2 read -> ok -9\n")
    checker = Linearizable(discovery.get("models", "counter"))
    (finding,) = judge(tmp_path, parse_model_history("".join(lines)), checker).findings
    assert {each["op"] for each in finding.details["could_not"]} == {0, many}
    assert len(finding.details["operations"]) == refutation.OPERATIONS_MAX
    shown = {each["op"] for each in finding.details["operations"]}
    assert {each["op"] for each in finding.details["could_not"]} <= shown
