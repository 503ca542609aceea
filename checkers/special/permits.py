"""Semaphores that refuse nothing: decided by counting, without a search.

Releases bind nothing, so each takes effect at its call, and each acquire as late as it can, at its
return. The history is linearizable iff then no acquire returns before a permit is free for it.
What was refused needs a moment at which none is free: without it a history is easier, so what is
wrong without it is wrong; what is right is searched, where only the free permits are the state.

Source: earliest deadline first (Jackson 1955).
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.models.semaphore import Permits
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Problem
from shaketable.checkers.special.decision import Accusation, Decision

METHOD = "permits"
ACQUIRE, RELEASE = 0, 1
"""Codes of the kinds: the places of the names in sorted order."""
OPERATION_BYTES = 150
"""What the passes hold at a time for each operation, at the most (measured)."""
NAMED_MAX = 200


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a semaphore's history; None if something was refused, or the permits are limited.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.start, Permits), "a semaphore's state are its permits"
    if problem.start.most is not None:
        return None
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    code = problem.kinds.code[problem.kind]
    refused = problem.kinds.observes[problem.kind]
    if (refused & (code == RELEASE)).any():
        row = int(np.flatnonzero(refused & (code == RELEASE))[0])
        why = "{0} was refused, and there is no limit to the permits"
        return Decision(METHOD, Accusation((int(problem.op[row]),), why))
    limits.check_time()
    releases = np.flatnonzero(code == RELEASE)
    releases = releases[np.argsort(problem.call_ns[releases], kind="stable")]
    acquires = np.flatnonzero((code == ACQUIRE) & ~refused & (problem.return_ns != NEVER))
    acquires = acquires[np.argsort(problem.return_ns[acquires], kind="stable")]
    limits.check_time()
    ends = problem.return_ns[acquires]
    free = problem.start.free
    there = free + np.searchsorted(problem.call_ns[releases], ends, side="right")
    early = np.flatnonzero(np.arange(1, len(acquires) + 1) > there)
    if len(early):
        at = int(early[0])
        called = int(there[at]) - free
        rows = [int(acquires[at]), *acquires[:at].tolist(), *releases[:called].tolist()]
        why = (
            f"when {{0}} returned, {at + 1} permits had been acquired: more than the {free} that"
            f" were free at first and the {called} that had been released"
        )
        ops = tuple(int(problem.op[row]) for row in rows[:NAMED_MAX])
        return Decision(METHOD, Accusation(ops, why, closed=len(rows) <= NAMED_MAX))
    return None if refused.any() else Decision(METHOD)
