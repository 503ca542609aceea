"""Proves a history invalid by a short part of it: see checkers.kernels.search_windows."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import FIRST_LACKING, REFUTED
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
from shaketable.checkers.search.problem import Family

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
