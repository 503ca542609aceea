"""One random history judged by brute force, by the checker, and by the search alone."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.models.model import Model
from shaketable.harness.contracts.verdict import Outcome, Verdict
from shaketable.harness.history.schema import OPERATIONS
from tests.support.brute_force import is_linearizable
from tests.support.checker_histories import context
from tests.support.random_objects import Row, random_history


class DisagreementError(AssertionError):
    """Two judges of one history disagree."""

    def __init__(self, message: str, rows: list[Row]) -> None:
        super().__init__(message)
        self.rows = [{k: v for k, v in row.items() if v is not None} for row in rows]


def judge(checker: Linearizable, rows: list[Row]) -> Verdict:
    tables = {"operations": pa.Table.from_pylist(rows, OPERATIONS)}
    return checker.conclude(checker.check(tables, context()), context())


def compare(model: Model, seed: int, **more: Any) -> Counter[str]:
    """Judge the history of that seed; return what is to be counted of it.

    Raises:
        DisagreementError: not all agree.
    """
    rows = random_history(model.name, Random(seed), **more)
    is_valid = is_linearizable(model, model.initial(None), rows)
    proves_nothing = not any(row["outcome"] == "ok" for row in rows)
    expected = Outcome.VALID if is_valid else Outcome.INVALID
    if proves_nothing:
        expected = Outcome.UNKNOWN
    seen: Counter[str] = Counter(histories=1)
    seen["valid" if is_valid else "invalid"] = 1
    seen["with_unknown"] = int(any(row["outcome"] == "info" for row in rows))
    for use_special_cases in (True, False):
        verdict = judge(Linearizable(model, use_special_cases=use_special_cases), rows)
        if verdict.outcome is not expected:
            how = "with" if use_special_cases else "without"
            raise DisagreementError(
                f"brute force says {expected.name}, the checker {how} special cases"
                f" {verdict.outcome.name}: {verdict.summary}",
                rows,
            )
        if expected is Outcome.INVALID:
            check_evidence(verdict, rows)
        if use_special_cases:
            seen.update({k: 1 for k in verdict.counts if k.startswith("by_")})
    return seen


def check_evidence(verdict: Verdict, rows: list[Row]) -> None:
    """Look at the form of a refutation: it names operations of the history, in words."""
    finding = verdict.findings[0]
    known = {row["op"] for row in rows}
    details = finding.details
    ops = [shown["op"] for shown in details["operations"]]
    sound = (
        finding.operations
        and known.issuperset(finding.operations)
        and known.issuperset(ops)
        and details["stuck"] in ops
        and all(step["op"] in known and step["state"] for step in details["prefix"])
        and all(each["op"] in known and each["why"] for each in details["could_not"])
        and finding.message.startswith("k: ")
        and finding.message.endswith(".")
    )
    if not sound:
        raise DisagreementError(f"the evidence is not sound: {finding}", rows)
