"""Finds stale reads of a register: those that real-time precedence alone proves wrong.

A read is stale if the value that it returned had certainly been overwritten before its call. Only
one operation can have written that value, and it had taken effect; after that a second write was
called and had taken effect before the read's call. Or after that another read was called, and had
returned another value before the read's call. A write has certainly taken effect once it has
returned, or once a read has returned its value. This needs no search, and readers of a report need
not know linearizability to follow it.

Source: Herlihy & Wing 1990, section 2 (precedence in real time); Jepsen's analyses, which call
such reads stale.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.models.register import REFUSED
from shaketable.checkers.search.problem import Bools, Ints

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
        self.op, self.value = _ints(rows["op"]), _ints(rows["output"])
        self.is_nothing: Bools = rows["output"].is_null().to_numpy()
        self.call_ns, self.return_ns = _ints(rows["call_ns"]), _ints(rows["return_ns"])


class _Writes:
    """All writes that took effect or may have, and when each certainly had taken effect."""

    def __init__(self, about: Register, reads: _Reads, inferred: Collection[int]) -> None:
        rows = _writes(about.operations)
        self._initial, self._is_number = about.initial, type(about.initial) is int
        self.op, self.call_ns = _ints(rows["op"]), _ints(rows["call_ns"])
        value, is_known = _ints(rows["input"]), rows["input"].is_valid().to_numpy()
        self._rows = np.flatnonzero(is_known)[np.argsort(value[is_known], kind="stable")]
        self._values = value[self._rows]
        returned = np.where(_is_certain(rows, inferred), _ints(rows["return_ns"]), _NEVER)
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


def _ints(column: pa.ChunkedArray) -> Ints:
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
