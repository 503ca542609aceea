"""A counter: add a whole number to it, or read the sum.

Source: Jepsen's counter workload, as a model (its checker only bounds the reads).
"""

from __future__ import annotations

import pyarrow as pa

from shaketable.checkers.models.encoding import NOTHING, load_columns, table_problem
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Problem, State
from shaketable.harness.contracts.errors import UsageError


class Counter:
    """A counter: f is add (input, may be negative) or read (output)."""

    name = "counter"
    fs = frozenset(("add", "read"))
    observers = frozenset(("read",))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first sum: 0 by default."""
        try:
            return int(text or 0)
        except ValueError:
            raise UsageError(f"{text!r} is no whole number that a counter could start at") from None

    def step(self, state: State, call: Call) -> State | None:
        """Return the sum after `call`; None for a read of another one."""
        assert isinstance(state, int)
        if call.f == "add":
            return state + int(call.input)
        return state if call.output is UNKNOWN or call.output == state else None

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one counter's operations."""
        columns = load_columns(self, operations)
        is_add = columns.is_f("add")
        columns.require(is_add & (columns.input == NOTHING), "number to add")
        columns.require(~is_add & (columns.output == NOTHING), "sum that it read")
        return table_problem(self, columns, initial)

    def describe_state(self, state: State) -> str:
        """Describe the sum."""
        return str(state)

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "add 2", "read 5"."""
        answered = ": ?" if call.output is UNKNOWN else ""
        return f"add {call.input}{answered}" if call.f == "add" else f"read {call.output}"

    def why_not(self, state: State, call: Call) -> str:
        """Explain why a read cannot happen: "it read 3, the counter is at 2"."""
        return f"it read {call.output}, the counter is at {state}"


PLUGIN = Counter()
