"""The answer of the search: a verdict with its proof, or the undecided part and the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shaketable.checkers.search.problem import Ints, State
from shaketable.harness.contracts.verdict import Outcome


@dataclass(frozen=True, slots=True)
class Witness:
    """A linearization: operations in an order in which they could have happened one by one.

    Attributes:
        op: their ids in that order, shape (n,).
        state: the number of the state after each, shape (n,).
        states: the states by number, as the model has them.
    """

    op: Ints
    state: npt.NDArray[np.int32]
    states: tuple[State, ...]

    def __len__(self) -> int:
        """Return how many operations it holds."""
        return self.op.size

    def steps(self, last: int | None = None) -> Iterator[tuple[int, State]]:
        """Yield (op id, state after it) of the last `last` operations, of all by default."""
        start = 0 if last is None else max(0, len(self) - last)
        for op, state in zip(self.op[start:].tolist(), self.state[start:].tolist(), strict=True):
            yield op, self.states[state]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the history that cannot be linearized, or was not decided.

    Attributes:
        method: "search" (every order was tried from the history's start) or "window" (every
            state that matters was tried at the part's start); for an undecided part, how it was
            reached.
        first_ns: the time at which the part starts.
        last_ns: when `stuck` returned.
        operations: ids of the operations of known outcome that were open at some time of the
            part, in the order of their calls.
        unknown: ids of the indeterminate operations that were called before its end.
        prefix: the longest linearizable prefix inside the part that was found. It starts from
            `prefix_start`, and does not name operations that took effect before the part.
        prefix_start: the state from which `prefix` starts.
        stuck: id of the operation whose return could not be passed. A search of the whole
            history may detect early that a later return cannot be passed: then it is the one
            where it gave up (checkers.linearizability.longest_prefix finds the later one).
        before: how many operations had returned before the part starts.
        states: the states that the object could have had at the part's start.
    """

    method: str
    first_ns: int
    last_ns: int
    operations: Ints
    unknown: Ints
    prefix: Witness
    prefix_start: State
    stuck: int
    before: int
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The answer to one problem.

    Attributes:
        outcome: VALID, INVALID, or UNKNOWN where a budget was used up first.
        nodes: configurations that were visited.
        bytes_max: the most memory that the search held at a time.
        witness: for VALID, already replayed through Problem.step; None otherwise.
        part: for INVALID the part that cannot be linearized, for UNKNOWN the undecided one.
        why: for UNKNOWN which budget was used up, "time" or "memory"; "" otherwise.
    """

    outcome: Outcome
    nodes: int
    bytes_max: int
    witness: Witness | None = None
    part: Part | None = None
    why: str = ""
