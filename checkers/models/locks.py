"""Locks: a mutex, held from acquire to release; a semaphore whose acquire does not wait.

Source: knossos.model Mutex; Lee & Mathur 2026 (arXiv 2509.05586), non-blocking semaphore; Java's
Semaphore.tryAcquire.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import (
    ABSENT,
    answered,
    load_columns,
    require_yes_or_no,
    table_problem,
    value_problem,
)
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Access, Problem, State
from shaketable.harness.contracts.errors import UsageError

FREE, HELD = "free", "held"
_NUMBERS = {FREE: 0, HELD: 1}
REFUSED = 0
"""The output of an acquire that found the mutex held."""


class Mutex:
    """A mutex: f is acquire (output 0 if another process holds it) or release.

    The holder is not tracked: any process may release the mutex while it is held.
    """

    name = "mutex"
    fs = frozenset(("acquire", "release"))
    observers: frozenset[str] = frozenset()
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first state: "free" by default, or "held"."""
        if text is None or text in _NUMBERS:
            return text or FREE
        raise UsageError(f"{text!r} is no state of a mutex: it is free or held")

    def step(self, state: State, call: Call) -> State | None:
        """Return the mutex after `call`."""
        if call.f == "release":
            return FREE if state == HELD else None
        if call.output == REFUSED:
            return state if state == HELD else None
        return HELD if state == FREE else None

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one mutex's operations as a single-value problem: cas between free and held."""
        columns = load_columns(self, operations)
        is_release = columns.is_f("release")
        refused = ~is_release & (columns.output == columns.values.number(REFUSED))
        held, free = np.int64(_NUMBERS[HELD]), np.int64(_NUMBERS[FREE])
        access = np.where(refused, np.int64(Access.READ), np.int64(Access.CAS))
        a = np.where(is_release | refused, held, free)
        b = np.where(is_release, free, held)
        return value_problem(
            self, columns, initial, access, a, b, number=_NUMBERS[str(initial)], values=2
        )

    def describe_state(self, state: State) -> str:
        """Describe whether it is free or held."""
        return str(state)

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "acquire", "acquire: refused"."""
        if call.output is UNKNOWN:
            return f"{call.f}: ?"
        return f"{call.f}: refused" if call.output == REFUSED and call.f == "acquire" else call.f

    def why_not(self, state: State, call: Call) -> str:
        """Explain why `call` cannot happen: "it acquired the mutex, which is held"."""
        if call.f == "release":
            return "it released the mutex, which is free"
        if call.output == REFUSED:
            return "it was refused, though the mutex is free"
        return "it acquired the mutex, which is held"


# A semaphore.


class Permits(NamedTuple):
    """How many permits are free, and how many there are at most; None: no limit."""

    free: int
    most: int | None = None


class Semaphore:
    """A semaphore: f is acquire or release (output 0 if refused).

    An acquire is refused if no permit is free, a release only if there is a limit and all are.
    """

    name = "semaphore"
    fs = frozenset(("acquire", "release"))
    observers: frozenset[str] = frozenset()
    overwriters: frozenset[str] = frozenset()

    def initial(self, text: str | None) -> State:
        """Return the first permits: 0 by default, a number, or a JSON list [free, most]."""
        try:
            given = json.loads(text or "0")
        except json.JSONDecodeError:
            given = None
        counts = given if isinstance(given, list) else [given]
        if not all(type(n) is int and n >= 0 for n in counts) or len(counts) not in (1, 2):
            raise UsageError(
                f"{text!r} gives a semaphore no permits: it takes a number, or [free, most]"
            )
        return Permits(*counts)

    def step(self, state: Any, call: Call) -> State | None:
        """Return the permits after `call`; None if it cannot answer that."""
        held: Permits = state
        is_acquire = call.f == "acquire"
        can = held.free > 0 if is_acquire else held.most is None or held.free < held.most
        said = None if call.output is UNKNOWN else answered(call)
        if said is False:
            return None if can else held
        if not can:
            return held if call.output is UNKNOWN else None
        return Permits(held.free + (-1 if is_acquire else 1), held.most)

    def encode(self, operations: pa.Table, initial: State) -> Problem:
        """Encode one semaphore's operations."""
        columns = load_columns(self, operations)
        require_yes_or_no(columns, self.fs)
        is_no = (columns.output == columns.values.number(0)) | (
            columns.output == columns.values.number(False)
        )
        return table_problem(self, columns, initial, observes=is_no & (columns.output != ABSENT))

    def describe_state(self, state: Any) -> str:
        """Describe how many permits are free."""
        held: Permits = state
        most = "" if held.most is None else f" of {held.most}"
        return f"{held.free}{most} {'permit' if held.free == 1 and not most else 'permits'} free"

    def describe_call(self, call: Call) -> str:
        """Describe a call and its answer: "acquire", "acquire: refused"."""
        if call.output is UNKNOWN:
            return f"{call.f}: ?"
        return f"{call.f}: refused" if answered(call) is False else call.f

    def why_not(self, state: Any, call: Call) -> str:
        """Explain why `call` cannot happen: "it acquired a permit, none is free"."""
        there = self.describe_state(state)
        if answered(call) is False:
            return f"it was refused, though {there}"
        if call.f == "acquire":
            return "it acquired a permit, and none is free"
        return f"it released a permit, and all are free: {there}"


PLUGINS = (Mutex(), Semaphore())
