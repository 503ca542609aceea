"""Registers of a run: golden histories, and what a target never promised is only observed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shaketable.harness.contracts.plugins import Promises
from shaketable.harness.contracts.verdict import Outcome
from tests.support.anomaly_histories import judge, kinds_of, parse
from tests.support.checker_histories import struck

ROOT = Path(__file__).parent.parent / "histories" / "registers"
HISTORIES = sorted(ROOT.glob("*.txt"))
REGISTERS = frozenset({"read", "write", "cas"})
PROMISED = Promises(durable_under=frozenset({"kill"}), linearizable=REGISTERS)


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_golden_history(tmp_path: Path, path: Path) -> None:
    text = path.read_text()
    checker, outcome, *kinds = text.splitlines()[0].removeprefix("#").split()
    verdict = judge(tmp_path, parse(text), checker, promises=PROMISED)
    assert kinds_of(verdict) == kinds
    assert verdict.outcome is Outcome[outcome.upper()], verdict.summary
    assert verdict.checker == checker


@pytest.mark.parametrize(
    ("promises", "faults", "why"),
    [
        (Promises(), (), "the target does not promise it"),
        (PROMISED, ("kill", "rollback"), "the target promises no durability under rollback"),
    ],
)
def test_what_is_not_promised_is_observed(
    tmp_path: Path, promises: Promises, faults: tuple[str, ...], why: str
) -> None:
    rows = parse((ROOT / "stale_read.txt").read_text())
    told = {"promises": promises, **struck(*faults)}
    verdict = judge(tmp_path, rows, "linearizable-register", **told)
    assert verdict.outcome is Outcome.VALID
    assert why in verdict.summary
    assert len(verdict.observed) == 1
