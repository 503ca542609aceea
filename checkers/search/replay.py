"""Verifies a run on the model itself, and by the times of its operations.

The kernels of the search need not be trusted for VALID: every witness is replayed here. A run of
vectors is replayed on an array of the entries, which is as fast as the search; where it is short,
on the model too, whose states have to be those vectors.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_trace import distinct_steps
from shaketable.checkers.search.attempt import Run, StepTable
from shaketable.checkers.search.problem import NEVER, Problem, State, Witness
from shaketable.checkers.search.vectors import VectorTable, follow_on_array


class WitnessError(AssertionError):
    """A run that a search found is no linearization of the history: a bug in the search."""


MODEL_ENTRIES_MAX = 20_000
"""A run of vectors is replayed on the model too if its operations times the entries are no more."""


def replay(problem: Problem, run: Run, table: StepTable | VectorTable) -> Witness:
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
    return follow(problem, run, problem.start, table)


def follow(problem: Problem, run: Run, start: State, table: StepTable | VectorTable) -> Witness:
    """Step through a run; return it with the states as the model has them.

    Args:
        problem: what the run is of.
        run: what a search found.
        start: the state before the first operation.
        table: what numbers the states.

    Raises:
        WitnessError: an operation is not possible at its place, or leads to another state.
    """
    op = problem.op[run.place]
    if isinstance(table, StepTable):
        return Witness(op, run.state, _states_of_model(problem, run, start))
    _follow_vectors(problem, run, table)
    if run.place.size * table.vectors.entries <= MODEL_ENTRIES_MAX:
        for number, state in enumerate(_states_of_model(problem, run, start)):
            if state is not None and table[number] != state:
                raise WitnessError(f"{state!r} is said to be {table[number]!r}")
    return Witness(op, run.state, table)


def _states_of_model(problem: Problem, run: Run, start: State) -> tuple[State, ...]:
    """Return the states of a run by number, None for numbers that it has not.

    `Problem.step` is a function of state and kind, so each distinct step is checked once. By
    induction over the run each number then denotes one state throughout.
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
    return tuple(states.get(number) for number in range(max(states) + 1))


def _follow_vectors(problem: Problem, run: Run, table: VectorTable) -> None:
    """Follow a run on an array of entries; its end has to be the vector that the run names."""
    at, held = follow_on_array(table.vectors, problem.kind[run.place], table.entries(run.first))
    if at >= 0:
        raise WitnessError(f"operation {problem.op[run.place[at]]} cannot happen at its place")
    last = int(run.state[-1]) if run.state.size else run.first
    if table.entries(last) != held:
        raise WitnessError("a run of vectors ends in another vector than it names")
