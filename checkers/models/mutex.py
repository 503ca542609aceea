"""A mutex: held from an acquire to the next release.

Source: knossos.model Mutex.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shaketable.checkers.models.encoding import load_columns, value_problem
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Access, Problem, State
from shaketable.harness.contracts.errors import UsageError

FREE, HELD = "free", "held"
_NUMBERS = {FREE: 0, HELD: 1}
REFUSED = 0
"""The output of an acquire that found the mutex held."""


class Mutex:
    """A mutex: f is acquire (output 0: it was held by another) or release.

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


PLUGIN = Mutex()
