"""What a sequential model is, and how anybody adds one.

A model says what one object may answer when calls come one by one. It is one file with the
attribute PLUGIN; built-ins stand in checkers/models, others are found by the entry-point group
shaketable.models.

Source: knossos.model (step and inconsistent); porcupine's Model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from shaketable.checkers.search.problem import Problem, State


class _Unknown:
    """The output of an operation whose outcome is unknown: any answer would do."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = _Unknown()
"""Stands for the output of a call that nobody saw return."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation as a model sees it: what was asked and what was answered.

    `f` is the operation's name. `input` and `output` are what the columns hold, or `extra` in
    their place: whole numbers, texts, None, or tuples of these. `output` is UNKNOWN where the
    outcome is. `expected` is what a cas compares with, `offset` what the column holds.
    """

    f: str
    input: Any = None
    output: Any = None
    expected: Any = None
    offset: int | None = None


class Model(Protocol):
    """A sequential model of one object.

    Attributes:
        name: how `--model` calls it: "cas-register".
        fs: the operations that it knows.
        observers: those of `fs` that never change the state.
        overwriters: those of `fs` that are possible in every state, and lead to one state that
            depends on their input alone (a blind write).
    """

    name: str
    fs: frozenset[str]
    observers: frozenset[str]
    overwriters: frozenset[str]

    def initial(self, text: str | None) -> State:
        """Return the first state; `text` is what `--initial` gave, None for the default.

        Raises:
            UsageError: the text names no state of this model.
        """
        ...

    def step(self, state: State, call: Call) -> State | None:
        """Return the state after `call`, None where it cannot happen in `state`."""
        ...

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Turn one partition of OPERATIONS into a problem.

        Raises:
            UsageError: an operation is none of `fs`, or lacks what it needs: one line says which.
        """
        ...

    def describe_state(self, state: State) -> str:
        """Say what the object holds, in a few words: "3", "the queue 1, 2 (2 messages)"."""
        ...

    def describe_call(self, call: Call) -> str:
        """Say what was called and answered, in a few words: "cas 1 -> 2: no"."""
        ...

    def why_not(self, state: State, call: Call) -> str:
        """Say why `call` cannot happen in `state`: "it read 3, the register holds 1"."""
        ...
