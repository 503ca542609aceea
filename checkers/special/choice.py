"""Chooses the special case that decides a problem, if any does."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from shaketable.checkers.search.budget import UNLIMITED, Limits, MemorySpentError, TimeSpentError
from shaketable.checkers.search.problem import Problem
from shaketable.checkers.special import (
    bag,
    fifo,
    fifo_pairs,
    kv_texts,
    log_offsets,
    set_levels,
    zones,
)
from shaketable.checkers.special.decision import Decision


def _fifo_queue(problem: Problem, limits: Limits) -> Decision:
    """Decide a FIFO queue by bad patterns where they suffice, else by an order of its pairs."""
    return fifo.decide(problem, limits) or fifo_pairs.decide(problem, limits)


BY_PROBLEM: dict[str, Callable[[Problem, Limits], Decision | None]] = {
    "register": zones.decide,
    "cas-register": zones.decide,
    "fifo-queue": _fifo_queue,
    "unordered-queue": bag.decide,
    "set": set_levels.decide,
    "kv": kv_texts.decide,
}
"""The special case for each model that has one, by the model's name."""


def decide(
    model: str, problem: Problem, operations: pa.Table, limits: Limits = UNLIMITED
) -> Decision | None:
    """Decide a problem, or the operations that it was made from; None if it takes a search.

    None as well if the limits do not suffice: the search has the same limits, and reports which
    was reached and which part is undecided.

    Args:
        model: the model's name.
        problem: the problem that the search would get.
        operations: the same partition as rows of OPERATIONS.
        limits: the budget.
    """
    special = BY_PROBLEM.get(model)
    try:
        if model == "append-log":
            return log_offsets.decide(problem, operations, limits)
        return special(problem, limits) if special else None
    except (MemorySpentError, TimeSpentError):
        return None


def no_special_case(
    _model: str, _problem: Problem, _operations: pa.Table, _limits: Limits = UNLIMITED
) -> Decision | None:
    """Leave everything to the search."""
    return None
