"""The vectors of one search (Family.VECTOR): numbered, decoded, and followed once more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.search_arrays import (
    FILLED,
    MISSING_COUNT,
    PATH_ROOM,
    STATES,
    STEPS_FACTS,
    History,
    Steps,
)
from shaketable.checkers.kernels.search_moves import add_steps
from shaketable.checkers.kernels.search_vectors import follow_changes, number_vectors
from shaketable.checkers.search.budget import Memory
from shaketable.checkers.search.problem import (
    Does,
    Family,
    Ints,
    Problem,
    State,
    Vectors,
    VectorStep,
)

PAIRS_FIRST = 1024
"""Room for pairs at first; twice as many places in the hash table."""
FIRST_STATE = 0
"""The place of the first state among the vectors that were seen."""
LEFT_BITS = 32


def vectors_of(problem: Problem) -> Vectors | None:
    """Return what the kinds of a problem do to a vector; None if its states are none."""
    if problem.family is not Family.VECTOR:
        return None
    assert isinstance(problem.step, VectorStep), "a problem of vectors has steps on them"
    return problem.step.vectors(problem.start)


def depth_of(vectors: Vectors) -> int:
    """Return how many levels the tree of a vector has."""
    return max(0, vectors.entries - 1).bit_length()


class VectorTable:
    """The vectors that a search met, each once; `arrays` are what the kernels see of it."""

    def __init__(self, problem: Problem, vectors: Vectors, memory: Memory) -> None:
        self.vectors = vectors
        self.first = 0
        self._depth, self._memory = depth_of(vectors), memory
        self._problem = problem
        size = PAIRS_FIRST
        self.arrays = Steps(
            key=np.full(2 * size, -1, np.int64),
            after=np.empty(2 * size, np.int32),
            missing=np.empty((1, 2), np.int32),
            pair=np.empty(size, np.int64),
            path=np.empty(PATH_ROOM, np.int64),
            facts=np.zeros(STEPS_FACTS, np.int64),
        )
        memory.take_all(self.arrays)
        self._add_zeros()

    def _add_zeros(self) -> None:
        """Give the pair of two zeros the number 0, so that every tree of zeros has it."""
        zero, number = np.zeros(1, np.int64), np.zeros(1, np.int32)
        add_steps(self.arrays.key, self.arrays.after, self.arrays.facts, zero, number)
        self.arrays.pair[0] = 0
        self.arrays.facts[STATES] = 1

    def numbers_of_seen(self) -> Ints:
        """Return the numbers of the vectors that were seen; the first is that of the first state.

        Raises:
            MemorySpentError: they do not fit the budget.
        """
        v = self.vectors
        numbers = np.full(v.seen_start.size - 1, -1, np.int64)
        while not number_vectors(self.arrays, self._depth, v.seen_start, v.seen, numbers):
            self.fill()
        self.first = int(numbers[FIRST_STATE])
        return numbers

    def fill(self) -> None:
        """Make room for twice as many pairs.

        Raises:
            MemorySpentError: they do not fit the budget.
        """
        old = self.arrays
        count = int(old.facts[STATES])
        size = 2 * old.pair.size
        key, after = np.full(2 * size, -1, np.int64), np.empty(2 * size, np.int32)
        pair = np.empty(size, np.int64)
        self._memory.take_all([key, after, pair])
        pair[:count] = old.pair[:count]
        old.facts[FILLED] = old.facts[MISSING_COUNT] = 0
        add_steps(key, after, old.facts, pair[:count], np.arange(count, dtype=np.int32))
        self._memory.give_back([old.key, old.after, old.pair])
        self.arrays = old._replace(key=key, after=after, pair=pair)

    def __getitem__(self, number: int, /) -> State:
        """Return the state of that number as the model has it."""
        return self.vectors.state_of(self.entries(number))

    def entries(self, number: int) -> dict[int, int]:
        """Return the entries of a vector that are not 0."""
        found: dict[int, int] = {}
        left = [(number, 0, self._depth)]
        while left:
            node, entry, depth = left.pop()
            if not node:
                continue
            if not depth:
                found[entry] = node
                continue
            pair = int(self.arrays.pair[node])
            left.append((pair >> LEFT_BITS, 2 * entry, depth - 1))
            left.append((pair & (1 << LEFT_BITS) - 1, 2 * entry + 1, depth - 1))
        return found

    def require_same(self) -> None:
        """Ask the model for nothing: its steps are not asked for."""


def write_vectors(history: History, vectors: Vectors, table: VectorTable) -> None:
    """Write the numbers of the vectors that were seen where operations saw them.

    Raises:
        MemorySpentError: they do not fit the budget.
    """
    numbers = table.numbers_of_seen()
    whole = history.change[:, 0] == Does.WHOLE
    history.change[whole, 2] = numbers[vectors.change[whole, 2]]


def follow_on_array(
    vectors: Vectors, kinds: npt.NDArray[np.int32], start: dict[int, int]
) -> tuple[int, dict[int, int]]:
    """Make the changes of operations one after the other on an array of all entries.

    Args:
        vectors: what the kinds do.
        kinds: of the operations, in their order.
        start: the entries that are not 0 at first.

    Returns:
        the place of the first operation that cannot happen, -1 if all can; and the entries that
        are not 0 then.
    """
    held = np.zeros(max(1, vectors.entries), np.int64)
    for entry, value in start.items():
        held[entry] = value
    at = follow_changes(
        vectors.change, vectors.first, vectors.seen_start, vectors.seen,
        kinds.astype(np.int64), held,
    )  # fmt: skip
    filled = np.flatnonzero(held).tolist()
    return at, dict(zip(filled, held[filled].tolist(), strict=True))
