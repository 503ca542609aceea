"""Verifies a run on the model itself, and by the times of its operations.

The kernels of the search need not be trusted for VALID: every witness is replayed here.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_trace import distinct_steps
from shaketable.checkers.search.attempt import Run
from shaketable.checkers.search.problem import NEVER, Problem, State, Witness


class WitnessError(AssertionError):
    """A run that a search found is no linearization of the history: a bug in the search."""


def replay(problem: Problem, run: Run) -> Witness:
    """Verify that a run linearizes the whole history; return it as a witness.

    Raises:
        WitnessError: it does not.
    """
    named = np.bincount(run.place, minlength=problem.kind.size)
    if named.size and named.max() > 1:
        raise WitnessError("an operation takes effect twice")
    if not named[problem.return_ns != NEVER].all():
        raise WitnessError("an operation that returned never takes effect")
    # Real time: no operation may follow one that was called after its own return.
    if (np.maximum.accumulate(problem.call_ns[run.place]) > problem.return_ns[run.place]).any():
        raise WitnessError("an operation takes effect before the call of another that it follows")
    return follow(problem, run, problem.start)


def follow(problem: Problem, run: Run, start: State) -> Witness:
    """Step through a run; return it with the states as the model has them.

    `Problem.step` is a function of state and kind, so each distinct step is checked once. By
    induction over the run each number then denotes one state throughout.

    Raises:
        WitnessError: an operation is not possible at its place, or leads to another state.
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
