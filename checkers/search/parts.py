"""Describes the part of a history that cannot be linearized, or was not decided."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    CALL,
    CALLED,
    FIRST_PRODUCED,
    INDETERMINATE,
    LAST_NEED,
    LAST_REFUSAL,
    OPTIONAL,
    RETURN,
    RETURNED,
    START,
    STOP,
    WHAT,
    WHO,
)
from shaketable.checkers.kernels.search_history import CAS, WRITE
from shaketable.checkers.search.attempt import Attempt, Setting
from shaketable.checkers.search.budget import MemorySpentError
from shaketable.checkers.search.found import Part, Witness
from shaketable.checkers.search.problem import NEVER, Family, Problem, State
from shaketable.checkers.search.replay import follow

OPEN_PART_EVENTS = 64
"""So many events before the place that a search reached are its undecided part."""


def window_part(attempt: Attempt) -> Part:
    """Return the part of a window that cannot be passed."""
    h, start = attempt.setting.arranged.history, int(attempt.arena.at[START])
    possible = h.value[:, FIRST_PRODUCED] < start
    tried = possible & ((h.value[:, LAST_NEED] >= start) | (h.facts[LAST_REFUSAL] >= start))
    others = np.flatnonzero(possible & ~tried)[:1]
    values = np.concatenate((np.flatnonzero(tried), others)).tolist()
    states = _states_of(attempt.setting, values)
    return _part(attempt, "window", start, int(attempt.arena.at[STOP]), states)


def search_part(attempt: Attempt) -> Part:
    """Return the part of an exhausted search: it reaches back to the history's start."""
    start = attempt.setting.problem.start
    return _part(attempt, "search", 0, attempt.deepest + 1, (start,))


def open_part(attempt: Attempt) -> Part | None:
    """Return the part where a search was when its budget was used up.

    It ends with the next known return; None if there is none, or no memory is left.
    """
    h = attempt.setting.arranged.history
    seen = h.event[:, WHAT] == RETURN
    seen[seen] = h.op[h.event[seen, WHO], OPTIONAL] != INDETERMINATE
    returns = np.flatnonzero(seen)
    if not returns.size:
        return None
    place = int(np.searchsorted(returns, max(0, attempt.deepest)))
    at = int(returns[min(place, returns.size - 1)])
    try:
        return _part(attempt, "search", max(0, at - OPEN_PART_EVENTS), at + 1, ())
    except MemorySpentError:
        return None


def _part(attempt: Attempt, method: str, start: int, stop: int, states: tuple[State, ...]) -> Part:
    setting = attempt.setting
    problem, arranged = setting.problem, setting.arranged
    h = arranged.history
    inside = np.flatnonzero(
        (h.op[:, CALLED] < stop)
        & (h.op[:, RETURNED] >= start)
        & (h.op[:, OPTIONAL] != INDETERMINATE)
    )
    inside = inside[np.argsort(h.op[inside, CALLED])]
    last_ns = _time_ns(setting, stop - 1)
    unknown = np.flatnonzero((problem.return_ns == NEVER) & (problem.call_ns <= last_ns))
    prefix_start, prefix = problem.start, Witness(problem.op[:0], problem.kind[:0], ())
    run = attempt.run_best()
    if run is not None:
        (prefix_start,) = _states_of(setting, [run.first])
        prefix = follow(problem, run, prefix_start)
    return Part(
        method=method,
        first_ns=_time_ns(setting, start),
        last_ns=last_ns,
        operations=problem.op[arranged.operation[inside]],
        unknown=problem.op[unknown],
        prefix=prefix,
        prefix_start=prefix_start,
        stuck=int(problem.op[arranged.operation[h.event[stop - 1, WHO]]]),
        before=int((h.event[:start, WHAT] == RETURN).sum()),
        states=states,
    )


def _time_ns(setting: Setting, event: int) -> int:
    h = setting.arranged.history
    place = h.event[event, WHO]
    if h.event[event, WHAT] == RETURN:
        return int(setting.problem.return_ns[setting.arranged.operation[place]])
    if h.event[event, WHAT] == CALL:
        return int(setting.problem.call_ns[setting.arranged.operation[place]])
    return _time_ns(setting, event - 1) if event else int(setting.problem.call_ns.min())


def _states_of(setting: Setting, numbers: list[int]) -> tuple[State, ...]:
    """Return states as the model has them; a value is produced by a chain of operations."""
    problem = setting.problem
    if problem.family is not Family.VALUE:
        return tuple(setting.table.states[number] for number in numbers)
    by = _producing_kinds(problem)
    return tuple(_produced_state(problem, by, number) for number in numbers)


def _produced_state(problem: Problem, by: dict[int, tuple[int, int | None]], number: int) -> State:
    moves = []
    needed: int | None = number
    while needed is not None and needed != problem.initial:
        kind, needed = by[needed]
        moves.append(kind)
    state = problem.start
    for kind in reversed(moves):
        reached = problem.step(state, kind)
        assert reached is not None, "a model that refuses what it said is possible"
        state = reached
    return state


def _producing_kinds(problem: Problem) -> dict[int, tuple[int, int | None]]:
    """Return for each value a kind that produces it, and which value that kind needs.

    A write, which needs none, or a cas on a shortest path to the value (breadth first).
    """
    code, a, b = (
        array.tolist() for array in (problem.kinds.code, problem.kinds.a, problem.kinds.b)
    )
    by: dict[int, tuple[int, int | None]] = {}
    by |= {b[k]: (k, None) for k in range(len(code)) if code[k] == WRITE}
    swaps: dict[int, list[int]] = {}
    for k in range(len(code)):
        if code[k] == CAS:
            swaps.setdefault(a[k], []).append(k)
    reached = [problem.initial, *by]
    for value in reached:
        for k in swaps.get(value, ()):
            if b[k] not in by and b[k] != problem.initial:
                by[b[k]] = (k, value)
                reached.append(b[k])
    return by
