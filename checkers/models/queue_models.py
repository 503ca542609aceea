"""Queues: first in, first out; unordered; by priority; double-ended.

Source: knossos.model FIFOQueue, UnorderedQueue; Herlihy & Wing 1990, section 3; Herlihy & Shavit
2008, The Art of Multiprocessor Programming, chapters 15 (priority queues) and 16 (double-ended).
"""

from __future__ import annotations

import enum
from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    ABSENT,
    NOTHING,
    describe_put_or_take,
    first_values,
    format_value,
    format_values,
    load_columns,
    put_and_take_problem,
    require_whole_numbers,
    table_problem,
)
from shaketable.checkers.models.model import (
    DEQUE,
    PRIORITY_QUEUE,
    QUEUE,
    UNKNOWN,
    Call,
    Change,
    Entries,
    Values,
    whole_numbers,
)
from shaketable.checkers.search.problem import Does, Problem, State
from shaketable.harness.contracts.errors import UsageError


class FifoQueue:
    """A FIFO queue: f is enqueue (input), dequeue or peek (output; null if empty).

    An indeterminate dequeue may take the value at the head at any later time, or have no effect.
    """

    name = "fifo-queue"
    fs = frozenset(("enqueue", "dequeue", "peek"))
    observers = frozenset(("peek",))
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
        rest = held if call.f == "peek" else held[1:]
        return rest if call.output is UNKNOWN or call.output == held[0] else None

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
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a dequeue or peek cannot happen: "it took 2, the head is 1"."""
        did = "saw" if call.f == "peek" else "took"
        if not state:
            return f"it {did} {format_value(call.output)}, the queue is empty"
        head = format_value(state[0])
        if call.output is None:
            return f"it found the queue empty, {len(state)} wait there, {head} at the head"
        behind = (
            "" if call.output in state else f", and {format_value(call.output)} is not in the queue"
        )
        return f"it {did} {format_value(call.output)}, the head is {head}{behind}"


# A queue whose values are dequeued in any order.


@dataclass(frozen=True, slots=True)
class Bag:
    """What the queue holds, and how many of its values indeterminate dequeues may have taken.

    An indeterminate dequeue may take any one value at any later time, so its effect can be
    deferred until the queue is found empty: then all values left must have been taken. `deferred`
    counts those that were called and have taken nothing yet.
    """

    held: frozenset[tuple[Any, int]] = frozenset()  # (value, how often the queue holds it)
    size: int = 0
    deferred: int = 0

    def put(self, value: Any) -> Bag:
        """Return the queue with one more `value`."""
        before = self.count(value)
        held = self.held - {(value, before)} | {(value, before + 1)}
        return Bag(held, self.size + 1, self.deferred)

    def take(self, value: Any) -> Bag | None:
        """Return the queue with one `value` less, None if it holds none."""
        before = self.count(value)
        if not before:
            return None
        rest = {(value, before - 1)} if before > 1 else frozenset()
        return Bag(self.held - {(value, before)} | rest, self.size - 1, self.deferred)

    def count(self, value: Any) -> int:
        """Return how often the queue holds `value`."""
        if (value, 1) in self.held:  # the common case: values are unique
            return 1
        return next((count for each, count in self.held if each == value), 0)


class UnorderedQueue:
    """An unordered queue: f is enqueue (input) or dequeue (output; null if empty)."""

    name = "unordered-queue"
    fs = frozenset(("enqueue", "dequeue"))
    observers: frozenset[str] = frozenset()
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first queue: empty by default, or a JSON list."""
        values = first_values(self.name, text)
        return Bag(frozenset(Counter(values).items()), len(values))

    def step(self, state: Any, call: Call) -> State | None:
        """Return the queue after `call`."""
        bag: Bag = state
        if call.f == "enqueue":
            return bag.put(call.input)
        if call.output is UNKNOWN:
            return Bag(bag.held, bag.size, bag.deferred + 1)
        if call.output is not None:
            return bag.take(call.output)
        # Found empty: each value left must have been taken by a deferred dequeue of its own.
        return Bag(deferred=bag.deferred - bag.size) if bag.size <= bag.deferred else None

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(QUEUE, initial=whole_numbers(value for value, _ in initial.held))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one queue's operations."""
        columns = load_columns(self, operations)
        is_enqueue = columns.is_f("enqueue")
        columns.require(is_enqueue & (columns.input == NOTHING), "value to enqueue")
        found_nothing = ~is_enqueue & (columns.output == NOTHING)
        if bool((~is_enqueue & (columns.output == ABSENT)).any()):
            found_nothing[:] = False  # finding the queue empty then changes `deferred`
        return table_problem(self, columns, initial, observes=found_nothing, form=Contents())

    def describe_state(self, state: Any) -> str:
        """Describe what the queue holds."""
        bag: Bag = state
        held = format_values([value for value, count in bag.held for _ in range(count)])
        gone = f", of which {bag.deferred} may be gone" if bag.deferred and bag.size else ""
        return f"a queue of {held}{gone}" if bag.size else "the empty queue"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "enqueue 1", "dequeue: empty"."""
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a dequeue cannot happen."""
        if call.output is None:
            return f"it found the queue empty, there was {self.describe_state(state)}"
        return f"it took {format_value(call.output)}, there was {self.describe_state(state)}"


class _Fact(enum.Enum):
    """An entry that is about no value."""

    SIZE = enum.auto()
    DEFERRED = enum.auto()


SIZE, DEFERRED = _Fact.SIZE, _Fact.DEFERRED


class Contents:
    """An unordered queue as a vector: how often it holds each value, its size, what is deferred."""

    def entries(self, state: Any) -> Entries:
        """Return the vector that a queue is."""
        bag: Bag = state
        facts = {SIZE: bag.size, DEFERRED: bag.deferred}
        return dict(bag.held) | {fact: count for fact, count in facts.items() if count}

    def state(self, entries: Entries) -> State:
        """Return the queue that a vector is."""
        held = frozenset(pair for pair in entries.items() if not isinstance(pair[0], _Fact))
        return Bag(held, entries.get(SIZE, 0), entries.get(DEFERRED, 0))

    def changes(self, call: Call) -> Sequence[Change]:
        """Return what a call does."""
        if call.f == "enqueue":
            return ((Does.ADD, call.input, 1), (Does.ADD, SIZE, 1))
        if call.output is UNKNOWN:
            return ((Does.ADD, DEFERRED, 1),)
        if call.output is not None:
            return ((Does.ADD, call.output, -1), (Does.ADD, SIZE, -1))
        return ((Does.DRAIN, DEFERRED, SIZE),)


# Priority queues.


class PriorityQueue:
    """A priority queue: f is insert (input), poll or peek (output; null if empty).

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


FRONT, BACK = "front", "back"


# A double-ended queue.


class Deque:
    """A deque: f is push-front, push-back (input), pop-front, pop-back, peek-front or peek-back.

    The output of a pop or peek is the value; null: it found the deque empty. An indeterminate pop
    may take the value at its end at any later time, or have no effect.
    """

    name = "deque"
    fs = frozenset(f"{what}-{end}" for what in ("push", "pop", "peek") for end in (FRONT, BACK))
    observers = frozenset(f"peek-{end}" for end in (FRONT, BACK))
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first deque: empty by default, or a JSON list, its front first."""
        return first_values(self.name, text)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the deque (a tuple, front first) after `call`."""
        held: tuple[Any, ...] = state
        what, end = call.f.split("-")
        if what == "push":
            return (call.input, *held) if end == FRONT else (*held, call.input)
        if not held:
            return held if call.output in (None, UNKNOWN) else None
        if call.output is not UNKNOWN and (call.output is None or call.output != _at(held, end)):
            return None
        if what == "peek":
            return held
        return held[1:] if end == FRONT else held[:-1]

    def values(self, initial: Any) -> Values:
        """Return which operations put values and which show them."""
        return replace(DEQUE, initial=whole_numbers(initial))

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one deque's operations."""
        return put_and_take_problem(self, operations, initial, puts=("push-front", "push-back"))

    def describe_state(self, state: Any) -> str:
        """Describe what the deque holds, front first."""
        return f"the deque {format_values(state, in_order=True)}" if state else "the empty deque"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "push-front 1", "pop-back: empty"."""
        return describe_put_or_take(call)

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why a pop or peek cannot happen: "it took 2, the front is 1"."""
        what, end = call.f.split("-")
        did = "took" if what == "pop" else "saw"
        if not state:
            return f"it {did} {format_value(call.output)}, the deque is empty"
        there = f"the {end} is {format_value(_at(state, end))}"
        if call.output is None:
            return f"it found the deque empty, {len(state)} wait there, {there}"
        rest = (
            "" if call.output in state else f", and {format_value(call.output)} is not in the deque"
        )
        return f"it {did} {format_value(call.output)}, {there}{rest}"


def _at(held: tuple[Any, ...], end: str) -> Any:
    return held[0] if end == FRONT else held[-1]


PLUGINS = (
    FifoQueue(),
    UnorderedQueue(),
    PriorityQueue("priority-queue", largest_first=True),
    PriorityQueue("min-priority-queue", largest_first=False),
    Deque(),
)
