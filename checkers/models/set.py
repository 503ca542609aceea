"""A set: add an element, remove one, or read all of them.

Source: knossos.model Set; Jepsen's set workloads.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    NOTHING,
    Columns,
    first_values,
    format_value,
    format_values,
    load_columns,
    table_problem,
)
from shaketable.checkers.models.model import SET, UNKNOWN, Call, Values, whole_numbers
from shaketable.checkers.models.vectors import Change, Elements, whole
from shaketable.checkers.search.problem import Does, Problem, State
from shaketable.harness.contracts.errors import UsageError


def elements_of(output: Any) -> frozenset[Any]:
    """Return a read's output as a set; null is the empty set."""
    return frozenset(output or ())


def describe_elements(elements: frozenset[Any]) -> str:
    """Describe what a set holds: its first few elements."""
    return f"{{{format_values(elements)}}}" if elements else "the empty set"


def describe_read(call: Call) -> str:
    """Describe a read of all elements: "read {1, 2}", "read: ?" if its answer is unknown."""
    if call.output is UNKNOWN:
        return "read: ?"
    return f"read {describe_elements(elements_of(call.output))}"


class Set:
    """A set: f is add (input), remove (input) or read (output: the list of all elements)."""

    name = "set"
    fs = frozenset(("add", "remove", "read"))
    observers = frozenset(("read",))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first elements: none by default, or a JSON list."""
        return frozenset(first_values(self.name, text))

    def step(self, state: Any, call: Call) -> State | None:
        """Return the set after `call`; None for a read of another one."""
        held: frozenset[Any] = state
        if call.f == "add":
            return held if call.input in held else held | {call.input}
        if call.f == "remove":
            return held - {call.input} if call.input in held else held
        if call.output is UNKNOWN:
            return held
        return held if elements_of(call.output) == held else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(SET, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one set's operations."""
        columns = load_columns(self, operations)
        is_read = columns.is_f("read")
        columns.require(~is_read & (columns.input == NOTHING), "element")
        require_lists(columns)
        return table_problem(self, columns, initial, form=Members())

    def describe_state(self, state: Any) -> str:
        """Describe what the set holds: its first few elements."""
        return describe_elements(state)

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "add 1", "read {1, 2}"."""
        if call.f == "read":
            return describe_read(call)
        return f"{call.f} {format_value(call.input)}{': ?' if call.output is UNKNOWN else ''}"

    def why_not(self, state: Any, call: Call) -> str:
        """Explain which elements a read lacks or should not have."""
        seen = elements_of(call.output)
        parts = [
            f"{what} {format_values(some)}"
            for what, some in (("it lacks", state - seen), ("no client had added", seen - state))
            if some
        ]
        return f"{' and '.join(parts)}; the set holds {self.describe_state(state)}"


def require_lists(columns: Columns) -> None:
    """Refuse reads whose output is a single value: a set's read returns a list of elements."""
    read = columns.is_f("read") & columns.is_ok
    for number in sorted(set(columns.output[read].tolist())):
        value: Collection[Any] | None = columns.values[number]
        if value is not None and not isinstance(value, tuple):
            row = int((read & (columns.output == number)).argmax())
            raise UsageError(
                f"operation {columns.op[row]} (read) returned {value!r}, not a list of elements"
            )


class Members(Elements):
    """A set as a vector."""

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a call does."""
        if call.f == "read":
            return seen_elements(call)
        return ((Does.SET, call.input, int(call.f == "add")),)


def seen_elements(call: Call) -> Sequence[Change]:
    """Return what a read of all elements needs."""
    return () if call.output is UNKNOWN else whole(dict.fromkeys(call.output or (), 1))


PLUGIN = Set()
