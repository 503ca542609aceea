"""Random histories of collections: special cases, search and brute force on plain objects agree.

Brute force shares no code with the checkers (tests.support.plain_objects). An accusation that
claims that its operations have no order by themselves is given to it too.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa

from shaketable.checkers.linearizability.deciding import decide_without_search
from shaketable.checkers.search.driver import search
from shaketable.harness import discovery
from shaketable.harness.contracts.verdict import Outcome
from shaketable.harness.history.schema import OPERATIONS
from tests.support.accusations import BruteForce, TooLargeError
from tests.support.model_fuzz import DisagreementError
from tests.support.random_objects import Row, random_history

STRUCTURES = (
    "stack", "priority-queue", "min-priority-queue", "deque", "semaphore", "membership-set",
    "multiset", "fifo-queue", "counter",
)  # fmt: skip
SIZES = (5, 7, 9, 11)
UNKNOWN = (0.0, 0.1, 0.3)
END_NS = 10**9
BYTES = 1 << 28


def examine(model: str, seed: int) -> Counter[str]:
    """Judge the history of that seed in three ways; return what is to be counted of it.

    Raises:
        DisagreementError: not all agree.
    """
    rng = Random(f"{model} {seed}")
    rows = random_history(model, rng, size_max=rng.choice(SIZES), unknown=rng.choice(UNKNOWN))
    try:
        is_valid = BruteForce(model, rows).has_order(END_NS)
    except TooLargeError:
        return Counter(("too large",))
    problem, table = encoded(model, rows)
    seen: Counter[str] = Counter(("histories", "valid" if is_valid else "invalid"))
    if not problem.kind.size:
        return seen
    found = search(problem, is_over=lambda: False, memory_bytes_max=BYTES)
    if found.outcome is not (Outcome.VALID if is_valid else Outcome.INVALID):
        raise DisagreementError(f"{is_valid} by brute force, the search: {found}", rows)
    decision = decide_without_search(model, problem, table)
    if decision is None:
        seen["by search"] += 1
        return seen
    seen[f"by {decision.method}"] += 1
    if (decision.outcome is Outcome.VALID) != is_valid:
        raise DisagreementError(f"{is_valid} by brute force, the special case: {decision}", rows)
    if decision.accusation is not None:
        _require_closed(model, rows, decision.accusation)
        seen["closed"] += decision.accusation.closed
    return seen


def encoded(model: str, rows: list[Row]) -> tuple[Any, pa.Table]:
    """Return the problem of some rows, and the rows as a table."""
    table = pa.Table.from_pylist(rows, OPERATIONS)
    known = discovery.get("models", model)
    return known.encode(table, known.initial(None)), table


def _require_closed(model: str, rows: list[Row], accusation: Any) -> None:
    """Require that accused operations which are said to have no order by themselves have none."""
    accusation.why.format(*accusation.ops)
    named = [row for row in rows if row["op"] in accusation.ops]
    if len(named) != len(accusation.ops):
        raise DisagreementError(f"an operation is named twice, or is none: {accusation}", rows)
    if accusation.closed and BruteForce(model, named).has_order(END_NS):
        raise DisagreementError(f"these alone have an order: {accusation}", rows)


MIDDLE = (60, 120, 240)
"""Operations of a history that brute force cannot judge."""
LOOKS_MAX = 200
"""How often the clock is looked at before a search ends undecided."""


def examine_middle(model: str, seed: int) -> Counter[str]:
    """Judge a larger history by the search and by the special case.

    Raises:
        DisagreementError: they do not agree.
    """
    rng = Random(f"{model} middle {seed}")
    unknown = rng.choice((0.0, 0.0, 0.01, 0.03))
    rows = random_history(
        model, rng, size_max=rng.choice(MIDDLE), unknown=unknown, lies=0.3, fills=True
    )
    problem, table = encoded(model, rows)
    decision = decide_without_search(model, problem, table)
    if decision is None:
        return Counter(("histories", "by search"))
    seen: Counter[str] = Counter(("histories", f"by {decision.method}", decision.outcome.name))
    looks = iter(range(LOOKS_MAX))
    found = search(problem, is_over=lambda: next(looks, None) is None, memory_bytes_max=BYTES)
    if found.outcome is Outcome.UNKNOWN:
        seen["search undecided"] += 1
    elif found.outcome is not decision.outcome:
        raise DisagreementError(f"{decision}, the search: {found}", rows)
    return seen
