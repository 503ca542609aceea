"""The general linearizability search: is there an order that explains a history?

Source: Lowe 2017, Testing for linearizability (just-in-time linearization); Wing & Gong 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    CALL,
    CALLED,
    FIRST_LACKING,
    FIRST_PRODUCED,
    INDETERMINATE,
    LAST_NEED,
    LAST_REFUSAL,
    LINEARIZED,
    OPTIONAL,
    REFUTED,
    RETURN,
    RETURNED,
    START,
    STOP,
    WHAT,
    WHO,
)
from shaketable.checkers.kernels.search_history import CAS, WRITE
from shaketable.checkers.kernels.search_windows import FROM, TO, start_refutation
from shaketable.checkers.search.attempt import Attempt, Setting
from shaketable.checkers.search.budget import MemorySpentError, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Family, Found, Part, Problem, State, Witness
from shaketable.checkers.search.replay import follow, replay
from shaketable.harness.compiled import interpreted
from shaketable.harness.contracts.verdict import Outcome

# The part of a history that cannot be linearized, or was not decided.

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
        prefix = follow(problem, run, prefix_start, setting.table)
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
        return tuple(setting.table[number] for number in numbers)
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


ORDERED_ANYWAY_MAX = 200_000
"""Up to so many operations are sorted even when the time is over, so that the undecided part can be
named."""


def search(problem: Problem, *, is_over: Callable[[], bool], memory_bytes_max: int) -> Found:
    """Decide whether the problem's history is linearizable.

    Deterministic: the same problem gets the same answer, unless a budget ends the search.

    Args:
        problem: the history of one object.
        is_over: called several times a second; True ends the search as UNKNOWN ("time").
        memory_bytes_max: the search ends as UNKNOWN ("memory") before it holds more.

    Raises:
        ModelError: the model raised, or breaks its promises.
        WitnessError: the order that was found is no linearization: a bug in the search.
    """
    with interpreted(problem.kind.size):
        return _search(problem, is_over, memory_bytes_max)


def _search(problem: Problem, is_over: Callable[[], bool], memory_bytes_max: int) -> Found:
    if problem.kind.size > ORDERED_ANYWAY_MAX and is_over():
        return Found(Outcome.UNKNOWN, 0, 0, why="time")
    try:
        setting = Setting(problem, is_over, memory_bytes_max)
        is_value = problem.family is Family.VALUE
        attempt = Attempt(setting, problem.initial if is_value else setting.table.first)
    except MemorySpentError:
        return Found(Outcome.UNKNOWN, 0, memory_bytes_max, why="memory")
    try:
        proof = _decide(setting, attempt)
    except (MemorySpentError, TimeSpentError) as spent:
        why = "memory" if isinstance(spent, MemorySpentError) else "time"
        part = open_part(attempt)
        bytes_max = setting.memory.bytes_max
        return Found(Outcome.UNKNOWN, setting.nodes, bytes_max, part=part, why=why)
    if isinstance(proof, Witness):
        return Found(Outcome.VALID, setting.nodes, setting.memory.bytes_max, witness=proof)
    setting.table.require_same()
    return Found(Outcome.INVALID, setting.nodes, setting.memory.bytes_max, part=proof)


def _decide(setting: Setting, attempt: Attempt) -> Witness | Part:
    """Search, and try to refute by a window where the search stalls; return the proof."""
    windows = Windows(setting)
    refuting = windows.never_produced()
    if refuting is not None:
        return window_part(refuting)
    pace = Pace()
    while True:
        status = attempt.run(pace.stall)
        if status == LINEARIZED:
            return replay(setting.problem, attempt.run_found(), setting.table)
        try:
            # Even if the search is exhausted, a window gives a shorter counterexample.
            if pace.stuck(attempt.deepest) or status == REFUTED:
                refuting = windows.around(attempt.deepest, pace.stall)
                if refuting is not None:
                    return window_part(refuting)
        except (MemorySpentError, TimeSpentError):
            if status != REFUTED:
                raise
        if status == REFUTED:
            return search_part(attempt)
        attempt.defer_moves(pace.back)


# Proves a history invalid by a short part of it: see checkers.kernels.search_windows.

EVENTS_FIRST = 32
"""So many events before the place where a search is stuck the first window starts."""


class Windows:
    """Tries windows of one problem; only for Family.VALUE, whose possible states are known."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._attempt: Attempt | None = None

    def never_produced(self) -> Attempt | None:
        """Refute by the first operation that needs a value which nothing had produced, if any."""
        if self._setting.problem.family is not Family.VALUE:
            return None
        at = int(self._setting.arranged.history.facts[FIRST_LACKING])
        return self._refute(at, 2**62, at + 1) if at >= 0 else None

    def around(self, deepest: int, stall: int) -> Attempt | None:
        """Refute by a window that ends about event `deepest`.

        Args:
            deepest: how far a search got.
            stall: the attempt ends after so many nodes without progress.

        Returns:
            the attempt that refuted the shortest window; None if no window was found.
        """
        if self._setting.problem.family is not Family.VALUE:
            return None
        return self._refute(deepest, stall)

    def _refute(self, deepest: int, stall: int, stop: int | None = None) -> Attempt | None:
        arranged = self._setting.arranged
        if self._attempt is None:
            self._attempt = Attempt(self._setting)
        goal = self._attempt.goal
        start_refutation(arranged.history, arranged.cursor, deepest, EVENTS_FIRST, stall, goal)
        if stop is not None:
            goal[FROM], goal[TO] = deepest, stop
        return self._attempt if self._attempt.run_to_goal() == REFUTED else None


# How long a search stays where it is stuck, and how far it then goes back.

STALL_NODES = 1000
"""A search is stuck after so many nodes without progress, at first."""
BACK_EVENTS = 32
BACK_EVENTS_MAX = 1024


@dataclass(slots=True)
class Pace:
    """How a stuck search goes back ever further, then returns and stays longer.

    A wrong choice may be far before the place where it shows, and depth first everything between
    would be tried first. So moves near that place are deferred for some time while others are
    tried. No move is dropped: the search stays complete.

    Attributes:
        stall: the search is stuck after so many nodes without progress.
        back: moves at most so many events before the deepest one are deferred; 0 if none are.
    """

    stall: int = field(default_factory=lambda: STALL_NODES)
    back: int = 0
    _deepest: int = field(default=-1)

    def stuck(self, deepest: int) -> bool:
        """Choose `stall` and `back` for a search that is stuck, and reached event `deepest`.

        Returns:
            True if it is stuck at a new place, or may stay longer from now on: then windows are
            worth trying there.
        """
        if deepest > self._deepest:
            self._deepest, self.stall, self.back = deepest, STALL_NODES, BACK_EVENTS
            return True
        if self.back < BACK_EVENTS_MAX:
            self.back = max(BACK_EVENTS, 2 * self.back)
            return False
        self.stall, self.back = 2 * self.stall, 0
        return True
