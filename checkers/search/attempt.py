"""Drives the kernels from one start: slices, growing arrays, missing steps, budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.search import run
from shaketable.checkers.kernels.search_arrays import (
    BEST,
    DEEPEST,
    EVENT,
    LAST,
    LOOKED,
    NEEDS_STEPS,
    PROGRESS,
    REFUTED,
    SLICE_OVER,
    STALLED,
    THROUGH,
    TOP,
)
from shaketable.checkers.kernels.search_memo import put_off
from shaketable.checkers.kernels.search_trace import name_operations, trace
from shaketable.checkers.search.arena import enlarge, new_arena
from shaketable.checkers.search.arrange import arrange
from shaketable.checkers.search.budget import Memory, TimeSpentError
from shaketable.checkers.search.problem import Ints, Problem
from shaketable.checkers.search.steps import StepTable

SLICE_NODES = 20_000
"""Between two looks at the clock: some hundredths of a second."""
CHAIN_MAX = 4096
ASIDE_BYTES = 40
"""What a move on the stack takes while the moves are put in another order."""


@dataclass(frozen=True, slots=True)
class Run:
    """Operations, one by one, as a search claims that they can happen.

    Attributes:
        first: the number of the state before them.
        place: their places in the problem.
        state: the number of the state after each.
    """

    first: int
    place: Ints
    state: npt.NDArray[np.int32]


class Setting:
    """One problem, arranged, and its budgets: what all attempts share.

    Raises:
        MemorySpentError: the arranged problem does not fit the budget.
    """

    def __init__(self, problem: Problem, is_over: Callable[[], bool], bytes_max: int) -> None:
        self.problem = problem
        self.is_over = is_over
        self.memory = Memory(bytes_max)
        self.arranged = arrange(problem, self.memory)
        self.table = StepTable(problem, self.memory)
        self.nodes = 0


class Attempt:
    """A search from one state over the whole history, or over windows of it."""

    def __init__(self, setting: Setting, first: int | None = None) -> None:
        self.setting = setting
        self.arena = new_arena(setting.arranged.history, setting.memory, first)

    @property
    def deepest(self) -> int:
        """The furthest event that was reached."""
        return int(self.arena.at[DEEPEST])

    def run(self, stall: int) -> int:
        """Search on until THROUGH, REFUTED or STALLED; return which.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: more memory is needed than there is.
        """
        s = self.setting
        h, c = s.arranged.history, s.arranged.cursor
        while True:
            looked = int(self.arena.at[LOOKED])
            status = run(h, c, self.arena, s.table.arrays, SLICE_NODES, stall, CHAIN_MAX)
            s.nodes += int(self.arena.at[LOOKED]) - looked
            if self.is_answer(status):
                return status

    def turn(self, back: int) -> None:
        """Try moves up to `back` events before the deepest one after all others.

        With 0 those at the deepest place come first again. It is not taken to be stuck any more.

        Raises:
            MemorySpentError: there is no room to put moves aside.
        """
        a, memory = self.arena, self.setting.memory
        top = int(a.at[TOP])
        aside = ASIDE_BYTES * top
        memory.take(aside)
        if back:
            put_off(a, self.deepest - back)
        else:
            event = a.node[np.maximum(a.stack[:top, 0], 0), EVENT]
            a.stack[:top] = a.stack[:top][np.argsort(event, kind="stable")]
        memory.take(-aside)
        a.at[PROGRESS] = a.at[LOOKED]

    def is_answer(self, status: int) -> bool:
        """See to what a kernel needs; True if it needs nothing, but has an answer.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: more memory is needed than there is.
        """
        s = self.setting
        if status in (THROUGH, REFUTED, STALLED):
            return True
        if status == NEEDS_STEPS:
            s.table.fill()
        elif status != SLICE_OVER:
            self.arena = enlarge(self.arena, status, s.memory)
        if s.is_over():
            raise TimeSpentError
        return False

    def run_found(self) -> Run:
        """After THROUGH: the witness."""
        return self._run_to(int(self.arena.at[LAST]))

    def run_best(self) -> Run | None:
        """The longest run that was found, None if not even a first state was looked at."""
        best = int(self.arena.at[BEST])
        return self._run_to(best) if best >= 0 else None

    def _run_to(self, last: int) -> Run:
        arranged, table = self.setting.arranged, self.setting.table
        h = arranged.history
        size = arranged.operation.size + arranged.unknown.size
        order = np.empty((2, size), np.int32)
        first, count = trace(h, arranged.cursor, self.arena, table.arrays, last, order)
        order = order[:, :count]
        place = np.empty(count, np.int64)
        while not name_operations(
            h, table.arrays, first, order, arranged.operation, arranged.unknown, place
        ):
            table.fill()
        return Run(first, place, order[1])
