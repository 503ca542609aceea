"""Sets: one that is read as a whole, one that answers for single elements, and multisets.

Source: knossos.model Set; Jepsen's set workloads. For single elements, Herlihy & Shavit 2008, The
Art of Multiprocessor Programming, chapter 9; Java's Set. For multisets, Abdulla et al. 2025 (arXiv
2509.17795); Guava's Multiset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import (
    NOTHING,
    Columns,
    answered,
    describe_question,
    first_values,
    format_value,
    format_values,
    load_columns,
    require_yes_or_no,
    table_problem,
)
from shaketable.checkers.models.model import (
    SET,
    UNKNOWN,
    Call,
    Change,
    Elements,
    Entries,
    Values,
    whole,
    whole_numbers,
)
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
    """A set: f is add or remove (input), or read (output: a list of all elements)."""

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


# A set that answers for single elements.


class MembershipSet:
    """A set: f is add, remove or contains (input; output 1 or 0), or read (output: all elements).

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


# A multiset.

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


PLUGINS = (Set(), MembershipSet(), Multiset())
