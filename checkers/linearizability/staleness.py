"""Says of a register's read that it is stale, where real time alone proves it.

A read is stale if the value that it returned had been written over, for certain, before it began:
one operation alone wrote that value, another one was called after that had returned, and had
returned itself before the read was called. No search is needed to follow that, and no reader of a
report needs to know what linearizability is.

Source: Herlihy & Wing 1990, section 2 (the order of operations in real time); Jepsen's analyses,
which call such reads stale.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.models.register import REFUSED

MODELS = frozenset(("register", "cas-register"))
UNITS = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))


@dataclass(frozen=True, slots=True)
class Stale:
    """A stale read, by the ids of operations.

    Attributes:
        read: the read.
        written: what wrote the value that it returned; None: it returned nothing, as at first.
        over: what wrote over that.
        since_ns: how long before the read's call that had been acknowledged, in ns.
    """

    read: int
    written: int | None
    over: int
    since_ns: int


def stale_read(
    model: str, operations: pa.Table, among: Sequence[int], unsure: Collection[int] = ()
) -> Stale | None:
    """Return the first of these operations that is a stale read, None if none can be shown to be.

    Args:
        model: by which the history is judged; only registers have such reads.
        operations: the rows of OPERATIONS of one register, as judged.
        among: ids, in the order in which to look.
        unsure: ids of operations whose outcome is a conclusion; nothing is founded on these.
    """
    if model not in MODELS or not len(operations):
        return None
    wanted = pc.and_(
        pc.is_in(operations["op"], pa.array(among, pa.int64())), _is_ok(operations, "read")
    )
    reads = {row["op"]: row for row in operations.filter(wanted).to_pylist()}
    if not reads:
        return None
    writes = _writes(operations)
    sure = writes.filter(
        pc.and_(
            pc.equal(writes["outcome"], "ok"),
            pc.invert(pc.is_in(writes["op"], pa.array(sorted(unsure), pa.int64()))),
        )
    )
    for op in among:
        row = reads.get(op)
        if row is not None and row["extra"] is None and op not in unsure:
            found = _stale(row, writes, sure)
            if found is not None:
                return found
    return None


def in_words(span_ns: int) -> str:
    """Say how long that is: "45.2 ms"."""
    for unit_ns, name in UNITS:
        if span_ns >= unit_ns:
            return f"{span_ns / unit_ns:,.1f} {name}"
    return f"{span_ns} ns"


def _is_ok(operations: pa.Table, f: str) -> Any:
    return pc.and_(pc.equal(operations["f"], f), pc.equal(operations["outcome"], "ok"))


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


def _stale(read: dict[str, Any], writes: pa.Table, sure: pa.Table) -> Stale | None:
    """Say what wrote over the value of this read, the first that surely did."""
    value = read["output"]
    after_ns, written = -1, None
    if value is not None:
        wrote = writes.filter(pc.equal(writes["input"], value))
        if len(wrote) != 1 or not pc.is_in(wrote["op"], sure["op"].combine_chunks())[0].as_py():
            return None
        written, after_ns = wrote["op"][0].as_py(), wrote["return_ns"][0].as_py()
    call_ns, return_ns = (sure[name].to_numpy() for name in ("call_ns", "return_ns"))
    is_over = (call_ns > after_ns) & (return_ns < read["call_ns"])
    if not is_over.any():
        return None
    first = int(np.flatnonzero(is_over)[np.argmin(return_ns[is_over])])
    since_ns = read["call_ns"] - int(return_ns[first])
    return Stale(read["op"], written, sure["op"][first].as_py(), since_ns)
