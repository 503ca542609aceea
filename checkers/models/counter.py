"""A counter: add a whole number to it, or read the sum.

Source: Jepsen's counter workload, as a model (its checker only bounds the reads).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import NOTHING, Columns, load_columns, table_problem
from shaketable.checkers.models.model import UNKNOWN, VALUE_MAX, Call, Change, Entries
from shaketable.checkers.search.problem import Bools, Does, Problem, State
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
        return table_problem(self, columns, initial, form=_form_of(columns, is_add, initial))

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


class Sum:
    """A sum as a vector of one entry: by how much it exceeds the least that it can be."""

    def __init__(self, least: int) -> None:
        self._least = least

    def entries(self, state: Any) -> Entries:
        """Return the vector that a sum is."""
        return {ENTRY: state - self._least} if state != self._least else {}

    def state(self, entries: Entries) -> State:
        """Return the sum that a vector is."""
        return entries.get(ENTRY, 0) + self._least

    def changes(self, call: Call) -> tuple[Change, ...]:
        """Return what a call does."""
        if call.f == "add":
            return ((Does.ADD, ENTRY, int(call.input)),)
        # Less than the least: an entry is never that, and the search gets as far as it can.
        return ((Does.EXPECT, ENTRY, call.output - self._least),)


ENTRY = "sum"


def _form_of(columns: Columns, is_add: Bools, initial: State) -> Sum | None:
    """Return a counter's form, None if its sums differ by more than an entry can hold."""
    assert isinstance(initial, int), "a counter's state is its sum"
    numbers, count = np.unique(columns.input[is_add], return_counts=True)
    amounts = columns.values.take(numbers.tolist())
    sums = [amount * n for amount, n in zip(amounts, count.tolist(), strict=True)
            if type(amount) is int]  # fmt: skip
    shown = columns.values.take(np.unique(columns.output[~is_add]).tolist())
    is_whole = len(sums) == len(amounts) and all(
        type(each) in (int, type(UNKNOWN)) for each in shown
    )
    least = initial + sum(each for each in sums if each < 0)
    most = initial + sum(each for each in sums if each > 0)
    return Sum(least) if is_whole and most - least <= VALUE_MAX else None


PLUGIN = Counter()
