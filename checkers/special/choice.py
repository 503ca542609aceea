"""Chooses the special case that decides a problem, if any does."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from checkers.search.problem import Problem
from checkers.special import bag, fifo, log_offsets, set_levels, zones
from checkers.special.decision import Decision

BY_PROBLEM: dict[str, Callable[[Problem], Decision | None]] = {
    "register": zones.decide,
    "cas-register": zones.decide,
    "fifo-queue": fifo.decide,
    "unordered-queue": bag.decide,
    "set": set_levels.decide,
}
"""The special case of each model that has one, by the model's name."""


def decide(model: str, problem: Problem, operations: pa.Table) -> Decision | None:
    """Decide a problem, or the operations that it was made from; None where that takes a search.

    Args:
        model: the model's name.
        problem: what the search would be asked.
        operations: the same partition as rows of OPERATIONS.
    """
    if model == "append-log":
        return log_offsets.decide(problem, operations)
    special = BY_PROBLEM.get(model)
    return special(problem) if special else None


def no_special_case(_model: str, _problem: Problem, _operations: pa.Table) -> Decision | None:
    """Leave everything to the search."""
    return None
