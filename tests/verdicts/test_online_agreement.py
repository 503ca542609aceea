"""What was judged while a run went on, and what its check says: a disagreement is told."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shaketable.harness.contracts.verdict import Finding, Outcome, Verdict
from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.judging.judge import judge_agreement

CHECKER = "linearizable-register"
FOUND = Finding("not-linearizable", "it read 3, the register holds 1", "r/0", None, (7,))
VIOLATION = {"type": "violation", "checker": CHECKER, "at_ns": 5, "finding": asdict(FOUND)}


def ended(outcome: Outcome, kind: str = "finished") -> dict[str, Any]:
    return {"type": kind, "checker": CHECKER, "outcome": outcome.name, "operations": 9}


def folder_with(path: Path, *lines: dict[str, Any], rest: bytes = b"") -> RunFolder:
    folder = RunFolder(path)
    data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    folder.online_jsonl.write_bytes(data + rest)
    return folder


def checked(outcome: Outcome, *findings: Finding, observed: tuple[Finding, ...] = ()) -> Verdict:
    return Verdict(CHECKER, outcome, "", findings, len(findings), observed=observed)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        ([ended(Outcome.VALID)], checked(Outcome.VALID)),
        ([VIOLATION, ended(Outcome.INVALID)], checked(Outcome.INVALID, FOUND)),
        ([VIOLATION], checked(Outcome.VALID, observed=(FOUND,))),
        ([ended(Outcome.VALID)], checked(Outcome.UNKNOWN)),
        ([ended(Outcome.UNKNOWN)], checked(Outcome.INVALID, FOUND)),
        ([ended(Outcome.VALID, "left")], checked(Outcome.INVALID, FOUND)),
    ],
)
def test_where_both_agree_or_one_does_not_know_nothing_is_added(
    tmp_path: Path, lines: list[dict[str, Any]], verdict: Verdict
) -> None:
    assert judge_agreement(folder_with(tmp_path, *lines), [verdict]) is None


def test_a_run_that_was_not_judged_online_is_not_compared(tmp_path: Path) -> None:
    assert judge_agreement(RunFolder(tmp_path), [checked(Outcome.VALID)]) is None
    other = Verdict("stats", Outcome.VALID, "")
    assert judge_agreement(folder_with(tmp_path, VIOLATION), [other]) is None


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.VALID, "internal error: 1 key found not to be linearizable while the run went on"),
        (Outcome.UNKNOWN, "which linearizable-register did not decide"),
    ],
)
def test_a_proof_stands(tmp_path: Path, outcome: Outcome, said: str) -> None:
    folder = folder_with(tmp_path, VIOLATION, ended(Outcome.INVALID), rest=b'{"type": "viol')
    told = judge_agreement(folder, [checked(outcome)])
    assert told is not None
    assert told.outcome is Outcome.INVALID
    assert told.findings == (FOUND,)
    assert said in told.summary


def test_what_was_missed_online_is_an_internal_error(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ended(Outcome.VALID))
    told = judge_agreement(folder, [checked(Outcome.INVALID, FOUND)])
    assert told is not None
    assert told.outcome is Outcome.UNKNOWN
    assert told.summary.startswith("internal error: linearizable-register finds what")


def test_what_cannot_be_read_may_have_been_a_proof(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, rest=b"rubbish\n")
    told = judge_agreement(folder, [checked(Outcome.VALID)])
    assert told is not None
    assert told.outcome is Outcome.UNKNOWN
    assert told.summary.startswith("online.jsonl: what was found while the run went on cannot be")
