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

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.register import REFUSED
from shaketable.checkers.search.problem import NEVER, Bools, Ints
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


# Finds stale reads of a register: those that real-time precedence alone proves wrong.
#
# A read is stale if the value that it returned had certainly been overwritten before its call.
# Only one operation can have written that value, and it had taken effect; after that a second
# write was called and had taken effect before the read's call. Or after that another read was
# called, and had returned another value before the read's call. A write has certainly taken
# effect once it has returned, or once a read has returned its value. This needs no search, and
# readers of a report need not know linearizability to follow it.
#
# Source: Herlihy & Wing 1990, section 2 (precedence in real time); Jepsen's analyses, which call
# such reads stale.

MODELS = frozenset(("register", "cas-register"))
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
COMPARED_MAX = 1_000
"""Stale reads among which the stalest is searched; an isolated node may serve many more."""
_EVER, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NONE = np.int64(-1)


@dataclass(frozen=True, slots=True)
class Register:
    """A register's history.

    Attributes:
        model: the name of the model by which it is judged; only registers have stale reads.
        operations: its rows of OPERATIONS.
        initial: what the register holds at first; None for nothing.
    """

    model: str
    operations: pa.Table
    initial: object = None

    @property
    def has_stale_reads(self) -> bool:
        """Whether stale reads are defined for it: a register with operations."""
        return self.model in MODELS and self.operations.num_rows > 0


@dataclass(frozen=True, slots=True)
class Stale:
    """A stale read, by the ids of operations.

    Attributes:
        read: the read.
        written: the write of the value that it returned; None: it returned nothing, as at first.
        over: the write that had overwritten it.
        since_ns: how long before the read's call that had certainly taken effect, in ns.
        written_seen: the read that first showed that `written` took effect; None: its own return.
        over_seen: the same for `over`.
        is_seen_after: `over` may have been called before `written` took effect; but the read that
            showed it was called after that.
    """

    read: int
    written: int | None
    over: int
    since_ns: int
    written_seen: int | None = None
    over_seen: int | None = None
    is_seen_after: bool = False


def stale_read(
    about: Register, among: Sequence[int], inferred: Collection[int] = ()
) -> Stale | None:
    """Return the first of these operations that is proven to be a stale read, None if none is.

    Args:
        about: the register, as judged.
        among: ids, in the order in which to look.
        inferred: ids of operations whose outcome was inferred; no proof relies on their returns.
    """
    if not about.has_stale_reads:
        return None
    reads = _Reads(about.operations, inferred)
    writes = _Writes(about, reads, inferred)
    row_of = {op: row for row, op in enumerate(reads.op.tolist())}
    is_stale = writes.prove(reads)
    for op in among:
        if op in row_of and is_stale[row_of[op]]:
            return writes.explain(reads, row_of[op])
    return None


def stalest_read(about: Register, inferred: Collection[int] = ()) -> Stale | None:
    """Return the read whose value had been overwritten for the longest time, None if none is stale.

    Arguments as for `stale_read`.
    """
    found = [each for _, each in _stale_reads(about, inferred)]
    return max(found, key=lambda each: each.since_ns, default=None)


def first_stale_read(about: Register, inferred: Collection[int] = ()) -> tuple[int, Stale] | None:
    """Return the stale read that returned first, with that time; None if none is stale."""
    return min(_stale_reads(about, inferred), key=lambda each: each[0], default=None)


def _stale_reads(about: Register, inferred: Collection[int]) -> list[tuple[int, Stale]]:
    """Return the first COMPARED_MAX stale reads, each with the time of its return."""
    if not about.has_stale_reads:
        return []
    reads = _Reads(about.operations, inferred)
    writes = _Writes(about, reads, inferred)
    rows = np.flatnonzero(writes.prove(reads))
    rows = rows[np.argsort(reads.return_ns[rows], kind="stable")][:COMPARED_MAX]
    return [(int(reads.return_ns[row]), writes.explain(reads, row)) for row in rows.tolist()]


def read_of_failed(about: Register, among: Collection[int]) -> tuple[int, int] | None:
    """Return a read among these operations, and a write among them that it saw and that failed.

    The read returned before the write: until then the write could still take effect. The value may
    also be an older one that is equal: that is no matter if `among` is a smallest set of accused.
    Then the rest with the read, and without the write, has no order: so the write took effect, or
    the read is wrong.
    """
    if not about.has_stale_reads:
        return None
    rows = about.operations.filter(pc.is_in(about.operations["op"], pa.array([*among], pa.int64())))
    rows = rows.filter(pc.and_(pc.is_valid(rows["return_ns"]), pc.is_null(rows["extra"])))
    failed = rows.filter(pc.and_(pc.equal(rows["outcome"], "fail"), pc.is_valid(rows["input"])))
    reads = rows.filter(pc.and_(pc.equal(rows["f"], "read"), pc.is_valid(rows["output"])))
    for read in reads.select(["op", "output", "return_ns"]).to_pylist():
        for write in failed.select(["op", "input", "call_ns", "return_ns"]).to_pylist():
            is_its = write["input"] == read["output"] and write["call_ns"] <= read["return_ns"]
            if is_its and read["return_ns"] < write["return_ns"]:
                return read["op"], write["op"]
    return None


def format_duration(span_ns: int) -> str:
    """Format a duration: "45.2 ms"."""
    for unit_ns, name in UNITS:
        if span_ns >= unit_ns:
            return f"{span_ns / unit_ns:,.1f} {name}"
    return f"{span_ns} ns"


class _Reads:
    """The reads that are ok, not inferred, and whose value is in the column."""

    def __init__(self, operations: pa.Table, inferred: Collection[int]) -> None:
        is_read = pc.and_(pc.equal(operations["f"], "read"), pc.is_null(operations["extra"]))
        rows = operations.filter(pc.and_(is_read, pa.array(_is_certain(operations, inferred))))
        self.op, self.value = _filled(rows["op"]), _filled(rows["output"])
        self.is_nothing: Bools = rows["output"].is_null().to_numpy()
        self.call_ns, self.return_ns = _filled(rows["call_ns"]), _filled(rows["return_ns"])


class _Writes:
    """All writes that took effect or may have, and when each certainly had taken effect."""

    def __init__(self, about: Register, reads: _Reads, inferred: Collection[int]) -> None:
        rows = _writes(about.operations)
        self._initial, self._is_number = about.initial, type(about.initial) is int
        self.op, self.call_ns = _filled(rows["op"]), _filled(rows["call_ns"])
        value, is_known = _filled(rows["input"]), rows["input"].is_valid().to_numpy()
        self._rows = np.flatnonzero(is_known)[np.argsort(value[is_known], kind="stable")]
        self._values = value[self._rows]
        returned = np.where(_is_certain(rows, inferred), _filled(rows["return_ns"]), _NEVER)
        self._seen, seen_ns = self._first_reads(reads)
        self._seen[seen_ns >= returned] = _NONE
        self.effect_ns = np.minimum(returned, seen_ns)

    def prove(self, reads: _Reads) -> Bools:
        """Return for each read whether real time alone proves it stale."""
        # Of the writes that had certainly taken effect before a read's call, take the one called
        # last: if it was called after the read's value was certainly there, it overwrote it.
        by_effect = np.argsort(self.effect_ns, kind="stable")
        last_call_ns = np.maximum.accumulate(np.append(_EVER, self.call_ns[by_effect]))
        before = np.searchsorted(self.effect_ns[by_effect], reads.call_ns, side="left")
        is_stale: Bools = last_call_ns[before] > self._certain_since(reads)
        is_stale |= self._overwritten_by_read(reads) != _NONE
        return is_stale

    def explain(self, reads: _Reads, row: int) -> Stale:
        """Return the evidence for this stale read: the first write that surely overwrote it."""
        is_over = (self.call_ns > self._certain_since(reads)[row]) & (
            self.effect_ns < reads.call_ns[row]
        )
        if not is_over.any():
            return self._explain_by_read(reads, row)
        over = int(np.flatnonzero(is_over)[np.argmin(self.effect_ns[is_over])])
        since_ns = int(reads.call_ns[row] - self.effect_ns[over])
        read, over_op, over_seen = int(reads.op[row]), int(self.op[over]), self._seen_by(over)
        if reads.is_nothing[row]:
            return Stale(read, None, over_op, since_ns, None, over_seen)
        wrote = int(self._only_write(reads.value[row : row + 1])[0])
        return Stale(read, int(self.op[wrote]), over_op, since_ns, self._seen_by(wrote), over_seen)

    def _explain_by_read(self, reads: _Reads, row: int) -> Stale:
        shown = int(self._overwritten_by_read(reads)[row])
        wrote, over = (int(self._only_write(reads.value[n : n + 1])[0]) for n in (row, shown))
        return Stale(
            int(reads.op[row]),
            int(self.op[wrote]),
            int(self.op[over]),
            int(reads.call_ns[row] - reads.return_ns[shown]),
            self._seen_by(wrote),
            int(reads.op[shown]),
            is_seen_after=True,
        )

    def _overwritten_by_read(self, reads: _Reads) -> Ints:
        """Return for each read the row of another that proves its value had been overwritten.

        That one returned another value, was called after this one's value was certainly there, and
        had returned before this read's call.
        """
        since = self._certain_since(reads).tolist()
        writer = np.where(reads.is_nothing, _NONE, self._only_write(reads.value)).tolist()
        calls, returns = reads.call_ns.tolist(), reads.return_ns.tolist()
        over = [row for row in np.argsort(reads.return_ns).tolist() if writer[row] != _NONE]
        shown = np.full(len(calls), _NONE)
        # Of the reads that have returned, the one called last, and the last with another value:
        # whatever this read returned, one of the two has a different value.
        newest: list[int] = []
        at = 0
        for row in np.argsort(reads.call_ns).tolist():
            while at < len(over) and returns[over[at]] < calls[row]:
                both = sorted([*newest, over[at]], key=lambda each: -calls[each])
                newest = both[:1] + [x for x in both if writer[x] != writer[both[0]]][:1]
                at += 1
            for other in newest:
                if writer[other] != writer[row] and calls[other] > since[row]:
                    shown[row] = other
                    break
        return shown

    def _certain_since(self, reads: _Reads) -> Ints:
        """Return when the value of each read was certainly there; _NEVER if that is not known."""
        rows = self._only_write(reads.value)
        since = np.where(rows == _NONE, _NEVER, np.append(self.effect_ns, _NEVER)[rows])
        return np.where(reads.is_nothing, _EVER if self._initial is None else _NEVER, since)

    def _only_write(self, values: Ints) -> Ints:
        """Return the row of the only write of each value, _NONE if there is none or several.

        The initial value may not have been written at all, so it has none.
        """
        start = np.searchsorted(self._values, values, side="left")
        count = np.searchsorted(self._values, values, side="right") - start
        is_only = (count == 1) & (values != self._initial if self._is_number else True)
        return np.where(is_only, np.append(self._rows, _NONE)[start], _NONE)

    def _first_reads(self, reads: _Reads) -> tuple[Ints, Ints]:
        """Return for each write the first read to return its value, and the time of that return."""
        rows = np.where(reads.is_nothing, _NONE, self._only_write(reads.value))
        by_return = np.argsort(reads.return_ns, kind="stable")
        by_return = by_return[rows[by_return] != _NONE]
        row, first = np.unique(rows[by_return], return_index=True)
        seen, seen_ns = (np.full(len(self.op), value) for value in (_NONE, _NEVER))
        seen[row] = reads.op[by_return][first]
        seen_ns[row] = reads.return_ns[by_return][first]
        return seen, seen_ns

    def _seen_by(self, row: int) -> int | None:
        seen = int(self._seen[row])
        return None if seen == _NONE else seen


def _filled(column: pa.ChunkedArray) -> Ints:
    """Return a column as whole numbers, 0 where there is none."""
    numbers: Ints = column.fill_null(0).to_numpy()
    return numbers


def _is_certain(operations: pa.Table, inferred: Collection[int]) -> Bools:
    """Return for each row whether its client got the answer ok: its outcome was not inferred."""
    is_inferred = pc.is_in(operations["op"], pa.array(sorted(inferred), pa.int64()))
    is_certain: Bools = pc.and_not(pc.equal(operations["outcome"], "ok"), is_inferred).to_numpy()
    return is_certain


def _writes(operations: pa.Table) -> pa.Table:
    """Return the writes that took effect or may have: no failed ones, no refused cas."""
    is_refused = pc.and_(
        pc.equal(operations["f"], "cas"),
        pc.fill_null(pc.equal(operations["output"], REFUSED), False),
    )
    is_write = pc.is_in(operations["f"], pa.array(("write", "cas")))
    is_failed = pc.equal(operations["outcome"], "fail")
    return operations.filter(
        pc.and_(is_write, pc.and_(pc.invert(is_refused), pc.invert(is_failed)))
    )
