"""Decides the registers of a whole file of operations at once, if they are simple enough.

Most keys of a large history are small, with few concurrent clients: those are decided exactly in
compiled code (checkers.kernels.open_sets), without a table of their own. All others, and those
that are not linearizable, are left to the checker, key by key: it has the search and explains
violations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shaketable.checkers.kernels.open_sets import (
    CAS,
    LINEARIZABLE,
    NEVER,
    NOT,
    READ,
    SKIPPED,
    UNFIT,
    WRITE,
    decide,
)
from shaketable.checkers.search.problem import Bools, Ints

NOTHING = int(np.iinfo(np.int64).min)
"""Null among whole numbers; a key that contains or starts with this number is not decided here."""
REFUSED = 0
"""The output of a cas that found another value."""
CODES = {"read": READ, "write": WRITE, "cas": CAS}


@dataclass(frozen=True, slots=True)
class Decided:
    """Which keys are proven linearizable, and the counts of all of them together."""

    is_decided: Bools
    counts: dict[str, int]

    def others(self, operations: pa.Table, bounds: Ints) -> tuple[pa.Table, Ints]:
        """Return the operations of all other keys, and the first row of each."""
        if not self.is_decided.any():
            return operations, bounds
        sizes = np.diff(bounds)
        rows = np.flatnonzero(np.repeat(~self.is_decided, sizes))
        starts = np.concatenate([[0], np.cumsum(sizes[~self.is_decided])])
        return operations.take(pa.array(rows)), starts


def decide_registers(
    operations: pa.Table, bounds: Ints, fs: frozenset[str], initial: Any
) -> Decided:
    """Decide the keys that are small enough; a key without anything to judge is left out.

    Args:
        operations: rows of OPERATIONS_CODED, sorted by key and call_ns, in one chunk.
        bounds: key n has the rows bounds[n] to bounds[n + 1].
        fs: the operations that the model knows, of read, write and cas.
        initial: the first value; None for nothing.
    """
    if not (initial is None or _is_number(initial)):
        return Decided(np.zeros(len(bounds) - 1, np.bool_), {})
    columns = _Columns(operations)
    what, is_ok = _encode(columns, fs)
    times = np.empty((operations.num_rows, 2), np.int64)
    times[:, 0] = columns.numbers("call_ns", -1)
    times[:, 1] = np.where(is_ok, columns.numbers("return_ns", -1), NEVER)
    is_reversed = (times[:, 1] < times[:, 0]) & (what[:, 0] != SKIPPED)
    what[is_reversed, 0] = UNFIT  # the checker reports what is wrong with it
    verdicts = np.empty(len(bounds) - 1, np.int64)
    decide(bounds, what, times, NOTHING if initial is None else initial, verdicts)
    is_judged = what[:, 0] != SKIPPED
    judged = np.add.reduceat(is_judged.astype(np.int64), bounds[:-1])
    known = np.add.reduceat((is_judged & is_ok).astype(np.int64), bounds[:-1])
    is_decided = (verdicts == LINEARIZABLE) & (judged > 0)
    keys, total = int(is_decided.sum()), int(known[is_decided].sum())
    counts = {
        "partitions": keys,
        "operations": total,
        "unknown_outcomes": int(judged[is_decided].sum()) - total,
        "by_open_sets": keys,
    }
    return Decided(is_decided, counts if keys else {})


def _is_number(value: Any) -> bool:
    """Return whether the columns of numbers can hold it, and it is not the number for null."""
    return type(value) is int and NOTHING < value <= NEVER


class _Columns:
    """Columns of OPERATIONS_CODED as arrays."""

    def __init__(self, operations: pa.Table) -> None:
        self._operations = operations

    def numbers(self, name: str, null: int) -> Ints:
        """Return a column of numbers, with `null` where there is none."""
        column = _one(self._operations[name])
        return np.asarray(column.fill_null(null).to_numpy(zero_copy_only=False), dtype=np.int64)

    def is_null(self, name: str) -> Bools:
        """Return where a column holds nothing."""
        column = _one(self._operations[name])
        return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)

    def coded(self, name: str, codes: dict[str, int], other: int) -> npt.NDArray[np.int64]:
        """Return a column of texts as codes, `other` for texts that have none."""
        column = _one(self._operations[name])
        table = [codes.get(text, other) for text in column.dictionary.to_pylist()]
        numbers = column.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.asarray(np.array([*table, other], np.int64)[numbers])


def _encode(columns: _Columns, fs: frozenset[str]) -> tuple[Ints, Bools]:
    """Return (code, value needed, value left) of each operation for the kernel, and the ok ones."""
    codes = {f: code for f, code in CODES.items() if f in fs}
    code = columns.coded("f", codes, UNFIT)
    outcome = columns.coded("outcome", {"ok": 0, "fail": 1}, 2)
    is_ok = outcome == 0
    given, expected, output = (columns.numbers(n, NOTHING) for n in ("input", "expected", "output"))
    lacks = given == NOTHING
    is_unknown = code == UNFIT  # refused by the model even where it certainly failed
    is_unfit = is_unknown | ~columns.is_null("extra") | ((code != READ) & lacks)
    for name, values in (("input", given), ("expected", expected), ("output", output)):
        is_unfit |= (values == NOTHING) & ~columns.is_null(name)
    is_cas = code == CAS
    is_refused = is_cas & is_ok & (output == REFUSED)
    a = np.where(is_cas, expected, output)
    b = np.where(is_cas & ~is_refused, given, a)
    code = np.where(is_refused, NOT, code)
    code = np.where((code == CAS) & (a == b), READ, code)  # it changes nothing
    is_write = code == WRITE
    a = np.where(is_write, given, a)
    b = np.where(is_write, given, b)
    observes = (code == READ) | (code == NOT)
    code = np.where(is_unfit, UNFIT, code)
    # A failed operation had no effect; an indeterminate observer need not be linearized.
    is_out = (outcome == 1) | (observes & ~is_ok & ~is_unfit)
    code = np.where(is_out & ~is_unknown, SKIPPED, code)
    return np.stack([code, a, b], axis=1), is_ok


def _one(column: pa.ChunkedArray) -> Any:
    """Return a column's one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
