"""A counting semaphore whose acquire does not wait.

Source: Lee & Mathur 2026 (arXiv 2509.05586), non-blocking semaphore; Java's Semaphore.tryAcquire.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pyarrow as pa

from shaketable.checkers.models.encoding import (
    ABSENT,
    answered,
    load_columns,
    require_yes_or_no,
    table_problem,
)
from shaketable.checkers.models.model import UNKNOWN, Call
from shaketable.checkers.search.problem import Problem, State
from shaketable.harness.contracts.errors import UsageError


class Permits(NamedTuple):
    """How many permits are free, and how many there are at most; None: no limit."""

    free: int
    most: int | None = None


class Semaphore:
    """A semaphore: f is acquire or release; the output of either is 0 if it was refused.

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


PLUGIN = Semaphore()
