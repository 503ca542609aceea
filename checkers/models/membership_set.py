"""A set that answers whether an element is in it, and whether an add or a remove changed it.

Source: Herlihy & Shavit 2008, The Art of Multiprocessor Programming, chapter 9; Java's Set.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    NOTHING,
    answered,
    describe_question,
    first_values,
    format_value,
    load_columns,
    require_yes_or_no,
    table_problem,
)
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.models.set import (
    describe_elements,
    describe_read,
    elements_of,
    require_lists,
    seen_elements,
)
from shaketable.checkers.models.vectors import Change, Elements
from shaketable.checkers.search.problem import Does, Problem, State


class MembershipSet:
    """A set: f is add, remove or contains (input; output 1 or 0), or read (output: all of them).

    An add answers 1 if the element was not there, a remove if it was. Without an answer they may
    have changed the set or not.
    """

    name = "membership-set"
    fs = frozenset(("add", "remove", "contains", "read"))
    observers = frozenset(("contains", "read"))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first elements: none by default, or a JSON list."""
        return frozenset(first_values(self.name, text))

    def step(self, state: Any, call: Call) -> State | None:
        """Return the set after `call`; None if it cannot answer that."""
        held: frozenset[Any] = state
        if call.f == "read":
            return held if call.output is UNKNOWN or elements_of(call.output) == held else None
        is_there = call.input in held
        expected = is_there if call.f != "add" else not is_there
        if answered(call) not in (None, expected):
            return None
        if call.f == "add":
            return held if is_there else held | {call.input}
        return held - {call.input} if call.f == "remove" and is_there else held

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one set's operations."""
        columns = load_columns(self, operations)
        is_read = columns.is_f("read")
        columns.require(~is_read & (columns.input == NOTHING), "element")
        require_lists(columns)
        require_yes_or_no(columns, self.fs - {"read"})
        return table_problem(self, columns, initial, form=Answers())

    def describe_state(self, state: Any) -> str:
        """Describe what the set holds: its first few elements."""
        return describe_elements(state)

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "add 1: yes", "contains 2: no", "read {1, 2}"."""
        if call.f == "read":
            return describe_read(call)
        return describe_question(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why `call` cannot answer that: "it found 1, which is not in the set"."""
        holds = f"the set holds {self.describe_state(state)}"
        if call.f == "read":
            return f"it saw {self.describe_state(elements_of(call.output))}, {holds}"
        there = "is in the set" if call.input in state else "is not in the set"
        says = "yes" if answered(call) else "no"
        return f"it answered {says}, and {format_value(call.input)} {there}; {holds}"


class Answers(Elements):
    """A set as a vector; an answer tells whether the element was there."""

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a call does."""
        if call.f == "read":
            return seen_elements(call)
        said = answered(call)
        was_there = said if call.f != "add" or said is None else not said
        needs = () if was_there is None else ((Does.EXPECT, call.input, int(was_there)),)
        if call.f == "contains":
            return needs
        return (*needs, (Does.SET, call.input, int(call.f == "add")))


PLUGIN = MembershipSet()
