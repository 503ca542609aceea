"""One key of a store of texts: get, put and append; a missing key reads as "".

Source: porcupine's kv model (MIT 6.824); each key is a partition of its own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import format_value, load_columns, table_problem
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Problem, State


def _text(value: Any) -> str:
    """Return a value as the text that the store holds; nothing reads as the empty text."""
    return "" if value is None else str(value)


class Kv:
    """One key of a store of texts: f is get (output), put or append (input)."""

    name = "kv"
    fs = frozenset(("get", "put", "append"))
    observers = frozenset(("get",))
    overwriters = frozenset(("put",))

    def initial(self, text: str | None) -> State:
        """Return the first text: empty by default."""
        return _text(text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the text after `call`; None for a get of another text."""
        if call.f == "put":
            return _text(call.input)
        if call.f == "append":
            return str(state) + _text(call.input)
        is_seen = call.output is UNKNOWN or _text(call.output) == state
        return str(state) if is_seen else None

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one key's operations."""
        return table_problem(self, load_columns(self, operations), initial)

    def describe_state(self, state: Any) -> str:
        """Describe the text that the key holds."""
        return format_value(str(state))

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: 'append "x"', 'get "xy"'."""
        if call.f == "get":
            return "get: ?" if call.output is UNKNOWN else f"get {format_value(_text(call.output))}"
        return (
            f"{call.f} {format_value(_text(call.input))}{': ?' if call.output is UNKNOWN else ''}"
        )

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a get cannot happen, and where the texts start to differ."""
        held, got = str(state), _text(call.output)
        same = next((n for n, (x, y) in enumerate(zip(held, got, strict=False)) if x != y), None)
        where = min(len(held), len(got)) if same is None else same
        if where <= len(format_value(held)) - 2 and len(held) <= 60:
            return f"it got {format_value(got)}, the key holds {format_value(held)}"
        return (
            f"it got {len(got)} characters, the key holds {len(held)}; from character {where}"
            f" it got {format_value(got[where:])}, the key holds {format_value(held[where:])}"
        )


PLUGIN = Kv()
