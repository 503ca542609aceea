"""Says of a register's read that it is stale, where real time alone proves it.

A read is stale if the value that it returned had been written over, for certain, before it began:
one operation alone may have written that value and had taken effect, then another one was called,
and that one had taken effect before the read was called; or then another read was called, and had
returned another value before this one was called. An operation has taken effect once it has
returned, or once somebody else's answer shows its value. No search is needed to follow that, and
no reader of a report needs to know what linearizability is.

Source: Herlihy & Wing 1990, section 2 (the order of operations in real time); Jepsen's analyses,
which call such reads stale.
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
"""Of so many stale reads the stalest is looked for; a cut-off node may have given many more."""
_EVER, _NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max
_NOBODY = np.int64(-1)


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
        """Whether there may be any."""
        return self.model in MODELS and self.operations.num_rows > 0


@dataclass(frozen=True, slots=True)
class Stale:
    """A stale read, by the ids of operations.

    Attributes:
        read: the read.
        written: what wrote the value that it returned; None: it returned nothing, as at first.
        over: what wrote over that.
        since_ns: how long before the read's call that had taken effect, in ns.
        written_seen: whose answer showed the value first; None: its own return did.
        over_seen: likewise, of what wrote over it.
        is_seen_after: what wrote over it may have been called before the value stood there; the
            read that showed it was called after that.
    """

    read: int
    written: int | None
    over: int
    since_ns: int
    written_seen: int | None = None
    over_seen: int | None = None
    is_seen_after: bool = False


def stale_read(about: Register, among: Sequence[int], unsure: Collection[int] = ()) -> Stale | None:
    """Return the first of these operations that is a stale read, None if none can be shown to be.

    Args:
        about: the register, as judged.
        among: ids, in the order in which to look.
        unsure: ids of operations whose outcome is a conclusion; nothing is founded on these.
    """
    if not about.has_stale_reads:
        return None
    reads = _Reads(about.operations, unsure)
    writes = _Writes(about, reads, unsure)
    row_of = {op: row for row, op in enumerate(reads.op.tolist())}
    is_stale = writes.prove(reads)
    for op in among:
        if op in row_of and is_stale[row_of[op]]:
            return writes.told(reads, row_of[op])
    return None


def stalest_read(about: Register, unsure: Collection[int] = ()) -> Stale | None:
    """Return the read whose value had been written over longest ago, None if none is stale.

    What it takes is what `stale_read` takes.
    """
    found = [each for _, each in _stale_reads(about, unsure)]
    return max(found, key=lambda each: each.since_ns, default=None)


def first_stale_read(about: Register, unsure: Collection[int] = ()) -> tuple[int, Stale] | None:
    """Return the stale read that returned first, and when it did; None if none is stale."""
    return min(_stale_reads(about, unsure), key=lambda each: each[0], default=None)


def _stale_reads(about: Register, unsure: Collection[int]) -> list[tuple[int, Stale]]:
    """Return the first COMPARED_MAX stale reads, and when each returned."""
    if not about.has_stale_reads:
        return []
    reads = _Reads(about.operations, unsure)
    writes = _Writes(about, reads, unsure)
    rows = np.flatnonzero(writes.prove(reads))
    rows = rows[np.argsort(reads.return_ns[rows], kind="stable")][:COMPARED_MAX]
    return [(int(reads.return_ns[row]), writes.told(reads, row)) for row in rows.tolist()]


def read_of_failed(about: Register, among: Collection[int]) -> tuple[int, int] | None:
    """Return a read among these operations of what another of them was writing, which then failed.

    The read returned first: until then nobody could know that the write had failed, so what it
    read is no older value that happens to be the same.
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


def in_words(span_ns: int) -> str:
    """Say how long that is: "45.2 ms"."""
    for unit_ns, name in UNITS:
        if span_ns >= unit_ns:
            return f"{span_ns / unit_ns:,.1f} {name}"
    return f"{span_ns} ns"


class _Reads:
    """What was read for certain, of values that the column holds."""

    def __init__(self, operations: pa.Table, unsure: Collection[int]) -> None:
        is_read = pc.and_(pc.equal(operations["f"], "read"), pc.is_null(operations["extra"]))
        rows = operations.filter(pc.and_(is_read, pa.array(_is_sure(operations, unsure))))
        self.op, self.value = _ints(rows["op"]), _ints(rows["output"])
        self.is_nothing: Bools = rows["output"].is_null().to_numpy()
        self.call_ns, self.return_ns = _ints(rows["call_ns"]), _ints(rows["return_ns"])


class _Writes:
    """All that wrote or may have, and since when each had taken effect for certain."""

    def __init__(self, about: Register, reads: _Reads, unsure: Collection[int]) -> None:
        rows = _writes(about.operations)
        self._initial, self._is_number = about.initial, type(about.initial) is int
        self.op, self.call_ns = _ints(rows["op"]), _ints(rows["call_ns"])
        value, is_known = _ints(rows["input"]), rows["input"].is_valid().to_numpy()
        self._rows = np.flatnonzero(is_known)[np.argsort(value[is_known], kind="stable")]
        self._values = value[self._rows]
        returned = np.where(_is_sure(rows, unsure), _ints(rows["return_ns"]), _NEVER)
        self._seen, seen_ns = self._first_reads(reads)
        self._seen[seen_ns >= returned] = _NOBODY
        self.effect_ns = np.minimum(returned, seen_ns)

    def prove(self, reads: _Reads) -> Bools:
        """Say of each read whether real time alone shows that it is stale."""
        by_effect = np.argsort(self.effect_ns, kind="stable")
        last_call_ns = np.maximum.accumulate(np.append(_EVER, self.call_ns[by_effect]))
        before = np.searchsorted(self.effect_ns[by_effect], reads.call_ns, side="left")
        is_stale: Bools = last_call_ns[before] > self._since(reads)
        is_stale |= self._shown_after(reads) != _NOBODY
        return is_stale

    def told(self, reads: _Reads, row: int) -> Stale:
        """Say what wrote over the value of this stale read, the first that surely did."""
        is_over = (self.call_ns > self._since(reads)[row]) & (self.effect_ns < reads.call_ns[row])
        if not is_over.any():
            return self._told_by_read(reads, row)
        over = int(np.flatnonzero(is_over)[np.argmin(self.effect_ns[is_over])])
        since_ns = int(reads.call_ns[row] - self.effect_ns[over])
        read, over_op, over_seen = int(reads.op[row]), int(self.op[over]), self._seen_by(over)
        if reads.is_nothing[row]:
            return Stale(read, None, over_op, since_ns, None, over_seen)
        wrote = int(self._alone(reads.value[row : row + 1])[0])
        return Stale(read, int(self.op[wrote]), over_op, since_ns, self._seen_by(wrote), over_seen)

    def _told_by_read(self, reads: _Reads, row: int) -> Stale:
        shown = int(self._shown_after(reads)[row])
        wrote, over = (int(self._alone(reads.value[n : n + 1])[0]) for n in (row, shown))
        return Stale(
            int(reads.op[row]),
            int(self.op[wrote]),
            int(self.op[over]),
            int(reads.call_ns[row] - reads.return_ns[shown]),
            self._seen_by(wrote),
            int(reads.op[shown]),
            is_seen_after=True,
        )

    def _shown_after(self, reads: _Reads) -> Ints:
        """Return for each read the row of one that shows that its value had been written over.

        That is one of another value, called since this one's stood there, and over before.
        """
        since = self._since(reads).tolist()
        writer = np.where(reads.is_nothing, _NOBODY, self._alone(reads.value)).tolist()
        calls, returns = reads.call_ns.tolist(), reads.return_ns.tolist()
        over = [row for row in np.argsort(reads.return_ns).tolist() if writer[row] != _NOBODY]
        shown = np.full(len(calls), _NOBODY)
        newest: list[int] = []  # of those that are over: called last, of two values at most
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

    def _since(self, reads: _Reads) -> Ints:
        """Since when the value of each read stood there; never, if that is not known."""
        rows = self._alone(reads.value)
        since = np.where(rows == _NOBODY, _NEVER, np.append(self.effect_ns, _NEVER)[rows])
        return np.where(reads.is_nothing, _EVER if self._initial is None else _NEVER, since)

    def _alone(self, values: Ints) -> Ints:
        """Return the row of what alone may have written each value, _NOBODY where none is.

        What the register holds at first need not have been written at all.
        """
        begin = np.searchsorted(self._values, values, side="left")
        count = np.searchsorted(self._values, values, side="right") - begin
        is_alone = (count == 1) & (values != self._initial if self._is_number else True)
        return np.where(is_alone, np.append(self._rows, _NOBODY)[begin], _NOBODY)

    def _first_reads(self, reads: _Reads) -> tuple[Ints, Ints]:
        """Return for each row the first read to return its value, and when it did."""
        rows = np.where(reads.is_nothing, _NOBODY, self._alone(reads.value))
        by_return = np.argsort(reads.return_ns, kind="stable")
        by_return = by_return[rows[by_return] != _NOBODY]
        row, first = np.unique(rows[by_return], return_index=True)
        seen, seen_ns = (np.full(len(self.op), value) for value in (_NOBODY, _NEVER))
        seen[row] = reads.op[by_return][first]
        seen_ns[row] = reads.return_ns[by_return][first]
        return seen, seen_ns

    def _seen_by(self, row: int) -> int | None:
        seen = int(self._seen[row])
        return None if seen == _NOBODY else seen


def _ints(column: pa.ChunkedArray) -> Ints:
    """Return a column as whole numbers, 0 where there is none."""
    numbers: Ints = column.fill_null(0).to_numpy()
    return numbers


def _is_sure(operations: pa.Table, unsure: Collection[int]) -> Bools:
    """Say of each row whether it is ok by what its client was answered."""
    is_unsure = pc.is_in(operations["op"], pa.array(sorted(unsure), pa.int64()))
    is_sure: Bools = pc.and_not(pc.equal(operations["outcome"], "ok"), is_unsure).to_numpy()
    return is_sure


def _writes(operations: pa.Table) -> pa.Table:
    """Return everything that wrote, or may have: no failed ones, no cas that was refused."""
    is_refused = pc.and_(
        pc.equal(operations["f"], "cas"),
        pc.fill_null(pc.equal(operations["output"], REFUSED), False),
    )
    is_write = pc.is_in(operations["f"], pa.array(("write", "cas")))
    is_failed = pc.equal(operations["outcome"], "fail")
    return operations.filter(
        pc.and_(is_write, pc.and_(pc.invert(is_refused), pc.invert(is_failed)))
    )
