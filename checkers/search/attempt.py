"""Drives the kernels from one start: slices, growing arrays, missing steps, budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from checkers.kernels.search import run
from checkers.kernels.search_arrays import (
    BEST,
    DEEPEST,
    FIRST_UNKNOWN,
    LAST,
    LOOKED,
    NEEDS_STEPS,
    REFUTED,
    SLICE_OVER,
    STALLED,
    THROUGH,
    UNKNOWN_KINDS,
)
from checkers.kernels.search_trace import trace
from checkers.search.arena import begin, enlarge, new_arena
from checkers.search.arrange import arrange
from checkers.search.budget import Memory
from checkers.search.problem import Ints, Problem
from checkers.search.steps import StepTable

SLICE_NODES = 20_000
"""Between two looks at the clock: some hundredths of a second."""
SLICE_FILLS = 200
"""Likewise, where the kernel comes back for steps again and again and ends no slice."""
CHAIN_MAX = 4096
NO_STALL = 2**62


class TimeSpentError(Exception):
    """The time for the search is over."""


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
    """A search from given first states, over all events or a window of them."""

    def __init__(self, setting: Setting, roots: Sequence[int]) -> None:
        self._setting = setting
        self._arena = new_arena(setting.arranged.history, setting.memory, roots)

    def restart(self, roots: Sequence[int], start: int, stop: int, *, is_window: bool) -> None:
        """Begin anew, over the events from `start` to before `stop`."""
        memory = self._setting.memory
        self._arena = begin(self._arena, memory, roots, start, stop, is_window=is_window)

    def close(self) -> None:
        """Give the memory back."""
        self._setting.memory.give_back(self._arena)

    @property
    def deepest(self) -> int:
        """The furthest event that was reached."""
        return int(self._arena.at[DEEPEST])

    @property
    def nodes(self) -> int:
        """How many nodes were looked at."""
        return int(self._arena.at[LOOKED])

    def run(self, stall: int = NO_STALL) -> int:
        """Search until THROUGH, REFUTED or STALLED; return which.

        Raises:
            TimeSpentError: the time is over.
            MemorySpentError: more memory is needed than there is.
        """
        s = self._setting
        h, c = s.arranged.history, s.arranged.cursor
        looked = self.nodes
        fills = 0
        while True:
            status = run(h, c, self._arena, s.table.arrays, SLICE_NODES, stall, CHAIN_MAX)
            s.nodes += self.nodes - looked
            looked = self.nodes
            if status in (THROUGH, REFUTED, STALLED):
                return status
            if status == NEEDS_STEPS:
                s.table.fill()
                fills += 1
            elif status != SLICE_OVER:
                self._arena = enlarge(self._arena, status, s.memory)
            is_time = status == SLICE_OVER or (status == NEEDS_STEPS and fills % SLICE_FILLS == 0)
            if is_time and s.is_over():
                raise TimeSpentError

    def order_found(self) -> Ints:
        """After THROUGH: the operations' places in the problem, in the order of the witness."""
        return self._order_to(int(self._arena.at[LAST]))

    def order_best(self) -> tuple[int, Ints]:
        """Return the state that the deepest path starts from, and the operations along it."""
        best = int(self._arena.at[BEST])
        if best < 0:
            return -1, np.empty(0, np.int64)
        return self._first_state(best), self._order_to(best)

    def _first_state(self, node: int) -> int:
        arena = self._arena
        while arena.node[node, 3] >= 0:
            node = arena.node[node, 3]
        return int(arena.node[node, 4])

    def _order_to(self, last: int) -> Ints:
        arranged = self._setting.arranged
        h = arranged.history
        order = np.empty(arranged.operation.size + arranged.unknown.size, np.int32)
        length = trace(h, arranged.cursor, self._arena, self._setting.table.arrays, last, order)
        order = order[:length]
        is_unknown = order <= FIRST_UNKNOWN
        places = np.empty(length, np.int64)
        places[~is_unknown] = arranged.operation[order[~is_unknown]]
        if h.facts[UNKNOWN_KINDS]:
            places[is_unknown] = self._name_unknown(FIRST_UNKNOWN - order[is_unknown])
        return places

    def _name_unknown(self, kind_places: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Ints:
        """Name the operations of unknown outcome that were used: of each kind by their calls."""
        arranged = self._setting.arranged
        used = np.argsort(kind_places, kind="stable")
        count = np.bincount(kind_places, minlength=arranged.unknown_begin.size - 1)
        begin_of = np.concatenate(([0], np.cumsum(count)[:-1]))
        nth = np.empty(kind_places.size, np.int64)
        nth[used] = np.arange(kind_places.size) - np.repeat(begin_of, count)
        # Unlimited uses inside a window name the last operation of the kind again.
        last = arranged.unknown_begin[1:] - 1
        named: Ints = arranged.unknown[
            np.minimum(arranged.unknown_begin[kind_places] + nth, last[kind_places])
        ]
        return named
