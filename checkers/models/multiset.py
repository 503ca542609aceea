"""A multiset: it may hold an element several times.

Source: Abdulla et al. 2025 (arXiv 2509.17795), multisets; Guava's Multiset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import (
    NOTHING,
    answered,
    describe_question,
    first_values,
    format_value,
    format_values,
    load_columns,
    require_yes_or_no,
    table_problem,
)
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.models.set import require_lists
from shaketable.checkers.models.vectors import Change, Entries, whole
from shaketable.checkers.search.problem import Does, Problem, State
from shaketable.harness.contracts.errors import UsageError

Counts = frozenset[tuple[Any, int]]
"""Each element that is there, with how often."""


class Multiset:
    """A multiset: f is add, remove, contains, count (input) or read (output: all of them).

    A remove takes the element once: output 1 if it was there, 0 if not. A contains answers 1 or 0,
    a count how often it is there.
    """

    name = "multiset"
    fs = frozenset(("add", "remove", "contains", "count", "read"))
    observers = frozenset(("contains", "count", "read"))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first elements: none by default, or a JSON list."""
        return frozenset(Counter(first_values(self.name, text)).items())

    def step(self, state: Any, call: Call) -> State | None:
        """Return the multiset after `call`; None if it cannot answer that."""
        held: Counts = state
        if call.f == "read":
            return held if call.output is UNKNOWN or _counts(call.output) == held else None
        count = count_of(held, call.input)
        if call.f == "add":
            return held - {(call.input, count)} | {(call.input, count + 1)}
        if call.f == "count":
            return held if call.output in (UNKNOWN, count) else None
        if answered(call) not in (None, count > 0):
            return None
        if call.f == "contains" or not count:
            return held
        rest = {(call.input, count - 1)} if count > 1 else frozenset()
        return held - {(call.input, count)} | rest

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one multiset's operations."""
        columns = load_columns(self, operations)
        is_read, is_count = columns.is_f("read"), columns.is_f("count")
        columns.require(~is_read & (columns.input == NOTHING), "element")
        require_lists(columns)
        require_yes_or_no(columns, frozenset(("remove", "contains")))
        answers = np.flatnonzero(is_count & columns.is_ok)
        for row in answers.tolist():
            count = columns.values[int(columns.output[row])]
            if type(count) is not int:
                raise UsageError(f"operation {columns.op[row]} (count) has no whole number")
        return table_problem(self, columns, initial, form=Copies())

    def describe_state(self, state: Any) -> str:
        """Describe what the multiset holds: its first few elements."""
        held = [value for value, count in state for _ in range(count)]
        return f"{{{format_values(held)}}}" if held else "the empty multiset"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "remove 1: yes", "count 2: 3", "read {1, 1}"."""
        if call.f == "read":
            known = call.output is not UNKNOWN
            return f"read {self.describe_state(_counts(call.output))}" if known else "read: ?"
        if call.f == "count" and call.output is not UNKNOWN:
            return f"count {format_value(call.input)}: {call.output}"
        return describe_question(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why `call` cannot answer that: "it counted 2 times 1, which is there once"."""
        holds = f"the multiset holds {self.describe_state(state)}"
        if call.f == "read":
            return f"it saw {self.describe_state(_counts(call.output))}, {holds}"
        count = count_of(state, call.input)
        said = str(call.output) if call.f == "count" else "yes" if answered(call) else "no"
        times = "once" if count == 1 else f"{count} times"
        return f"it answered {said}, and {format_value(call.input)} is there {times}; {holds}"


def count_of(held: Counts, value: Any) -> int:
    """Return how often a multiset holds `value`."""
    if (value, 1) in held:  # the common case
        return 1
    return next((count for each, count in held if each == value), 0)


def _counts(output: Any) -> Counts:
    return frozenset(Counter(output or ()).items())


class Copies:
    """A multiset as a vector: how often each element is there."""

    def entries(self, state: Any) -> Entries:
        """Return the vector that a multiset is."""
        return dict(state)

    def state(self, entries: Entries) -> State:
        """Return the multiset that a vector is."""
        return frozenset(entries.items())

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a call does."""
        if call.f == "read":
            return () if call.output is UNKNOWN else whole(Counter(call.output or ()))
        if call.f == "add":
            return ((Does.ADD, call.input, 1),)
        if call.f == "count":
            return () if call.output is UNKNOWN else ((Does.EXPECT, call.input, call.output),)
        said = answered(call)
        if call.f == "remove" and said is not False:
            return ((Does.LOWER, call.input, 1) if said is None else (Does.ADD, call.input, -1),)
        if said is None:
            return ()
        return ((Does.AT_LEAST, call.input, 1) if said else (Does.EXPECT, call.input, 0),)


PLUGIN = Multiset()
