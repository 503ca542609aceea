"""Proves a run by the model itself, and by the times of its operations.

The search's kernels may be wrong; what is said to be valid was replayed here.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_trace import distinct_steps
from shaketable.checkers.search.attempt import Run
from shaketable.checkers.search.found import Witness
from shaketable.checkers.search.problem import NEVER, Problem, State


class WitnessError(AssertionError):
    """The search claims a run that does not explain the history: a bug in the search."""


def replay(problem: Problem, run: Run) -> Witness:
    """Return the run as a witness of the whole history, proven.

    Raises:
        WitnessError: it is none.
    """
    named = np.bincount(run.place, minlength=problem.kind.size)
    if named.size and named.max() > 1:
        raise WitnessError("an operation takes effect twice")
    if not named[problem.return_ns != NEVER].all():
        raise WitnessError("an operation that returned never takes effect")
    if (np.maximum.accumulate(problem.call_ns[run.place]) > problem.return_ns[run.place]).any():
        raise WitnessError("an operation takes effect before the call of another that it follows")
    return follow(problem, run, problem.start)


def follow(problem: Problem, run: Run, start: State) -> Witness:
    """Step through a run; return it with the states in the model's own terms.

    `Problem.step` is a function of state and kind, so it is asked once for each pair that
    occurs; that the numbers stand for these states all along follows from the single steps.

    Raises:
        WitnessError: an operation cannot happen where it stands, or leads elsewhere.
    """
    found = np.empty((run.place.size, 3), np.int64)
    kinds = problem.kinds.code.size
    count = distinct_steps(problem.kind, run.place, run.state, run.first, kinds, found)
    if count < 0:
        raise WitnessError("one step leads to two states")
    states: dict[int, State] = {run.first: start}
    for before, kind, after in found[:count].tolist():
        state = problem.step(states[before], kind)
        if state is None:
            raise WitnessError(f"an operation of kind {kind} cannot happen in {states[before]!r}")
        if states.setdefault(after, state) != state:
            raise WitnessError(f"{states[after]!r} is said to be {state!r}")
    numbered = tuple(states.get(number) for number in range(max(states) + 1))
    return Witness(problem.op[run.place], run.state, numbered)
