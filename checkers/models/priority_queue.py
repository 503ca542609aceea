"""Priority queues: the value of the highest priority is taken first.

Source: Herlihy & Shavit 2008, The Art of Multiprocessor Programming, chapter 15.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    describe_put_or_take,
    first_values,
    format_value,
    format_values,
    put_and_take_problem,
    require_whole_numbers,
)
from shaketable.checkers.models.model import PRIORITY_QUEUE, UNKNOWN, Call, Values, whole_numbers
from shaketable.checkers.search.problem import Problem, State
from shaketable.harness.contracts.errors import UsageError


class PriorityQueue:
    """A priority queue: f is insert (input), poll or peek (output; null: it found it empty).

    Values are whole numbers, which are their own priorities. An indeterminate poll may take the
    first value at any later time, or have no effect.
    """

    fs = frozenset(("insert", "poll", "peek"))
    observers = frozenset(("peek",))
    overwriters: frozenset[str] = frozenset()

    def __init__(self, name: str, *, largest_first: bool) -> None:
        """Take the name of the model, and which value has the highest priority."""
        self.name, self.largest_first = name, largest_first
        self._first = -1 if largest_first else 0

    def initial(self, text: str | None) -> State:
        """Return the first queue: empty by default, or a JSON list of whole numbers."""
        values = first_values(self.name, text)
        if any(isinstance(value, str) for value in values):
            raise UsageError(f"{text!r} has a text; the values of a {self.name} are whole numbers")
        return tuple(sorted(values))

    def step(self, state: Any, call: Call) -> State | None:
        """Return the queue (a tuple in ascending order) after `call`."""
        held: tuple[int, ...] = state
        if call.f == "insert":
            more = [*held]
            insort(more, call.input)
            return tuple(more)
        if not held:
            return held if call.output in (None, UNKNOWN) else None
        first = held[self._first]
        if call.output is not UNKNOWN and (call.output is None or call.output != first):
            return None
        if call.f == "peek":
            return held
        return held[:-1] if self.largest_first else held[1:]

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(PRIORITY_QUEUE, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one priority queue's operations.

        Raises:
            UsageError: a value is no whole number, or as for all models.
        """
        problem = put_and_take_problem(self, operations, initial, puts=("insert",))
        require_whole_numbers(problem, "the values of a priority queue")
        return problem

    def describe_state(self, state: Any) -> str:
        """Describe what the queue holds, in the order in which it would be taken."""
        held = reversed(state) if self.largest_first else state
        listed = format_values(held, in_order=True)
        return f"the priority queue {listed}" if state else "the empty priority queue"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "insert 1", "poll: empty"."""
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a poll or peek cannot happen: "it took 2, 5 comes first"."""
        did = "took" if call.f == "poll" else "saw"
        if not state:
            return f"it {did} {format_value(call.output)}, the queue is empty"
        first = f"{format_value(state[self._first])} comes first"
        if call.output is None:
            return f"it found the queue empty, {len(state)} wait there, {first}"
        rest = (
            "" if call.output in state else f", and {format_value(call.output)} is not in the queue"
        )
        return f"it {did} {format_value(call.output)}, {first}{rest}"


PLUGINS = (
    PriorityQueue("priority-queue", largest_first=True),
    PriorityQueue("min-priority-queue", largest_first=False),
)
