"""Proves a history invalid by a short part of it.

From a window's begin every state that matters is tried, with everything that may have happened
before taken to be as favourable as it could be: that covers every configuration that the search
could reach there. So where a window cannot be passed, the history cannot, and the window is the
counterexample. Where it can, nothing is proven, and the window is widened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checkers.kernels.search_arrays import LAST_REFUSAL, REFUTED, RETURN, STALLED, UNSEEN
from checkers.search.attempt import NO_STALL, Attempt, Setting
from checkers.search.problem import Access, Bools, Family, Problem

EVENTS_FIRST = 32
EVENTS_BEYOND = 64
"""How far behind the place where the search stands a window may end, besides eight times the
operations that are open at a time: far enough for those that are open there to return."""
STATES_MAX = 4096
"""With more states than that at its begin a window is not tried."""


@dataclass(frozen=True, slots=True)
class Window:
    """Events from `start` to before `stop` that cannot be passed from any of `states`.

    `attempt` is the one that tried.
    """

    start: int
    stop: int
    states: tuple[int, ...]
    attempt: Attempt


class Windows:
    """Tries windows of one problem."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._attempt: Attempt | None = None
        self._is_reachable: Bools | None = None

    @property
    def is_possible(self) -> bool:
        """True if it is known in which states an object can stand anywhere."""
        return self._setting.problem.family is Family.VALUE

    def never_produced(self) -> Window | None:
        """Return the window around the first read of a value that nothing had left yet."""
        h = self._setting.arranged.history
        if not self.is_possible:
            return None
        code = h.code[h.kind]
        needs = ((code == Access.READ) | (code == Access.CAS)) & (h.loose != UNSEEN)
        lacks = needs & (h.producer < 0) & (h.first_made[h.a[h.kind]] >= 0)
        if not lacks.any():
            return None
        stop = int(h.returned[lacks].min()) + 1
        return self.find(stop - 1, stop, 2000)

    def around(self, deepest: int, stall: int) -> Window | None:
        """Return a window that ends about where a search stands and cannot be passed."""
        arranged = self._setting.arranged
        h = arranged.history
        open_there = (h.called <= deepest) & (h.returned >= deepest) & (h.loose != UNSEEN)
        beyond = deepest + EVENTS_BEYOND + 8 * int(open_there.sum())
        stop = min(int(h.returned[open_there].max(initial=deepest)), beyond, h.event.size - 1)
        return self.find(deepest, stop + 1, stall)

    def find(self, at: int, stop: int, stall: int) -> Window | None:
        """Try windows that begin ever further in front of event `at`."""
        what = self._setting.arranged.history.what
        if not self.is_possible:
            return None
        width = EVENTS_FIRST
        while True:
            start = at - width
            while start > 0 and what[start] != RETURN:
                start -= 1
            if start <= 0:
                return None
            status = self._try(start, stop, stall)
            if status == REFUTED:
                return self._shrink(start, stop)
            if status == STALLED:
                return None
            width *= 2

    def _try(self, start: int, stop: int, stall: int) -> int:
        states = self._states(start)
        if len(states) > STATES_MAX:
            return STALLED
        if self._attempt is None:
            self._attempt = Attempt(self._setting, states)
        self._attempt.restart(states, start, stop, is_window=True)
        return self._attempt.run(stall)

    def _states(self, start: int) -> list[int]:
        """List the values that may stand at an event: those that are needed later, one other."""
        h = self._setting.arranged.history
        if self._is_reachable is None:
            self._is_reachable = _reachable(self._setting.problem)
        possible = self._is_reachable & (h.first_made < start)
        if h.facts[LAST_REFUSAL] >= start:
            return [int(v) for v in np.flatnonzero(possible)]
        needed = possible & (h.last_need >= start)
        other = np.flatnonzero(possible & ~needed)[:1]
        return [int(v) for v in np.concatenate((np.flatnonzero(needed), other))]

    def _shrink(self, start: int, stop: int) -> Window:
        """Return the shortest window inside this one that cannot be passed.

        The first event that ends one, then the last that begins one: both by bisection, since a
        window that contains one that cannot be passed cannot be passed either.
        """
        low, high = start + 1, stop
        while low < high:
            middle = (low + high) // 2
            if self._try(start, middle, NO_STALL) == REFUTED:
                high = middle
            else:
                low = middle + 1
        stop = high
        starts = start + np.flatnonzero(self._setting.arranged.history.what[start:stop] == RETURN)
        low, high = 0, starts.size - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._try(int(starts[middle]), stop, NO_STALL) == REFUTED:
                low = middle
            else:
                high = middle - 1
        start = int(starts[low])
        self._try(start, stop, NO_STALL)
        assert self._attempt is not None
        return Window(start, stop, tuple(self._states(start)), self._attempt)


def _reachable(problem: Problem) -> Bools:
    """Say for each value whether the object can hold it at all: a cas needs another one first."""
    kinds = problem.kinds
    reachable = np.zeros(problem.values, np.bool_)
    reachable[problem.initial] = True
    reachable[kinds.b[kinds.code == Access.WRITE]] = True
    swaps = np.flatnonzero(kinds.code == Access.CAS)
    count = 0
    while count != (count := int(reachable.sum())):
        reachable[kinds.b[swaps][reachable[kinds.a[swaps]]]] = True
    return reachable
