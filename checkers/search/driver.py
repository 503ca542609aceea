"""The general linearizability search: is there an order that explains a history?

Source: Lowe 2017, Testing for linearizability (just-in-time linearization); Wing & Gong 1993.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shaketable.checkers.kernels.search_arrays import FIRST_LACKING, REFUTED, THROUGH
from shaketable.checkers.kernels.search_windows import (
    CHAIN_MAX,
    FROM,
    LOOKED_AT,
    LOOKS_MAX,
    QUEST_FACTS,
    TO,
    begin_quest,
    pursue,
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
"""Operations that are put in order though the time is over, so that the open part can be named."""


def search(problem: Problem, *, is_over: Callable[[], bool], memory_bytes_max: int) -> Found:
    """Decide whether the problem's history is linearizable.

    The same problem gets the same answer, unless a budget ends the search.

    Args:
        problem: the history of one object.
        is_over: asked some times a second; True ends the search as UNKNOWN ("time").
        memory_bytes_max: the search ends as UNKNOWN ("memory") before it holds more.

    Raises:
        ModelError: the model raised, or does not keep its promises.
        WitnessError: the order that was found explains nothing: a bug in the search.
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
    """Search, and where the search stalls try to refute; return the proof of the answer."""
    windows = Windows(setting)
    refuting = windows.never_produced()
    if refuting is not None:
        return window_part(refuting)
    pace = Pace()
    while True:
        status = attempt.run(pace.stall)
        if status == THROUGH:
            return replay(setting.problem, attempt.run_found())
        try:
            # Where everything was tried a window makes the counterexample shorter.
            if pace.stuck(attempt.deepest) or status == REFUTED:
                refuting = windows.around(attempt.deepest, pace.stall)
                if refuting is not None:
                    return window_part(refuting)
        except (MemorySpentError, TimeSpentError):
            if status != REFUTED:
                raise
        if status == REFUTED:
            return search_part(attempt)
        attempt.turn(pace.back)


# Proves a history invalid by a short part of it: see checkers.kernels.search_windows.

EVENTS_FIRST = 32
"""How far in front of the place where a search stands the first window begins."""


class Windows:
    """Tries windows of one problem, where it is known in which states an object can stand."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._attempt: Attempt | None = None
        self._quest = np.zeros(QUEST_FACTS, np.int64)

    def never_produced(self) -> Attempt | None:
        """Refute by the first need of a value that nothing had left yet, if there is one."""
        if self._setting.problem.family is not Family.VALUE:
            return None
        at = int(self._setting.arranged.history.facts[FIRST_LACKING])
        return self._refute(at, 2**62, at + 1) if at >= 0 else None

    def around(self, deepest: int, stall: int) -> Attempt | None:
        """Refute by a window that ends about event `deepest`.

        Args:
            deepest: how far a search got.
            stall: how many nodes without getting further end the attempt.

        Returns:
            the attempt that refuted the shortest window; None if no window was found.
        """
        if self._setting.problem.family is not Family.VALUE:
            return None
        return self._refute(deepest, stall)

    def _refute(self, deepest: int, stall: int, stop: int | None = None) -> Attempt | None:
        s = self._setting
        h, c, quest = s.arranged.history, s.arranged.cursor, self._quest
        if self._attempt is None:
            self._attempt = Attempt(s)
        begin_quest(h, c, deepest, EVENTS_FIRST, stall, quest)
        if stop is not None:
            quest[FROM], quest[TO] = deepest, stop
        quest[LOOKS_MAX], quest[CHAIN_MAX] = attempts.SLICE_NODES, attempts.CHAIN_MAX
        while True:
            looked = int(quest[LOOKED_AT])
            status = pursue(h, c, self._attempt.arena, s.table.arrays, quest)
            s.nodes += int(quest[LOOKED_AT]) - looked
            if self._attempt.is_answer(status):
                return self._attempt if status == REFUTED else None


# How long a search stays where it is stuck, and how far it then goes back.

STALL_NODES = 1000
"""After so many nodes without getting further a search goes elsewhere, at first."""
BACK_EVENTS = 32
BACK_EVENTS_MAX = 1024


@dataclass(slots=True)
class Pace:
    """Where it is stuck a search goes back ever further, then begins anew and stays longer.

    What was chosen wrong may lie far in front of the place where that shows; depth first, all that
    lies between would be tried before. So moves near that place are put off while others are
    tried, for some time. Nothing is left out.

    Attributes:
        stall: after so many nodes without getting further the search is taken to be stuck.
        back: moves not more than so many events before the deepest one are put off; 0 if none.
    """

    stall: int = field(default_factory=lambda: STALL_NODES)
    back: int = 0
    _deepest: int = field(default=-1)

    def stuck(self, deepest: int) -> bool:
        """Take note that it is stuck, `deepest` being the furthest event it came to.

        Returns:
            True if it is stuck at a new place, or may stay longer from now on: then it is worth
            while to try windows there.
        """
        if deepest > self._deepest:
            self._deepest, self.stall, self.back = deepest, STALL_NODES, BACK_EVENTS
            return True
        if self.back < BACK_EVENTS_MAX:
            self.back = max(BACK_EVENTS, 2 * self.back)
            return False
        self.stall, self.back = 2 * self.stall, 0
        return True
