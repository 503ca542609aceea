"""A double-ended queue: values are put in and taken out at both ends.

Source: Herlihy & Shavit 2008, The Art of Multiprocessor Programming, chapter 16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    describe_put_or_take,
    first_values,
    format_value,
    format_values,
    put_and_take_problem,
)
from shaketable.checkers.models.model import DEQUE, UNKNOWN, Call, Values, whole_numbers
from shaketable.checkers.search.problem import Problem, State

FRONT, BACK = "front", "back"


class Deque:
    """A deque: f is push-front, push-back (input), pop-front, pop-back, peek-front or peek-back.

    The output of a pop or peek is the value; null: it found the deque empty. An indeterminate pop
    may take the value at its end at any later time, or have no effect.
    """

    name = "deque"
    fs = frozenset(f"{what}-{end}" for what in ("push", "pop", "peek") for end in (FRONT, BACK))
    observers = frozenset(f"peek-{end}" for end in (FRONT, BACK))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first deque: empty by default, or a JSON list, its front first."""
        return first_values(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the deque (a tuple, front first) after `call`."""
        held: tuple[Any, ...] = state
        what, end = call.f.split("-")
        if what == "push":
            return (call.input, *held) if end == FRONT else (*held, call.input)
        if not held:
            return held if call.output in (None, UNKNOWN) else None
        if call.output is not UNKNOWN and (call.output is None or call.output != _at(held, end)):
            return None
        if what == "peek":
            return held
        return held[1:] if end == FRONT else held[:-1]

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(DEQUE, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one deque's operations."""
        return put_and_take_problem(self, operations, initial, puts=("push-front", "push-back"))

    def describe_state(self, state: Any) -> str:
        """Describe what the deque holds, front first."""
        return f"the deque {format_values(state, in_order=True)}" if state else "the empty deque"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "push-front 1", "pop-back: empty"."""
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a pop or peek cannot happen: "it took 2, the front is 1"."""
        what, end = call.f.split("-")
        did = "took" if what == "pop" else "saw"
        if not state:
            return f"it {did} {format_value(call.output)}, the deque is empty"
        there = f"the {end} is {format_value(_at(state, end))}"
        if call.output is None:
            return f"it found the deque empty, {len(state)} wait there, {there}"
        rest = (
            "" if call.output in state else f", and {format_value(call.output)} is not in the deque"
        )
        return f"it {did} {format_value(call.output)}, {there}{rest}"


def _at(held: tuple[Any, ...], end: str) -> Any:
    return held[0] if end == FRONT else held[-1]


PLUGIN = Deque()
