"""Proves which operations of a history are at fault, before anybody is told so.

A history that is not linearizable has a first return that no order gets past: what had been called
until then, with what is open then of unknown outcome, has no order; what had returned before has
one. Whoever returned at that moment is accused if all of this has an order once that operation is
taken out. Every other operation fails one of the two: until its own return there is an order, or
without it there still is none.

It may be that no single operation can be taken out: a cas that was open for long and answered "no"
after others had read what it would have put. Then the smallest set is accused that ends at that
return and without which the rest has an order. Such a set lies within what returned while that
operation was open, for what had returned before it was called has an order by itself; where
there are too many to try all sets, it is sought there.

An operation that failed certainly did not happen, and that is known from its return on: before,
it is open like any other.

Source: Herlihy & Wing 1990 (linearizability is closed under prefixes); Zeller & Hildebrandt 2002
(ddmin) for sets that no part can be left out of.
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
"""Operations of a set that is named; a larger one tells nobody anything."""
TRIES_MAX: Final = 400
"""Sets that are tried one by one, from the smallest on, before a larger one is made smaller."""
DECISIONS_MAX: Final = 1_000
"""Histories that are decided for one accusation."""
OF_DECISIONS: Final = f"{DECISIONS_MAX:,} decisions"
OF_SIZE: Final = f"{ACCUSED_MAX} operations"

Judge = Callable[[pa.Table], tuple[Outcome, str]]
"""(operations) -> whether they are linearizable, and which budget was used up if that is open."""


@dataclass(frozen=True, slots=True)
class Accused:
    """Who is at fault, proven.

    Attributes:
        ops: ids of the operations, those of known outcome first, the last to return first of
            these; empty where nobody could be named.
        until_ns: the first return that no order gets past, None where that is not known.
        history: what had been called until then, as it was known then.
        why: which limit was reached where nobody could be named; "" otherwise.
    """

    ops: tuple[int, ...]
    until_ns: int | None
    history: pa.Table
    why: str = ""


class _SpentError(Exception):
    """A limit was reached; its text is the limit's name."""


def accuse(operations: pa.Table, judge: Judge, hint_ns: int | None = None) -> Accused:
    """Find out who is at fault in a history that is not linearizable, and prove it.

    Args:
        operations: rows of OPERATIONS of one object, as recorded.
        judge: decides histories of that object.
        hint_ns: about when the first return that no order gets past may have been.
    """
    trial = _Trial(operations, judge)
    try:
        until_ns = trial.first_impassable(hint_ns)
    except _SpentError as spent:
        return Accused((), None, operations, str(spent))
    history = upto(operations, until_ns)
    try:
        return Accused(trial.at_fault(history, until_ns), until_ns, history)
    except _SpentError as spent:
        return Accused((), until_ns, history, str(spent))


def upto(operations: pa.Table, until_ns: int) -> pa.Table:
    """Return what was called until a moment, as it was known then.

    What had not returned is of unknown outcome. Intervals are closed: what is called at that
    moment is there, and what returns then has returned.
    """
    table = operations.filter(pc.less_equal(operations["call_ns"], until_ns))
    is_open = pc.fill_null(pc.greater(table["return_ns"], until_ns), False)
    nothing = pa.scalar(None, pa.int64())
    for name, instead in (
        ("outcome", pa.scalar("info")), ("return_ns", nothing), ("output", nothing),
    ):  # fmt: skip
        place = table.schema.get_field_index(name)
        column = pc.if_else(is_open, instead, table[name])
        table = table.set_column(place, table.schema.field(place), column)
    return table


def without(operations: pa.Table, ops: Sequence[int]) -> pa.Table:
    """Return a history as if some operations had never been called."""
    taken = pa.array(sorted(ops), pa.int64())
    return operations.filter(pc.invert(pc.is_in(operations["op"], taken)))


class _Trial:
    """Decides histories for one accusation, and counts them."""

    def __init__(self, operations: pa.Table, judge: Judge) -> None:
        self._operations, self._judge = operations, judge
        self._left = DECISIONS_MAX

    def has_order(self, operations: pa.Table) -> bool:
        """Say whether a history is linearizable.

        Raises:
            _SpentError: a budget does not suffice to say so.
        """
        if not self._left:
            raise _SpentError(OF_DECISIONS)
        self._left -= 1
        outcome, why = self._judge(operations)
        if outcome is Outcome.UNKNOWN:
            raise _SpentError(why)
        return outcome is Outcome.VALID

    def first_impassable(self, hint_ns: int | None) -> int:
        """Find the first return that no order gets past; nothing gets past the last one."""
        returns = np.unique(_ints(_returned(self._operations), "return_ns"))
        low, high = -1, len(returns) - 1  # can be passed; cannot
        at = high if hint_ns is None else int(np.searchsorted(returns, hint_ns))
        stride = 1
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            if self.has_order(upto(self._operations, int(returns[at]))):
                low = at
                at = min(low + stride, (low + high) // 2)
            else:
                high = at
                at = max(high - stride, (low + high) // 2)
            stride *= 2
        return int(returns[high])

    def at_fault(self, history: pa.Table, until_ns: int) -> tuple[int, ...]:
        """Return the smallest set that ends at that return and without which there is an order.

        Where there are too many to try them all, one that none can be left out of.
        """
        known = _returned(history)
        return_ns, failed = _ints(known, "return_ns"), known["outcome"].to_numpy() == "fail"
        rows = np.lexsort((known["op"].to_numpy(), -return_ns))  # the last ones first
        ops = known["op"].to_numpy()[rows].tolist()
        last = ops[: int((return_ns == until_ns).sum())]
        found = self._smallest(history, ops, last)
        if not found:
            began = _ints(known, "call_ns")[rows][: len(last)]
            one = last[int(np.argmax(began))]
            beside = ops[: int((return_ns >= began.max()).sum())]
            found = self._smaller(history, one, [op for op in beside if op != one])
        if len(found) > ACCUSED_MAX:
            raise _SpentError(OF_SIZE)
        order = known["op"].to_numpy()[rows[np.argsort(failed[rows], kind="stable")]].tolist()
        return tuple(op for op in order if op in found)

    def _smallest(self, history: pa.Table, ops: list[int], last: list[int]) -> tuple[int, ...]:
        """Try sets of `ops`, with one of `last` each; () where that takes more than TRIES_MAX."""
        for chosen in _sets(ops, last):
            if self.has_order(without(history, chosen)):
                return chosen
        return ()

    def _smaller(self, history: pa.Table, one: int, pool: list[int]) -> tuple[int, ...]:
        """Leave out parts of a pool without which, and without `one`, there is an order.

        Returns a set that none but `one` can be left out of.
        """
        size = max(1, len(pool) // 2)
        while True:
            begin, is_smaller = 0, False
            while begin < len(pool):
                fewer = pool[:begin] + pool[begin + size :]
                if self.has_order(without(history, (one, *fewer))):
                    pool, is_smaller = fewer, True
                else:
                    begin += size
            if size == 1 and not is_smaller:
                return (one, *pool)
            size = max(1, size // 2)


def _sets(ops: list[int], last: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield sets of one of `last` and some others, all of a size or none of it."""
    left = TRIES_MAX
    for size in range(len(ops)):
        left -= len(last) * comb(len(ops) - 1, size)
        if left < 0 and size:
            return
        for one in last:
            for others in combinations([op for op in ops if op != one], size):
                yield (one, *others)


def _returned(operations: pa.Table) -> pa.Table:
    """Return what is known to have happened or not, and since when."""
    is_known = pc.is_in(operations["outcome"], pa.array(("ok", "fail")))
    return operations.filter(pc.and_(is_known, pc.is_valid(operations["return_ns"])))


def _ints(operations: pa.Table, name: str) -> Ints:
    return np.asarray(operations[name].fill_null(NEVER).to_numpy(), dtype=np.int64)
