"""A small search runs as Python where numba is not needed yet: with the same answers and proofs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from shaketable.checkers.kernels import search
from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.harness import compiled, discovery
from shaketable.harness.contracts.verdict import Outcome, Verdict
from tests.support.model_fuzz import judge
from tests.support.random_objects import Row, random_history

MODELS = (
    "register", "cas-register", "counter", "fifo-queue", "kv", "multi-register", "mutex", "set",
    "stack",
)  # fmt: skip
SEEDS = 25
PLENTY = 1_000_000


def judged(
    monkeypatch: pytest.MonkeyPatch, model: str, rows: list[Row], left: int
) -> tuple[Verdict, int]:
    """Return the verdict of the search, and how much of what Python may do is left then."""
    monkeypatch.setattr(compiled, "_left", left)
    checker = Linearizable(discovery.get("models", model), use_special_cases=False)
    return judge(checker, rows), compiled._left


@pytest.mark.parametrize("model", MODELS)
def test_python_answers_what_machine_code_answers(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    outcomes = set()
    for seed in range(SEEDS):
        rows = random_history(model, Random(seed))
        interpreted, left = judged(monkeypatch, model, rows, PLENTY)
        assert 0 < left < PLENTY, "no kernel was compiled, and some ran"
        machine, left = judged(monkeypatch, model, rows, 0)
        assert left == 0
        assert interpreted == machine, (seed, rows)
        outcomes.add(interpreted.outcome)
    assert outcomes >= {Outcome.VALID, Outcome.INVALID}


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_search_that_takes_longer_goes_on_in_machine_code(
    monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    visits: list[bool] = []

    def recorded(*arguments: object) -> int:
        visits.append(compiled._interpreter.is_on)
        return int(run(*arguments))

    run = search.run
    monkeypatch.setattr("shaketable.checkers.search.attempt.run", recorded)
    monkeypatch.setattr(compiled, "INTERPRETED_NODES", 1)
    switched = 0
    for seed in range(SEEDS):
        rows = random_history("cas-register", Random(seed))
        machine, _ = judged(monkeypatch, "cas-register", rows, 0)
        visits.clear()
        both, left = judged(monkeypatch, "cas-register", rows, len(rows) + nodes)
        assert both == machine, (seed, rows)
        assert left >= 0
        switched += visits[0] and not visits[-1]
    assert switched > SEEDS // 3


CHECK = """
import sys
from shaketable.harness.cli import run
code = run(["check", sys.argv[1]])
print("numba" in sys.modules)
sys.exit(code)
"""
SMALL = {
    0: [("write", 1, None, 0, 9), ("read", None, 1, 10, 19)],
    1: [("write", 1, None, 0, 9), ("write", 2, None, 10, 19), ("read", None, 1, 20, 29)],
}


@pytest.mark.parametrize("code", SMALL)
def test_a_small_check_imports_no_numba(tmp_path: Path, code: int) -> None:
    lines = [
        f'{{"process": 0, "f": "{f}", "input": {given or "null"}, "output": {found or "null"},'
        f' "call_ns": {call}, "return_ns": {end}}}\n'
        for f, given, found, call, end in SMALL[code]
    ]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(lines))
    ended = subprocess.run(
        [sys.executable, "-P", "-c", CHECK, str(history)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout.endswith("False\n")
