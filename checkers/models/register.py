"""A register: holds the last value written, or nothing.

Source: knossos.model Register.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.columns import Columns, load_columns
from shaketable.checkers.models.encoding import format_value, value_problem
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.models.values import REGISTER, Values, whole_numbers
from shaketable.checkers.search.problem import Access, Bools, Ints, Problem, State
from shaketable.harness.contracts.errors import UsageError

Holding = tuple[Any]
"""The state: a tuple of the one value, None for nothing."""
NIL = frozenset(("", "nil", "null", "nothing"))
REFUSED = 0
"""The output of a cas that found another value."""


def first_value(model: str, text: str | None) -> Holding:
    """Read the first value of a register: a whole number, nil, or a text in double quotes.

    Raises:
        UsageError: it is none of these.
    """
    if text is None or text.strip() in NIL:
        return (None,)
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if type(value) is int or isinstance(value, str):
        return (value,)
    raise UsageError(
        f"{text!r} is no first value for the model {model}:"
        " it takes a whole number, nil, or a text in double quotes"
    )


class Register:
    """A register: f is read (output: the value, null for nothing) or write (input)."""

    name = "register"
    fs = frozenset(("read", "write"))
    observers = frozenset(("read",))
    overwriters = frozenset(("write",))

    def initial(self, text: str | None) -> State:
        """Return the first state: nothing by default."""
        return first_value(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the register after `call`; None for a read of another value."""
        if call.f == "write":
            return (call.input,)
        if call.f == "cas":
            return self._cas(state, call)
        return state if call.output in (UNKNOWN, state[0]) else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(REGISTER, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: Any) -> Problem:
        """Encode one register's operations as a single-value problem."""
        columns = load_columns(self, operations)
        access = np.full(len(columns.op), Access.READ, dtype=np.int64)
        a, b = columns.output, columns.input
        is_write = columns.is_f("write")
        columns.require(is_write & (b == 0), "value to write")
        access[is_write] = Access.WRITE
        if "cas" in self.fs:
            access, a, b = self._encode_cas(columns, access, a, b)
        number = columns.values.number(initial[0])
        return value_problem(
            self, columns, initial, access, a, b, number=number, values=len(columns.values)
        )

    def describe_state(self, state: Any) -> str:
        """Describe what the register holds."""
        return format_value(state[0])

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "read 3", "cas 1 -> 2: no"."""
        answered = ": ?" if call.output is UNKNOWN else ""
        if call.f == "write":
            return f"write {format_value(call.input)}{answered}"
        if call.f == "cas":
            answered = answered or (": no" if call.output == REFUSED else "")
            return f"cas {format_value(call.expected)} -> {format_value(call.input)}{answered}"
        return "read: ?" if call.output is UNKNOWN else f"read {format_value(call.output)}"

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a read or a cas cannot happen: "it read 3, the register holds 1"."""
        holds = f"the register holds {format_value(state[0])}"
        if call.f == "cas" and call.output == REFUSED:
            return f"it answered no, though {holds}, which it expects"
        if call.f == "cas":
            return f"it needs {format_value(call.expected)}, {holds}"
        return f"it read {format_value(call.output)}, {holds}"

    @staticmethod
    def _cas(state: Any, call: Call) -> State | None:
        matches = state[0] == call.expected
        if call.output == REFUSED:
            return None if matches else state
        return (call.input,) if matches else None

    @staticmethod
    def _encode_cas(columns: Columns, access: Ints, a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
        is_cas: Bools = columns.is_f("cas")
        columns.require(is_cas & (columns.input == 0), "value to swap in")
        refused = columns.output == columns.values.number(REFUSED)
        access = np.where(is_cas, np.where(refused, Access.NOT, Access.CAS), access)
        return access, np.where(is_cas, columns.expected, a), np.where(is_cas, columns.input, b)


PLUGIN = Register()
