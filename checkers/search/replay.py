"""Proves a witness by the model itself, and by the times of its operations.

The search's kernels may be wrong; what is said to be valid was replayed here.
"""

from __future__ import annotations

import numpy as np

from checkers.search.found import Witness
from checkers.search.problem import NEVER, Ints, Problem, State


class WitnessError(AssertionError):
    """The search returned an order that does not explain the history: a bug in the search."""


def replay(problem: Problem, order: Ints, *, is_whole: bool = True) -> Witness:
    """Return the witness that an order of operations is, proven.

    `Problem.step` is a function of state and kind, so each pair is asked for once.

    Args:
        problem: the history.
        order: places in the problem.
        is_whole: True if all operations that returned must be in it.

    Raises:
        WitnessError: it does not hold.
    """
    _check_times(problem, order, is_whole=is_whole)
    state, states = follow(problem, order, problem.start)
    return Witness(problem.op[order], state, states)


def follow(problem: Problem, order: Ints, start: State) -> tuple[Ints, tuple[State, ...]]:
    """Step through an order; return the number of the state after each step, and the states.

    Raises:
        WitnessError: an operation cannot happen where it stands.
    """
    kinds = problem.kind[order].tolist()
    numbers: dict[State, int] = {start: 0}
    states: list[State] = [start]
    known: dict[tuple[int, int], int] = {}
    after = []
    at = 0
    for kind in kinds:
        pair = (at, kind)
        reached = known.get(pair)
        if reached is None:
            state = problem.step(states[at], kind)
            if state is None:
                raise WitnessError(f"an operation of kind {kind} cannot happen in {states[at]!r}")
            reached = numbers.setdefault(state, len(states))
            if reached == len(states):
                states.append(state)
            known[pair] = reached
        at = reached
        after.append(at)
    return np.array(after, np.int64), tuple(states)


def _check_times(problem: Problem, order: Ints, *, is_whole: bool) -> None:
    """Check that each operation stands there once, and after all that returned before its call."""
    named = np.zeros(problem.kind.size, np.int64)
    np.add.at(named, order, 1)
    if named.size and named.max() > 1:
        raise WitnessError("an operation takes effect twice")
    if is_whole and not named[problem.return_ns != NEVER].all():
        raise WitnessError("an operation that returned never takes effect")
    if (np.maximum.accumulate(problem.call_ns[order]) > problem.return_ns[order]).any():
        raise WitnessError("an operation takes effect before the call of another that it follows")
