"""Chooses the special case that decides a problem, if any does."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from checkers.search.problem import Problem
from checkers.special.decision import Decision

Special = Callable[[Problem], Decision | None]


def special_cases() -> Mapping[str, tuple[Special, ...]]:
    """Return the special cases of each model, by its name; the first that decides is taken."""
    return {}


def decide(model: str, problem: Problem) -> Decision | None:
    """Decide a problem without a search; None where no special case applies."""
    for special in special_cases().get(model, ()):
        decision = special(problem)
        if decision is not None:
            return decision
    return None
