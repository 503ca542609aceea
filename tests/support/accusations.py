"""Random histories of every model, and whether what a checker says of them is proven.

Brute force tries every order of plain objects (tests.support.plain_objects); nothing of it is
shared with the checkers. What it would take too long for is left to the search alone, and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import combinations
from random import Random
from typing import Any

import pyarrow as pa

from shaketable.checkers.linearizability.linearizable import Linearizable
from shaketable.checkers.models.model import Model
from shaketable.harness.contracts.verdict import Finding, Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.checker_histories import context
from tests.support.plain_objects import PLAIN, Row, State
from tests.support.random_objects import random_history

UNKNOWN_MAX = 12
SIZE_MAX = 18
TRIED_MAX = 2
"""Size of the sets that are all tried; of larger ones no operation can be left out."""
LOOKS_MAX = 40_000
"""Configurations that brute force looks at before it gives up on a history."""


class TooLargeError(Exception):
    """Brute force would take too long."""


class UnprovenError(AssertionError):
    """What a checker says is not so; `rows` are the history."""

    def __init__(self, message: str, rows: Sequence[Row]) -> None:
        super().__init__(message)
        self.rows = [{k: v for k, v in row.items() if v is not None} for row in rows]


class BruteForce:
    """Decides histories of one object by trying every order."""

    def __init__(self, model: str, rows: Sequence[Row], initial: State = None) -> None:
        first, self._after = PLAIN[model]
        self._first = first if initial is None else initial
        self._rows = rows

    @cached_property
    def return_ns(self) -> dict[int, int]:
        """When each operation returned of which the outcome is known."""
        return {
            row["op"]: row["return_ns"]
            for row in self._rows
            if row["outcome"] != "info" and row["return_ns"] is not None
        }

    def has_order(self, until_ns: int, without: Collection[int] = ()) -> bool:
        """Say whether what was called until then can have happened in some order.

        What had not returned by then may have happened or not, with any answer.
        """
        rows = [r for r in self._rows if r["call_ns"] <= until_ns and r["op"] not in without]
        rows = [r for r in rows if r["outcome"] != "fail" or not self._is_over(r, until_ns)]
        known = [r["outcome"] == "ok" and self._is_over(r, until_ns) for r in rows]
        must = frozenset(n for n, is_known in enumerate(known) if is_known)
        seen: set[tuple[frozenset[int], State]] = set()
        stack = [(frozenset(range(len(rows))), self._first)]
        while stack:
            left, state = stack.pop()
            if not must & left:
                return True
            if (left, state) in seen:
                continue
            seen.add((left, state))
            if len(seen) > LOOKS_MAX:
                raise TooLargeError
            end = min(rows[n]["return_ns"] for n in must & left)
            for n in left:
                if rows[n]["call_ns"] <= end:
                    reached = self._after(state, rows[n], known[n])
                    stack.extend((left - {n}, after) for after in reached)
        return False

    def has_property(self, ops: Collection[int]) -> bool:
        """Say whether with these operations, up to the last return of them, there is no order.

        And without them there is one.
        """
        until_ns = max(self.return_ns[op] for op in ops)
        return not self.has_order(until_ns) and self.has_order(until_ns, ops)

    def smaller(self, ops: Collection[int]) -> Iterable[tuple[int, ...]]:
        """Yield all sets of fewer operations, up to TRIED_MAX of them, that have that property.

        They end with the same return. One that ends later owes its end to an operation that has
        nothing to do with it: any return after that of a set will do.
        """
        until_ns = max(self.return_ns[op] for op in ops)
        fewer = range(1, min(len(ops), TRIED_MAX + 1))
        tried = [some for size in fewer for some in combinations(sorted(self.return_ns), size)]
        if len(ops) > TRIED_MAX:
            tried += combinations(ops, len(ops) - 1)
        for some in tried:
            if max(self.return_ns[op] for op in some) == until_ns and self.has_property(some):
                yield some

    def _is_over(self, row: Row, until_ns: int) -> bool:
        if row["return_ns"] is None:
            return row["outcome"] == "fail"  # nobody said since when that is known
        return row["outcome"] != "info" and row["return_ns"] <= until_ns


def history(model: str, seed: int) -> list[Row]:
    """Draw a history of up to SIZE_MAX operations, of which up to UNKNOWN_MAX are unknown."""
    rng = Random(f"accusations {model} {seed}")
    unknown = rng.choice((0.0, 0.1, 0.3, 0.5, 0.7))
    rows = random_history(
        model, rng, size_max=rng.choice((6, 10, SIZE_MAX)), unknown=unknown, lies=1.0
    )
    rows = [row for row in rows if row["f"] is not None]
    for row in rows:
        if row["outcome"] == "fail" and rng.random() < 0.8:
            row["return_ns"] = row["call_ns"] + rng.randint(0, 12)
    while sum(row["outcome"] == "info" for row in rows) > UNKNOWN_MAX:
        rows.remove(rng.choice([row for row in rows if row["outcome"] == "info"]))
    return rows


def judged(model: Model, rows: Sequence[Row], *, use_special_cases: bool = True) -> Any:
    """Return the verdict of the checker."""
    checker = Linearizable(model, use_special_cases=use_special_cases)
    tables = {"operations": pa.Table.from_pylist(list(rows), OPERATIONS)}
    return checker.conclude(checker.check(tables, context()), context())


def examine(model: Model, rows: list[Row], *, use_special_cases: bool = True) -> Counter[str]:
    """Judge a history and prove what is said of it; return what is to be counted.

    Raises:
        UnprovenError: it is not so.
    """
    brute = BruteForce(model.name, rows)
    try:
        if brute.has_order(max((row["call_ns"] for row in rows), default=0) + 1_000):
            return Counter(not_invalid=1)
    except TooLargeError:
        pass
    verdict = judged(model, rows, use_special_cases=use_special_cases)
    if verdict.outcome is not Outcome.INVALID:
        return Counter(not_invalid=1)
    (finding,) = verdict.findings
    seen: Counter[str] = Counter(findings=1)
    seen[f"unknown {sum(row['outcome'] == 'info' for row in rows):2}"] += 1
    ops = finding.details["accused"]["operations"]
    seen[f"accused {len(ops)}"] += 1
    seen[f"by {finding.details['method']}"] += 1
    require_shown(finding, ops, rows)
    if not ops:
        return seen + Counter(unnamed=1)
    require(finding.details["accused"]["until_ns"] == max(brute.return_ns[op] for op in ops),
            "it ends with the return of one of them", rows)  # fmt: skip
    try:
        before_ns = finding.details["accused"]["until_ns"] - 1
        require(brute.has_order(before_ns), "in order before that return", rows)
        require(brute.has_property(ops), f"{ops} are not at fault: {finding.message}", rows)
        _require_stale(finding, brute, rows)
        seen["by brute force"] += 1
        for fewer in brute.smaller(ops):
            raise UnprovenError(f"{fewer} suffice, not {ops}: {finding.message}", rows)
        seen["smallest by brute force"] += 1
    except TooLargeError:
        is_decided = _by_search(model, ops, finding, rows)
        seen["by the search alone" if is_decided else "too large for both"] += 1
    return seen


def require_shown(finding: Finding, ops: Sequence[int], rows: Sequence[Row]) -> None:
    """Require that the accused are named first, shown, and what the explanation is about."""
    details = finding.details
    shown = {each["op"] for each in details["operations"]}
    require(list(finding.operations[: len(ops)]) == list(ops), "named first", rows)
    require(shown.issuperset(ops), "shown", rows)
    require(not ops or details["stuck"] in ops, "what cannot be placed is accused", rows)
    require(details["stuck"] in shown, "what cannot be placed is shown", rows)
    for op in ops:
        require(f"op {op}" in finding.message, f"op {op} is named: {finding.message}", rows)


def _require_stale(finding: Finding, brute: BruteForce, rows: Sequence[Row]) -> None:
    """Require the same of a read that is said to be stale, once the accused are taken out."""
    stale = finding.details.get("stale")
    if stale is None:
        return
    read, others = stale["read"], stale.get("without", [])
    require(bool(others) or read in finding.details["accused"]["operations"], "accused", rows)
    end_ns = brute.return_ns[read]
    require(not brute.has_order(end_ns, others), f"{read} is not wrong: {finding.message}", rows)
    is_at_fault = brute.has_order(end_ns, [*others, read])
    is_at_fault |= len(finding.details["accused"]["operations"]) > 1 and not others
    require(is_at_fault, f"{read} is not at fault: {finding.message}", rows)


def _by_search(model: Model, ops: Sequence[int], finding: Finding, rows: list[Row]) -> bool:
    """Require it by the search, with outcomes rewritten here; say whether it could decide."""
    until_ns = finding.details["accused"]["until_ns"]
    now = [_as_known(row, until_ns) for row in rows if row["call_ns"] <= until_ns]
    rest = [row for row in now if row["op"] not in ops]
    for some, outcomes in ((now, [Outcome.INVALID]), (rest, [Outcome.VALID, Outcome.UNKNOWN])):
        found = judged(model, some, use_special_cases=False)
        if found.counts.get("undecided"):
            return False  # it would hold more than it may
        require(found.outcome in outcomes, f"the search: {ops} are not at fault", rows)
    return True


def _as_known(row: Row, until_ns: int) -> Row:
    if row["return_ns"] is None or row["return_ns"] <= until_ns:
        return row
    return row | {"outcome": "info", "return_ns": None, "output": None}


def require(is_so: bool, message: str, rows: Sequence[Row]) -> None:
    """Require something of what was said of a history."""
    if not is_so:
        raise UnprovenError(message, rows)
