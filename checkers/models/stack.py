"""A stack: last in, first out.

Source: Herlihy & Shavit 2008, The Art of Multiprocessor Programming, chapter 11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    describe_put_or_take,
    first_values,
    format_value,
    format_values,
    put_and_take_problem,
    short,
)
from shaketable.checkers.models.model import STACK, UNKNOWN, Call, Values, whole_numbers
from shaketable.checkers.search.problem import Problem, State


class Pile:
    """What a stack holds: a value on top of another pile; shared between states.

    The hash is computed once, and piles that share their lower part are compared down to it only,
    so that a state of a deep stack costs no more than one of a shallow one.
    """

    __slots__ = ("_hash", "below", "size", "top")

    def __init__(self, top: Any = None, below: Pile | None = None) -> None:
        """Put a value on a pile; without arguments, an empty pile."""
        self.top, self.below = top, below
        self.size: int = 0 if below is None else below.size + 1
        self._hash: int = hash((top, None if below is None else hash(below)))

    def __hash__(self) -> int:
        """Return the hash of all values in their order."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Return whether two piles hold the same values in the same order."""
        if not isinstance(other, Pile) or self._hash != hash(other) or self.size != other.size:
            return False
        one: Pile | None = self
        two: Pile | None = other
        while one is not two:
            if one is None or two is None or one.top != two.top:
                return False
            one, two = one.below, two.below
        return True

    def __iter__(self) -> Iterator[Any]:
        """Yield the values, the top first."""
        at: Pile = self
        while at.below is not None:
            yield at.top
            at = at.below

    def __repr__(self) -> str:
        """Return the first few values, the top first."""
        return f"[{short(self)}]"


EMPTY: Final = Pile()


class Stack:
    """A stack: f is push (input), pop or peek (output; null if empty).

    An indeterminate pop may take the value on top at any later time, or have no effect.
    """

    name = "stack"
    fs = frozenset(("push", "pop", "peek"))
    observers = frozenset(("peek",))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first stack: empty by default, or a JSON list, its top last."""
        held = EMPTY
        for value in first_values(self.name, text):
            held = Pile(value, held)
        return held

    def step(self, state: Any, call: Call) -> State | None:
        """Return the stack after `call`."""
        held: Pile = state
        if call.f == "push":
            return Pile(call.input, held)
        if held.below is None:
            return held if call.output in (None, UNKNOWN) else None
        if call.output is not UNKNOWN and (call.output is None or call.output != held.top):
            return None
        return held.below if call.f == "pop" else held

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(STACK, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one stack's operations."""
        return put_and_take_problem(self, operations, initial, puts=("push",))

    def describe_state(self, state: Any) -> str:
        """Describe what the stack holds, the top first."""
        return f"the stack {format_values(state, in_order=True)}" if state.size else EMPTY_STACK

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "push 1", "pop: empty"."""
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a pop or peek cannot happen: "it took 2, 1 is on top"."""
        did = "took" if call.f == "pop" else "saw"
        if not state.size:
            return f"it {did} {format_value(call.output)}, the stack is empty"
        top = f"{format_value(state.top)} is on top"
        if call.output is None:
            return f"it found the stack empty, {state.size} wait there, {top}"
        is_below = any(value == call.output for value in state)
        rest = "" if is_below else f", and {format_value(call.output)} is not in the stack"
        return f"it {did} {format_value(call.output)}, {top}{rest}"


EMPTY_STACK: Final = "the empty stack"

PLUGIN = Stack()
