"""A first-in, first-out queue.

Source: knossos.model FIFOQueue; Herlihy & Wing 1990, section 3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.columns import NOTHING, load_columns
from shaketable.checkers.models.encoding import (
    first_values,
    format_value,
    format_values,
    table_problem,
)
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.models.values import QUEUE, Values, whole_numbers
from shaketable.checkers.search.problem import Problem, State


class FifoQueue:
    """A FIFO queue: f is enqueue (input) or dequeue (output; null: it found the queue empty).

    An indeterminate dequeue may take the value at the head at any later time, or have no effect.
    """

    name = "fifo-queue"
    fs = frozenset(("enqueue", "dequeue"))
    observers: frozenset[str] = frozenset()
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first queue: empty by default, or a JSON list, its head first."""
        return first_values(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the queue (a tuple, head first) after `call`."""
        held: tuple[Any, ...] = state
        if call.f == "enqueue":
            return (*held, call.input)
        if call.output is None:
            return None if held else held
        if not held:
            return None
        return held[1:] if call.output is UNKNOWN or call.output == held[0] else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(QUEUE, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one queue's operations."""
        columns = load_columns(self, operations)
        is_enqueue = columns.is_f("enqueue")
        columns.require(is_enqueue & (columns.input == NOTHING), "value to enqueue")
        found_nothing = ~is_enqueue & (columns.output == NOTHING)
        return table_problem(self, columns, initial, observes=found_nothing)

    def describe_state(self, state: Any) -> str:
        """Describe what the queue holds, head first."""
        return f"the queue {format_values(state, in_order=True)}" if state else "the empty queue"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "enqueue 1", "dequeue: empty"."""
        return describe_queue_call(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a dequeue cannot happen: "it took 2, the head is 1"."""
        if not state:
            return f"it took {format_value(call.output)}, the queue is empty"
        head = format_value(state[0])
        if call.output is None:
            return f"it found the queue empty, {len(state)} wait there, {head} at the head"
        behind = (
            "" if call.output in state else f", and {format_value(call.output)} is not in the queue"
        )
        return f"it took {format_value(call.output)}, the head is {head}{behind}"


def describe_queue_call(call: Call) -> str:
    """Describe what was enqueued or dequeued."""
    if call.f == "enqueue":
        return f"enqueue {format_value(call.input)}{': ?' if call.output is UNKNOWN else ''}"
    if call.output is UNKNOWN:
        return "dequeue: ?"
    return "dequeue: empty" if call.output is None else f"dequeue {format_value(call.output)}"


PLUGIN = FifoQueue()
