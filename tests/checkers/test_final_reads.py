"""Durability by what clients read after the heal, of nodes whose logs nobody can read."""

from __future__ import annotations

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
