"""A log: append a value and get its offset, read at an offset, get the end offset.

Source: CHECKERS.md section 3; Jepsen's kafka workload for the operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    NOTHING,
    first_values,
    format_value,
    format_values,
    load_columns,
    table_problem,
)
from shaketable.checkers.models.model import LOG, UNKNOWN, Call, Values, whole_numbers
from shaketable.checkers.search.problem import Problem, State


class AppendLog:
    """A log: f is append (input, offset), read (offset, output) or end (output).

    A read whose output is null found the log's end at or before its offset. `end` returns the
    offset that the next append would get.
    """

    name = "append-log"
    fs = frozenset(("append", "read", "end"))
    observers = frozenset(("read", "end"))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first log: empty by default, or a JSON list, offset 0 first."""
        return first_values(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the log (a tuple) after `call`."""
        log: tuple[Any, ...] = state
        if call.f == "append":
            # Offsets are dense: an append gets the length of the log that it extends.
            fits = call.output is UNKNOWN or call.offset == len(log)
            return (*log, call.input) if fits else None
        if call.output is UNKNOWN:
            return log
        if call.f == "end":
            return log if call.output == len(log) else None
        return log if call.output == _at(log, call.offset) else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(LOG, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one log's operations."""
        columns = load_columns(self, operations)
        is_append, is_end = columns.is_f("append"), columns.is_f("end")
        columns.require(is_append & (columns.input == NOTHING), "value to append")
        columns.require(~is_end & columns.is_ok & ~columns.has_offset, "offset")
        columns.require(is_end & (columns.output == NOTHING), "offset that it answered")
        return table_problem(self, columns, initial)

    def describe_state(self, state: Any) -> str:
        """Describe the log by its length and its last values."""
        shown = format_values(state[-3:], in_order=True)
        return f"a log of {len(state)}, the last {shown}" if state else "the empty log"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "append 7 at 3", "read at 3: nothing", "end 4"."""
        if call.f == "append":
            where = ": ?" if call.output is UNKNOWN else f" at {call.offset}"
            return f"append {format_value(call.input)}{where}"
        answered = "?" if call.output is UNKNOWN else format_value(call.output)
        return f"end {answered}" if call.f == "end" else f"read at {call.offset}: {answered}"

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why `call` cannot happen: "it got offset 3, the log ends at 2"."""
        if call.f == "append":
            return f"it got offset {call.offset}, the log ends at {len(state)}"
        if call.f == "end":
            return f"it answered {call.output}, the log ends at {len(state)}"
        there = format_value(_at(state, call.offset))
        return f"it read {format_value(call.output)} at {call.offset}, {there} is there"


def _at(log: tuple[Any, ...], offset: int | None) -> Any:
    """Return the value at an offset, None at or after the end; UNKNOWN, no answer, if negative."""
    if offset is None or offset < 0:
        return UNKNOWN
    return log[offset] if offset < len(log) else None


PLUGIN = AppendLog()
