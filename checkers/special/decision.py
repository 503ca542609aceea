"""The answer of a special case, and the proof of one that searched for an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shaketable.checkers.kernels import order_search
from shaketable.checkers.kernels.order_search import (
    LINEARIZED,
    NEEDS_LATER,
    NEEDS_NODES,
    NEEDS_SEEN,
    REFUTED,
)
from shaketable.checkers.search.budget import Limits, Memory, MemorySpentError, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Ints, Part, Problem, State, Witness
from shaketable.checkers.search.replay import WitnessError
from shaketable.harness.contracts.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Accusation:
    """Why a history cannot be linearized.

    Attributes:
        ops: ids of the operations that show it, the accused one first.
        why: the reason as text; "{0}", "{1}" are placeholders for the operations of `ops`.
        closed: True if these operations by themselves cannot be linearized, so that the search
            can confirm it.
    """

    ops: tuple[int, ...]
    why: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """VALID, or INVALID with its proof: an accusation, or the part that cannot be linearized.

    `method` names the algorithm. If it is a search of its own that a budget ended, `why` names
    the budget, the outcome is UNKNOWN, and `part` is the undecided part.
    """

    method: str
    accusation: Accusation | None = None
    part: Part | None = None
    why: str = ""

    @property
    def outcome(self) -> Outcome:
        """Return UNKNOWN if a budget ended it, INVALID if there is a proof, else VALID."""
        if self.why:
            return Outcome.UNKNOWN
        is_shown = self.accusation is not None or self.part is not None
        return Outcome.INVALID if is_shown else Outcome.VALID


# Shared by the special cases that search for an order: its verification, and the failing part.
#
# As checkers.search.replay and checkers.search.driver, for orders that a special case's own kernel
# found (checkers.kernels.order_search).

SHOWN_MAX = 200
"""Steps of the longest prefix that a refutation carries."""
OPEN_PART_RETURNS = 32
"""So many returns before the place that a search reached are its undecided part."""

VISITS_MAX = 20_000
"""Orders between two checks of the clock: some hundredths of a second."""
SEEN_FIRST = 1 << 12
LATER_FIRST = 1 << 10
NODES_FIRST = 1 << 12
GROWING = {NEEDS_LATER: "later", NEEDS_NODES: "node"}
"""The arrays that grow, by the status of the kernel."""


class OrderSearch(ABC):
    """A search for an order of a history up to a time; its arrays grow as far as memory is left.

    Operations that return later are optional; operations that are called later are left out.

    Attributes:
        arrays: the kernel's arrays, a NamedTuple (order_search.SearchArrays).
    """

    arrays: Any

    @abstractmethod
    def run(self) -> int:
        """Search for up to VISITS_MAX orders; return the kernel's status."""

    def explains(self, limits: Limits) -> bool:
        """Search for an order of the operations; True if there is one.

        Raises:
            MemorySpentError: it takes more memory than the limits allow.
            TimeSpentError: the time is over.
        """
        memory = Memory(memory_of(limits))
        memory.take_all(self.arrays)
        while True:
            status = self.run()
            if status in (LINEARIZED, REFUTED):
                return bool(status == LINEARIZED)
            if status in GROWING:
                self._enlarge(GROWING[status], memory)
            elif status == NEEDS_SEEN:
                self._enlarge_seen(memory)
            limits.check_time()

    def _enlarge(self, name: str, memory: Memory) -> None:
        old = getattr(self.arrays, name)
        array = np.empty((memory.larger(len(old), old.nbytes // len(old)), old.shape[1]), old.dtype)
        memory.take_all([array])
        array[: len(old)] = old
        memory.give_back([old])
        self.arrays = self.arrays._replace(**{name: array})

    def _enlarge_seen(self, memory: Memory) -> None:
        old = self.arrays.seen
        memory.take(2 * old.nbytes)
        seen = np.zeros((2 * len(old), old.shape[1]), old.dtype)
        order_search.keep_seen(old, seen)
        memory.give_back([old])
        self.arrays = self.arrays._replace(seen=seen)

    @property
    def reached(self) -> int:
        """Return a time: some order that was visited has places for all that returned before it."""
        return int(self.arrays.at[order_search.REACHED])


def memory_of(limits: Limits) -> int:
    """Return how many bytes may be held."""
    return NEVER if limits.memory_bytes_max is None else limits.memory_bytes_max


def search_arrays(moves_max: int, facts: int, before_all: int, deferred_max: int) -> dict[str, Any]:
    """Return the arrays of a search that has not begun, by name (order_search.SearchArrays).

    Args:
        moves_max: the most moves of an order.
        facts: how many scalars the family has.
        before_all: a time before all operations.
        deferred_max: the most moves that one visit defers.
    """
    at = np.zeros(facts, np.int64)
    at[order_search.REACHED] = before_all
    return {
        "path": np.zeros(moves_max + 1, np.int32),
        "way": np.empty(moves_max + 1, np.int32),
        "node": np.zeros((NODES_FIRST, order_search.NODE_COLUMNS), np.int32),
        "later": np.empty((LATER_FIRST + 2 * deferred_max, order_search.LATER_COLUMNS), np.int32),
        "seen": np.zeros((SEEN_FIRST, 2), np.uint64),
        "hashed": np.zeros(2, np.uint64),
        "at": at,
    }


def require_times(problem: Problem, order: Ints) -> None:
    """Verify that an order, rows of the problem, agrees with the real time of all operations.

    Raises:
        WitnessError: one is missing, is there twice, or follows one called after its return.
    """
    named = np.bincount(order, minlength=problem.kind.size)
    if named.max(initial=0) > 1 or not named[problem.return_ns != NEVER].all():
        raise WitnessError("an operation takes effect twice, or one that returned never")
    if (np.maximum.accumulate(problem.call_ns[order]) > problem.return_ns[order]).any():
        raise WitnessError("an operation takes effect before the call of another that it follows")


def first_impassable(
    problem: Problem, reached: int, order_until: Callable[[int], Ints | None]
) -> tuple[int, Ints]:
    """Find the first return that no order passes, and an order of everything before it.

    If the budget does not suffice, it is a later return that no order passes.

    Args:
        problem: is not linearizable.
        reached: all that returned before that time had a place in some order that was tried.
        order_until: returns an order of what was called by a time, in which operations that
            returned later are optional; None if there is none.
    """
    returns = np.unique(problem.return_ns[problem.return_ns != NEVER])
    # Galloping search, which is right since a prefix of a linearizable history is linearizable.
    low = int(np.searchsorted(returns, reached)) - 1  # can be passed
    high = len(returns) - 1  # cannot be passed
    order: Ints = np.empty(0, np.int64)
    stride = 1
    try:
        if low >= 0:
            order = _found(order_until(int(returns[low])))
        while high - low > 1:
            middle = min(low + stride, (low + high) // 2)
            found = order_until(int(returns[middle]))
            if found is not None:
                low, order, stride = middle, found, 2 * stride
            else:
                high = middle
    except (MemorySpentError, TimeSpentError):
        pass
    return int(returns[high]), order


def _found(order: Ints | None) -> Ints:
    return np.empty(0, np.int64) if order is None else order


def part_until(
    problem: Problem, end: int, order: Ints, method: str, state_after: Callable[[Ints], State]
) -> Part:
    """Return the part of the last steps of a prefix, and of what was open at its end.

    Args:
        problem: the history.
        end: the return that no order passes.
        order: the rows before it, in an order that is possible.
        method: the algorithm's name.
        state_after: (rows in order) -> the state after them.
    """
    steps = order[-SHOWN_MAX:]
    earlier = order[: len(order) - len(steps)]
    start = state = state_after(earlier)
    states = [start]
    for row in steps.tolist():
        reached = problem.step(state, int(problem.kind[row]))
        if reached is None:
            raise WitnessError("the model refuses what was carried out")
        state = reached
        states.append(state)
    is_gone = np.zeros(len(problem.op), np.bool_)
    is_gone[earlier] = True
    seen = problem.return_ns != NEVER
    known = _called(problem, seen & ~is_gone, end)
    first_ns = int(problem.call_ns[known].min())
    return Part(
        method=method,
        first_ns=first_ns,
        last_ns=end,
        operations=problem.op[known],
        unknown=problem.op[_called(problem, ~seen & ~is_gone, end)],
        prefix=Witness(problem.op[steps], np.arange(1, len(states), dtype=np.int32), tuple(states)),
        prefix_start=start,
        stuck=int(problem.op[np.flatnonzero(problem.return_ns == end)[0]]),
        before=int((problem.return_ns < first_ns).sum()),
        states=(start,) if not len(earlier) else (),
    )


def open_part(problem: Problem, reached: int, method: str) -> Part | None:
    """Return the part that a search had reached when its time was over; None if nothing returned.

    It has no order: the object's state there is not known.
    """
    returns = np.unique(problem.return_ns[problem.return_ns != NEVER])
    if not len(returns):
        return None
    at = min(int(np.searchsorted(returns, reached)), len(returns) - 1)
    start, end = int(returns[max(0, at - OPEN_PART_RETURNS)]), int(returns[at])
    seen = problem.return_ns != NEVER
    known = _called(problem, seen & (problem.return_ns >= start), end)
    first_ns = int(problem.call_ns[known].min())
    return Part(
        method=method,
        first_ns=first_ns,
        last_ns=end,
        operations=problem.op[known],
        unknown=problem.op[_called(problem, ~seen, end)],
        prefix=Witness(problem.op[:0], problem.kind[:0], ()),
        prefix_start=problem.start,
        stuck=int(problem.op[np.flatnonzero(problem.return_ns == end)[0]]),
        before=int((problem.return_ns < start).sum()),
        states=(),
    )


def _called(problem: Problem, which: np.ndarray[tuple[int], np.dtype[np.bool_]], end: int) -> Ints:
    """Return the rows of these operations that were called by `end`, in the order of calls."""
    rows = np.flatnonzero(which & (problem.call_ns <= end))
    return rows[np.argsort(problem.call_ns[rows], kind="stable")]
