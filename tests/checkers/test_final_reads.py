"""Durability by what clients read after the heal, of nodes whose logs nobody can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shaketable.checkers.engine.local import run_local
from shaketable.checkers.logs.final_reads import PLUGIN
from shaketable.harness.contracts.verdict import Outcome, Verdict
from tests.support.checker_histories import PROMISES, Op, job, op, struck

HEALED = 1_000
APPENDS = [
    op(n, "append", 10 * n, 10 * n + 5, input=100 + n, offset=n, key="q/0") | {"node": "n0"}
    for n in range(4)
]
STALE = replace(PROMISES, linearizable=frozenset({"append"}))


def read(number: int, offset: int, output: int | None, call: int = HEALED, **more: Any) -> Op:
    row = op(50 + number, "read", call + number, call + number + 1, key="q/0")
    return {**row, "offset": offset, "output": output, **more}


def judge(tmp_path: Path, *reads: Op, **more: Any) -> Verdict:
    more.setdefault("final_from_ns", HEALED)
    (verdict,) = run_local(job(tmp_path, [*APPENDS, *reads], [PLUGIN], **more))
    return verdict


def test_what_is_read_in_the_end_stands(tmp_path: Path) -> None:
    verdict = judge(tmp_path, *(read(n, n, 100 + n) for n in range(4)))
    assert verdict.outcome is Outcome.VALID
    assert verdict.summary == (
        "the nodes' logs cannot be read: judged by what clients read after the heal; all 4"
        " acknowledged appends were looked at, and are"
    )
    some = judge(tmp_path, read(3, 3, 103))
    assert some.outcome is Outcome.VALID
    assert "1 of 4 acknowledged appends were looked at, and are" in some.summary


@pytest.mark.parametrize(("found", "said"), [(None, "nothing"), (777, "the value 777")])
def test_what_is_not_there_in_the_end_is_lost(tmp_path: Path, found: int | None, said: str) -> None:
    verdict = judge(tmp_path, read(2, 2, found), read(3, 3, 103))
    assert verdict.outcome is Outcome.INVALID
    (finding,) = verdict.findings
    assert (finding.kind, finding.offset, finding.operations) == ("lost-append", 2, (2, 52))
    assert finding.message.endswith(f"after the heal (op 52) found {said} there.")
    assert "2 of 4 were looked at" in verdict.summary


def test_the_last_look_counts_and_none_from_before_the_heal(tmp_path: Path) -> None:
    early = read(1, 1, None, call=500)
    assert judge(tmp_path, early, read(2, 1, 101)).outcome is Outcome.VALID
    first_not = (read(2, 1, None), read(3, 1, 101))
    assert judge(tmp_path, *first_not).outcome is Outcome.VALID
    refused = read(4, 1, None, outcome="fail")
    assert judge(tmp_path, *first_not, refused).outcome is Outcome.VALID


def test_a_read_that_may_be_stale_proves_no_loss_by_finding_nothing(tmp_path: Path) -> None:
    verdict = judge(tmp_path, read(1, 1, None), promises=STALE)
    assert (verdict.outcome, verdict.findings) == (Outcome.UNKNOWN, ())
    assert "1 of 1 were not found, by reads that may be stale" in verdict.summary
    other = judge(tmp_path, read(1, 1, 5), promises=STALE)
    assert other.outcome is Outcome.INVALID, "another value stands there"


def test_what_nobody_read_is_neither_lost_nor_kept(tmp_path: Path) -> None:
    for more in ({}, {"final_from_ns": None}):
        verdict = judge(tmp_path, read(1, 1, None, call=500), **more)
        assert (verdict.outcome, verdict.findings) == (Outcome.UNKNOWN, ())
        assert verdict.summary.startswith("not judged: the nodes' logs cannot be read")
    promises = replace(PROMISES, durable_under=frozenset())
    assert judge(tmp_path, promises=promises).outcome is Outcome.VALID


def test_a_loss_under_a_fault_that_was_not_promised_is_observed(tmp_path: Path) -> None:
    promises = replace(PROMISES, durable_under=frozenset({"kill"}))
    verdict = judge(tmp_path, read(1, 1, None), promises=promises, **struck("wipe"))
    assert verdict.outcome is Outcome.VALID
    assert [finding.kind for finding in verdict.observed] == ["lost-append"]
    stale = replace(STALE, durable_under=frozenset({"kill"}))
    verdict = judge(tmp_path, read(1, 1, None), promises=stale, **struck("wipe"))
    assert verdict.outcome is Outcome.VALID
    assert verdict.summary.endswith(
        "1 of 1 were not found, by reads that may be stale; the target promises no durability"
        " under wipe"
    )


# Lists that transactions append to.


def txn(number: int, call: int, *steps: list[Any], outcome: str = "ok") -> Op:
    asked = [[f, key, None if f == "r" else value] for f, key, value in steps]
    extra = {"input": asked} | ({"output": list(steps)} if outcome == "ok" else {})
    return {**op(number, "txn", call, call + 5, key="lists"), "outcome": outcome,
            "extra": json.dumps(extra)}  # fmt: skip


LISTS = [
    txn(1, 10, ["append", "x", 1], ["append", "y", 2]),
    txn(2, 20, ["append", "x", 3], ["r", "x", [1, 3]]),
    txn(3, 30, ["append", "x", 4], outcome="info"),
    txn(4, 40, ["append", "x", 5], outcome="fail"),
]
FRESH = replace(PROMISES, linearizable=frozenset(), isolation="strict-serializable")


def judge_lists(tmp_path: Path, *reads: Op, **more: Any) -> Verdict:
    more.setdefault("final_from_ns", HEALED)
    more.setdefault("promises", FRESH)
    (verdict,) = run_local(job(tmp_path, [*LISTS, *reads], [PLUGIN], **more))
    return verdict


def test_elements_that_are_read_in_the_end_are_kept(tmp_path: Path) -> None:
    verdict = judge_lists(tmp_path, txn(9, HEALED, ["r", "x", [1, 3, 4]], ["r", "y", [2]]))
    assert verdict.outcome is Outcome.VALID
    assert "all 3 acknowledged appends were looked at, and are" in verdict.summary
    some = judge_lists(tmp_path, txn(9, HEALED, ["r", "y", [2]]))
    assert "1 of 3 acknowledged appends were looked at, and are" in some.summary


@pytest.mark.parametrize("found", [[1], []])
def test_an_element_that_is_not_read_in_the_end_is_lost(tmp_path: Path, found: list[int]) -> None:
    first = txn(8, HEALED, ["r", "x", [1, 3]])
    verdict = judge_lists(tmp_path, first, txn(9, HEALED + 9, ["r", "x", found]))
    assert verdict.outcome is Outcome.INVALID
    assert verdict.findings_total == 2 - len(found)
    last = verdict.findings[-1]
    assert (last.kind, last.key, last.operations) == ("lost-append", "x", (2, 9))
    assert last.message == (
        "x: 3, appended by op 2 (append x 3, r x [1 3]), acknowledged after 0.000 s, is lost: the"
        " last read of that list after the heal (op 9) did not find it."
    )


@pytest.mark.parametrize(
    ("isolation", "linearizable", "outcome"),
    [
        ("strict-serializable", (), Outcome.INVALID),
        ("strong-snapshot-isolation", (), Outcome.INVALID),
        ("serializable", (), Outcome.UNKNOWN),
        ("", (), Outcome.UNKNOWN),
        ("snapshot-isolation", ("read",), Outcome.INVALID),
    ],
)
def test_a_read_that_may_be_stale_proves_no_loss_of_an_element(
    tmp_path: Path, isolation: str, linearizable: tuple[str, ...], outcome: Outcome
) -> None:
    promises = replace(PROMISES, linearizable=frozenset(linearizable), isolation=isolation)
    verdict = judge_lists(tmp_path, txn(9, HEALED, ["r", "x", [1]]), promises=promises)
    assert verdict.outcome is outcome, verdict.summary


def test_an_element_of_which_no_loss_is_excluded_is_observed(tmp_path: Path) -> None:
    verdict = judge_lists(tmp_path, txn(9, HEALED, ["r", "x", [1]]), **struck("power"))
    assert verdict.outcome is Outcome.VALID
    assert [each.kind for each in verdict.observed] == ["lost-append"]


def test_transactions_that_are_no_steps_are_not_judged(tmp_path: Path) -> None:
    odd = {**txn(9, HEALED, ["r", "x", [1]]), "extra": '{"input": "transfer", "output": "done"}'}
    verdict = judge_lists(tmp_path, odd)
    assert verdict.summary.startswith("not judged: the nodes' logs cannot be read")
