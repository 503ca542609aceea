"""The input of the search, the history of one object and the steps of its model, and its answer.

A model turns one partition of the operations table into a Problem; the search knows nothing of
tables, processes or files.

Source: Herlihy & Wing 1990 for linearizability; CHECKERS.md section 2.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from shaketable.harness.contracts.verdict import Outcome

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = int(np.iinfo(np.int64).max)
"""The return of an indeterminate operation: it may take effect at any time after its call, or
never."""

State = Hashable
"""An object's state as its model has it; equal states must compare and hash equal."""

Step = Callable[[State, int], "State | None"]
"""(state, kind) -> the state after an operation of that kind, None where it cannot happen."""


class ModelError(Exception):
    """A model raised, or breaks its promises, so nothing can be decided by it; one line."""


def error_line(error: Exception) -> str:
    """Return an error's type and message as one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:SHOWN_MAX]}" if lines else type(error).__name__


def short_repr(state: State) -> str:
    """Return the repr of a state as one line, cut to SHOWN_MAX characters."""
    text = " ".join(repr(state).split())
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


SHOWN_MAX = 80
"""Characters of a state, or of an error's line, that are shown."""


class Family(enum.IntEnum):
    """Which compiled code computes the steps."""

    TABLE = 0
    """None: `Problem.step` is called once for each pair of state and kind, and memoised."""
    VALUE = 1
    """One value, numbered 0 .. `Problem.values` - 1: the codes of Access."""
    VECTOR = 2
    """Whole numbers, most of them 0: the codes of Does. `Problem.step` is a VectorStep."""


class Access(enum.IntEnum):
    """What a kind does to the one value of Family.VALUE; `a` and `b` are its numbers."""

    READ = 0
    """Possible where the value is `a`; changes nothing."""
    NOT = 1
    """Possible where the value is not `a` (a cas that reported failure); changes nothing."""
    WRITE = 2
    """Always possible; the value is `b` then."""
    CAS = 3
    """Possible where the value is `a`; it is `b` then."""


class Does(enum.IntEnum):
    """What a part of an operation does to one entry of a vector (Family.VECTOR)."""

    EXPECT = 0
    """Possible where the entry is the value."""
    AT_LEAST = 1
    """Possible where the entry is the value or more."""
    SET = 2
    """The entry is the value then."""
    ADD = 3
    """The value is added to the entry; possible where it stays 0 or more."""
    LOWER = 4
    """The entry is less by the value then, but no less than 0."""
    WHOLE = 5
    """Possible where the vector is the one at that place of `Vectors.seen`."""
    DRAIN = 6
    """Possible where the entry is not less than the entry whose number is the value, which is the
    sum of all others; it is less by that sum then, and all others are 0."""
    NEVER = 7
    """Possible nowhere."""


class Vectors(NamedTuple):
    """What the kinds of a problem do to a vector.

    Attributes:
        change: rows of (Does, entry, value), shape (changes, 3), by kind.
        first: where those of each kind start, and the end.
        seen_start: where the rows of each vector that was seen start, and the end; vector 0 is
            the first state.
        seen: rows of (entry, value) of what is not 0 in them, by ascending entry.
        entries: how many entries there are.
        state_of: the state as the model has it, of the entries that are not 0.
    """

    change: npt.NDArray[np.int32]
    first: Ints
    seen_start: Ints
    seen: npt.NDArray[np.int32]
    entries: int
    state_of: Callable[[dict[int, int]], State]


@runtime_checkable
class VectorStep(Protocol):
    """A step whose states are vectors too, for compiled code."""

    def __call__(self, state: State, kind: int) -> State | None:
        """Return the state after an operation of that kind, None where it cannot happen."""
        ...

    def vectors(self, start: State) -> Vectors:
        """Return what the kinds do to a vector that is `start` at first."""
        ...


@dataclass(frozen=True, slots=True)
class Kinds:
    """The distinct operations of a problem: two of the same kind differ only in their times.

    Arrays with an element for each kind.

    Attributes:
        code: what it does: Access for VALUE, else the place of its name in sorted(model.fs).
        a: first argument of that code.
        b: second argument.
        observes: True if it never changes any state.
        overwrites: True if it is possible in every state and leads to the same state from all.
    """

    code: Ints
    a: Ints
    b: Ints
    observes: Bools
    overwrites: Bools


@dataclass(frozen=True, slots=True)
class Problem:
    """One object's history. Arrays with an element for each operation, in any order.

    Operations that certainly did not happen, and indeterminate ones that could change nothing,
    are left out by the caller.

    Attributes:
        family: which compiled code steps through the states.
        initial: the first state: a value's number for VALUE, unused for others.
        values: how many values there are (VALUE), 0 for others.
        kind: which of `kinds` it is.
        call_ns: when it was called.
        return_ns: when it returned; NEVER if it is indeterminate. Intervals are closed: at equal
            times calls come before returns.
        op: its id in the history.
        kinds: what the kinds do.
        start: the first state as the model has it.
        step: the model itself, by kind: a witness is replayed on it, whatever the family.
    """

    family: Family
    initial: int
    values: int
    kind: npt.NDArray[np.int32]
    call_ns: Ints
    return_ns: Ints
    op: Ints
    kinds: Kinds
    start: State
    step: Step


# The answer of the search: a verdict with its proof, or the undecided part and the reason.


class States(Protocol):
    """States by number, as the model has them."""

    def __getitem__(self, number: int, /) -> State:
        """Return the state of that number."""
        ...


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
    states: States

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
            where it gave up (checkers.linearizability.refutation finds the later one).
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
