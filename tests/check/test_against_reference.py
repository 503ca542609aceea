"""`check --against`: verdicts beside those of a reference, real where there is Go, else a fake."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from shaketable.harness import discovery
from shaketable.harness.contracts.errors import HarnessError, UsageError
from shaketable.harness.contracts.plugins import CheckContext, Promises
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from shaketable.harness.installing import cache_folder
from shaketable.harness.judging import against
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import op
from tests.support.random_objects import random_history

HISTORIES = 40
GO = shutil.which("go")


def fake(folder: Path, body: str) -> Path:
    program = folder / "porcupine"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def rows_of_two_keys():
    return [
        op(0, "write", 0, 1, input=1, key="x"),
        op(1, "read", 2, 3, output=1, key="x"),
        op(2, "write", 0, 1, input=1, key="y"),
        op(3, "read", 2, 3, output=2, key="y"),
    ]


def compared(program: Path, rows, model="register"):
    chosen = discovery.get("models", model)
    table = pa.Table.from_pylist(rows, OPERATIONS)
    context = CheckContext((), {}, Promises())
    return against.compare(
        program, table, chosen, chosen.initial(None), context, lambda _line: None
    )


def test_agreement_is_valid_whatever_the_verdicts(tmp_path):
    verdict = compared(fake(tmp_path, "echo 0 Ok 0.5; echo 1 Illegal 0.25"), rows_of_two_keys())
    assert verdict.outcome is Outcome.VALID
    assert "agrees on 2 of 2 objects" in verdict.summary
    assert "porcupine 0.750 s" in verdict.summary


def test_a_difference_is_unknown_and_named(tmp_path):
    verdict = compared(fake(tmp_path, "echo 0 Ok 0.5; echo 1 Ok 0.25"), rows_of_two_keys())
    assert verdict.outcome is Outcome.UNKNOWN
    (finding,) = verdict.findings
    assert finding.key == "y"
    assert "ours is invalid" in finding.message
    assert "porcupine valid (0.250 s)" in finding.message
    assert [one["key"] for one in verdict.data["objects"]] == ["y", "x"]


def test_one_that_dies_is_asked_for_the_rest(tmp_path):
    body = '[ "$5" = 0 ] && { echo "fatal error: runtime: out of memory" >&2; exit 2; }\n'
    verdict = compared(fake(tmp_path, body + "echo 1 Illegal 0.25"), rows_of_two_keys())
    assert verdict.outcome is Outcome.VALID
    assert "agrees on 1 of 2 objects, 1 not compared (memory)" in verdict.summary


def test_one_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "GRACE_S", -59.9)  # of 60 s, the default of a search
    verdict = compared(fake(tmp_path, "exec sleep 600"), rows_of_two_keys()[:2])
    assert "agrees on 0 of 1 object, 1 not compared (time)" in verdict.summary


def test_an_answer_that_is_none_is_refused(tmp_path):
    with pytest.raises(HarnessError, match="answered 'hello', which is no verdict"):
        compared(fake(tmp_path, "echo hello"), rows_of_two_keys())


def test_a_model_that_it_does_not_have_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is given no model semaphore"):
        compared(fake(tmp_path, ""), [], "semaphore")


def test_there_is_no_other_reference():
    with pytest.raises(UsageError, match=r"'knossos' .there are: porcupine."):
        against.require_reference("knossos")


def test_without_go_the_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"--against porcupine needs go, .*install Go"):
        against.build(tmp_path / "cache", lambda _line: None)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("model", sorted(against.FIRST_STATES))
def test_porcupine_agrees_with_brute_force_and_with_us(model, tmp_path):
    if GO is None:  # then it cannot be had, which the line says
        with pytest.raises(HarnessError, match="needs go"):
            against.build(tmp_path / "cache", lambda _line: None)
        return
    program = against.build(cache_folder(), lambda _line: None)
    chosen = discovery.get("models", model)
    rows, expected = [], {}
    for seed in range(HISTORIES):
        one = random_history(model, Random(seed))
        key = f"{seed:03}"
        rows += [{**row, "key": key, "op": len(rows) + n} for n, row in enumerate(one)]
        if one:
            is_valid = is_linearizable(chosen, chosen.initial(None), one)
            expected[key] = "valid" if is_valid else "invalid"
    verdict = compared(program, rows, model)
    found = {each["key"]: (each["ours"], each["theirs"]) for each in verdict.data["objects"]}
    assert found == {key: (says, says) for key, says in expected.items()}
    assert {"valid", "invalid"} == set(expected.values())
