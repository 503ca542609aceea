"""Proves which operations make a history non-linearizable, before a finding accuses them.

Linearizability is prefix-closed. So a history that is not linearizable has a first return that no
linearization passes: the prefix up to it, with the operations open then indeterminate, has no
linearization; the prefix up to the return before has one. An operation that returned at that
moment is accused if the prefix without it is linearizable. Every other operation fails one of the
two: up to its own return there is a linearization, or without it there still is none.

Removing one operation may not be enough: a cas that was open for long and answered "no" after
others had read what it would have written. Then the smallest set is accused that contains an
operation of that return and without which the prefix is linearizable. Such a set lies within what
returned while that operation was open, since what had returned before its call is linearizable by
itself. If there are too many sets to try, a minimal one is searched there.

An operation that failed had no effect, but that is known only from its return on: before, it is
open like any other.

Source: Herlihy & Wing 1990 (linearizability is prefix-closed); Zeller & Hildebrandt 2002 (ddmin)
for minimal sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.search.problem import NEVER, Ints
from shaketable.harness.contracts.verdict import Outcome

ACCUSED_MAX: Final = 16
"""The largest set of operations that a finding names; a larger one explains nothing."""
TRIES_MAX: Final = 400
"""Sets that are tried one by one, smallest first, before a large one is shrunk instead."""
DECISIONS_MAX: Final = 1_000
"""Histories that are decided for one accusation, at most."""
OF_DECISIONS: Final = f"{DECISIONS_MAX:,} decisions"
OF_SIZE: Final = f"{ACCUSED_MAX} operations"

Judge = Callable[[pa.Table], tuple[Outcome, str]]
"""(operations) -> whether they are linearizable; the exhausted budget if that is UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Accused:
    """The operations that are proven to be at fault.

    Attributes:
        ops: their ids: successful ones first, of these the last to return first; empty if no
            operation could be named.
        until_ns: the first return that no linearization passes, None if that is not known.
        history: the history up to then, as it was known then.
        why: the limit that was reached if no operation could be named; "" otherwise.
    """

    ops: tuple[int, ...]
    until_ns: int | None
    history: pa.Table
    why: str = ""


class _LimitError(Exception):
    """A limit was reached; the message is its name."""


def accuse(operations: pa.Table, judge: Judge, hint_ns: int | None = None) -> Accused:
    """Find the operations at fault in a history that is not linearizable, and prove it.

    Args:
        operations: rows of OPERATIONS of one object, as recorded.
        judge: decides histories of that object.
        hint_ns: about when the first return is that no linearization passes.
    """
    trial = _Trial(operations, judge)
    try:
        until_ns = trial.first_impassable(hint_ns)
    except _LimitError as limit:
        return Accused((), None, operations, str(limit))
    history = prefix_until(operations, until_ns)
    try:
        return Accused(trial.at_fault(history, until_ns), until_ns, history)
    except _LimitError as limit:
        return Accused((), until_ns, history, str(limit))


def prefix_until(operations: pa.Table, until_ns: int) -> pa.Table:
    """Return the history up to a moment, as it was known then.

    Operations that had not returned are indeterminate. Intervals are closed: calls and returns at
    that moment are included.
    """
    table = operations.filter(pc.less_equal(operations["call_ns"], until_ns))
    return _left_open(table, pc.fill_null(pc.greater(table["return_ns"], until_ns), False))


def _left_open(table: pa.Table, is_open: pa.ChunkedArray) -> pa.Table:
    """Return a history in which some operations have not returned."""
    nothing = pa.scalar(None, pa.int64())
    for name, instead in (
        ("outcome", pa.scalar("info")), ("return_ns", nothing), ("output", nothing),
    ):  # fmt: skip
        place = table.schema.get_field_index(name)
        column = pc.if_else(is_open, instead, table[name])
        table = table.set_column(place, table.schema.field(place), column)
    return table


def without(operations: pa.Table, ops: Sequence[int]) -> pa.Table:
    """Return a history without some operations, as if they had never been called."""
    taken = pa.array(sorted(ops), pa.int64())
    return operations.filter(pc.invert(pc.is_in(operations["op"], taken)))


class _Trial:
    """Decides histories for one accusation, and counts the decisions."""

    def __init__(self, operations: pa.Table, judge: Judge) -> None:
        self._operations, self._judge = operations, judge
        self._left = DECISIONS_MAX

    def is_linearizable(self, operations: pa.Table) -> bool:
        """Return whether a history is linearizable.

        Raises:
            _LimitError: a budget was exhausted before that was decided.
        """
        if not self._left:
            raise _LimitError(OF_DECISIONS)
        self._left -= 1
        outcome, why = self._judge(operations)
        if outcome is Outcome.UNKNOWN:
            raise _LimitError(why)
        return outcome is Outcome.VALID

    def first_impassable(self, hint_ns: int | None) -> int:
        """Find the first return that no linearization passes; none passes the last one.

        Linearizability is prefix-closed, so passable returns come first: search from the
        hint with growing strides, then bisect.
        """
        returns = np.unique(_ints(_returned(self._operations), "return_ns"))
        low, high = -1, len(returns) - 1  # passable up to low, impassable from high on
        at = high if hint_ns is None else int(np.searchsorted(returns, hint_ns))
        stride = 1
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            if self.is_linearizable(prefix_until(self._operations, int(returns[at]))):
                low = at
                at = min(low + stride, (low + high) // 2)
            else:
                high = at
                at = max(high - stride, (low + high) // 2)
            stride *= 2
        return int(returns[high])

    def at_fault(self, history: pa.Table, until_ns: int) -> tuple[int, ...]:
        """Return the smallest set, with an operation of that return, that has to be removed.

        Without it the history is linearizable. If there are too many sets to try, return a minimal
        one: no member but the one of that return can be put back.
        """
        known = _returned(history)
        return_ns, failed = _ints(known, "return_ns"), known["outcome"].to_numpy() == "fail"
        rows = np.lexsort((known["op"].to_numpy(), -return_ns))  # the last ones first
        ops = known["op"].to_numpy()[rows].tolist()
        last = self._causes_first(history, ops[: int((return_ns == until_ns).sum())])
        found = self._smallest_set(history, ops, last)
        if not found:
            found = self._minimal_set(history, known.take(rows), last)
        if len(found) > ACCUSED_MAX:
            raise _LimitError(OF_SIZE)
        order = known["op"].to_numpy()[rows[np.argsort(failed[rows], kind="stable")]].tolist()
        return tuple(op for op in order if op in found)

    def _causes_first(self, history: pa.Table, last: list[int]) -> list[int]:
        """Sort operations that returned at once: first whose return alone is too much."""

        def is_harmless(op: int) -> bool:
            others = pa.array([other for other in last if other != op], pa.int64())
            return self.is_linearizable(_left_open(history, pc.is_in(history["op"], others)))

        return sorted(last, key=is_harmless) if 1 < len(last) <= ACCUSED_MAX else last

    def _smallest_set(self, history: pa.Table, ops: list[int], last: list[int]) -> tuple[int, ...]:
        """Try sets of `ops` with one of `last` each; return () after TRIES_MAX without success."""
        for chosen in _sets(ops, last):
            if self.is_linearizable(without(history, chosen)):
                return chosen
        return ()

    def _minimal_set(self, history: pa.Table, known: pa.Table, last: list[int]) -> tuple[int, ...]:
        """Shrink what returned while one of `last` was open; `known` has the last returns first.

        What was read of an operation that failed has no source without it: where the history is
        not linearizable without those, what returned since the first of their calls goes, too.
        """
        ops = known["op"].to_pylist()
        calls, returns = _ints(known, "call_ns"), _ints(known, "return_ns")
        one, taken = last[0], 0
        since_ns = calls[ops.index(one)]
        while True:
            count = int((returns >= since_ns).sum())
            taken = count if count > taken else len(ops)
            if taken == len(ops) or self.is_linearizable(without(history, ops[:taken])):
                break
            since_ns = calls[:taken].min()
        found = self._shrink(history, one, [op for op in ops[:taken] if op != one])
        rest = tuple(op for op in found if op != one)
        is_spare = not set(rest).isdisjoint(last) and self.is_linearizable(without(history, rest))
        return rest if is_spare else found

    def _shrink(self, history: pa.Table, one: int, pool: list[int]) -> tuple[int, ...]:
        """Shrink a set by ddmin: the history without `one` and `pool` is linearizable.

        Returns a set with `one` of which no other member can be put back into the history.
        """
        size = max(1, len(pool) // 2)
        while True:
            start, is_shrunk = 0, False
            while start < len(pool):
                fewer = pool[:start] + pool[start + size :]
                if self.is_linearizable(without(history, (one, *fewer))):
                    pool, is_shrunk = fewer, True
                else:
                    start += size
            if size == 1 and not is_shrunk:
                return (one, *pool)
            size = max(1, size // 2)


def _sets(ops: list[int], last: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield sets of one of `last` and some others, by size: all of a size, or none of it."""
    left = TRIES_MAX
    for size in range(len(ops)):
        left -= len(last) * comb(len(ops) - 1, size)
        if left < 0 and size:
            return
        for one in last:
            for others in combinations([op for op in ops if op != one], size):
                yield (one, *others)


def _returned(operations: pa.Table) -> pa.Table:
    """Return the operations of known outcome: ok or failed, with the time of their return."""
    is_known = pc.is_in(operations["outcome"], pa.array(("ok", "fail")))
    return operations.filter(pc.and_(is_known, pc.is_valid(operations["return_ns"])))


def _ints(operations: pa.Table, name: str) -> Ints:
    return np.asarray(operations[name].fill_null(NEVER).to_numpy(), dtype=np.int64)
