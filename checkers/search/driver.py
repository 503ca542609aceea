"""The general linearizability search: is there an order that explains a history?

Source: Lowe 2017, Testing for linearizability (just-in-time linearization); Wing & Gong 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shaketable.checkers.kernels.search_arrays import FIRST_LACKING, LINEARIZED, REFUTED
from shaketable.checkers.kernels.search_windows import (
    CHAIN_MAX,
    FROM,
    NODES_VISITED,
    REFUTATION_FACTS,
    TO,
    VISITS_MAX,
    continue_refutation,
    start_refutation,
)
from shaketable.checkers.search import attempt as attempts
from shaketable.checkers.search.attempt import Attempt, Setting
from shaketable.checkers.search.budget import MemorySpentError, TimeSpentError
from shaketable.checkers.search.found import Found, Part, Witness
from shaketable.checkers.search.parts import open_part, search_part, window_part
from shaketable.checkers.search.problem import Family, Problem
from shaketable.checkers.search.replay import replay
from shaketable.harness.contracts.verdict import Outcome

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
    if problem.kind.size > ORDERED_ANYWAY_MAX and is_over():
        return Found(Outcome.UNKNOWN, 0, 0, why="time")
    try:
        setting = Setting(problem, is_over, memory_bytes_max)
        attempt = Attempt(setting, problem.initial if problem.family is Family.VALUE else 0)
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
            return replay(setting.problem, attempt.run_found())
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
        self._quest = np.zeros(REFUTATION_FACTS, np.int64)

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
        s = self._setting
        h, c, refutation = s.arranged.history, s.arranged.cursor, self._quest
        if self._attempt is None:
            self._attempt = Attempt(s)
        start_refutation(h, c, deepest, EVENTS_FIRST, stall, refutation)
        if stop is not None:
            refutation[FROM], refutation[TO] = deepest, stop
        refutation[VISITS_MAX], refutation[CHAIN_MAX] = attempts.SLICE_NODES, attempts.CHAIN_MAX
        while True:
            visited = int(refutation[NODES_VISITED])
            status = continue_refutation(h, c, self._attempt.arena, s.table.arrays, refutation)
            s.nodes += int(refutation[NODES_VISITED]) - visited
            if self._attempt.is_answer(status):
                return self._attempt if status == REFUTED else None


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
