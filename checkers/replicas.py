"""What the nodes' logs hold of one queue, laid out so that appends can be looked up in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.plugins import CheckContext

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
NOWHERE = -1
"""In a table of log indices: the entry is not there."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The acknowledged appends of one queue, in the order of their ids.

    `values` and `writers` say which append (op id, any outcome) carried which value, by
    value; `repeated` are the values that more than one append carried.
    """

    key: str | None
    op: Ints
    process: Ints
    value: Ints
    offset: Ints
    acknowledged_ns: Ints
    node: tuple[str | None, ...]
    values: Ints
    writers: Ints
    repeated: Ints

    def writer_of(self, value: int) -> int | None:
        """Return the id of the append that carried `value`, if any did."""
        at = int(np.searchsorted(self.values, value))
        if at == len(self.values) or self.values[at] != value:
            return None
        return int(self.writers[at])


@dataclass(frozen=True, slots=True)
class Replica:
    """One node's entries of one queue, intact and in order of (offset, index).

    `committed` is the index up to which its entries count: what the node said, or for a
    node that did not answer, the highest that any other said. `damaged` are the rows of
    ENTRIES that have a problem.
    """

    node: str
    is_live: bool
    committed: int
    offset: Ints
    index: Ints
    value: Ints
    has_value: Bools
    damaged: pa.Table

    def at(self, offset: int) -> range:
        """Return the rows that stand at an offset of the queue; one, in a sound log."""
        first, behind = np.searchsorted(self.offset, (offset, offset + 1))
        return range(int(first), int(behind))

    def find(self, offsets: Ints, values: Ints) -> Ints:
        """Return the log index at which each (offset, value) stands, or NOWHERE."""
        found = np.full(len(offsets), NOWHERE, dtype=np.int64)
        if not len(self.offset):
            return found
        first = np.searchsorted(self.offset, offsets, side="left")
        behind = np.searchsorted(self.offset, offsets, side="right")
        row = np.minimum(first, len(self.offset) - 1)
        fits = (first < behind) & self.has_value[row] & (self.value[row] == values)
        found[fits] = self.index[row[fits]]
        for n in np.flatnonzero(~fits & (behind - first > 1)):  # an offset that was given twice
            for other in range(int(first[n]), int(behind[n])):
                if self.has_value[other] and self.value[other] == values[n]:
                    found[n] = self.index[other]
                    break
        return found

    def offsets_of(self, value: int) -> list[int]:
        """Return the offsets at which a value stands."""
        return [int(o) for o in self.offset[self.has_value & (self.value == value)]]

    def values_twice(self) -> Ints:
        """Return the values that stand at more than one place up to the committed index."""
        counted = self.value[self.has_value & (self.index <= self.committed)]
        values, times = np.unique(counted, return_counts=True)
        return np.asarray(values[times > 1], dtype=np.int64)


def load_acknowledged(operations: pa.Table) -> Acknowledged:
    """Take the appends out of one queue's operations.

    Raises:
        ValueError: an acknowledged append lacks its offset, value or return.
    """
    appends = operations.filter(pc.equal(operations["f"], "append")).sort_by("op")
    maybe = appends.filter(pc.not_equal(appends["outcome"], "fail"))
    maybe = maybe.filter(pc.is_valid(maybe["input"]))
    acked = appends.filter(pc.equal(appends["outcome"], "ok"))
    for name in ("offset", "input", "return_ns"):
        if acked[name].null_count:
            op = acked.filter(pc.is_null(acked[name]))["op"][0]
            raise ValueError(f"append {op} is ok but lacks its {name}")
    order = np.argsort(_ints(maybe["input"]), kind="stable")
    values = _ints(maybe["input"])[order]
    return Acknowledged(
        key=acked["key"][0].as_py() if acked.num_rows else None,
        op=_ints(acked["op"]),
        process=_ints(acked["process"]),
        value=_ints(acked["input"]),
        offset=_ints(acked["offset"]),
        acknowledged_ns=_ints(acked["return_ns"]),
        node=tuple(acked["node"].to_pylist()),
        values=values,
        writers=_ints(maybe["op"])[order],
        repeated=np.unique(values[1:][values[1:] == values[:-1]]),
    )


def load_replicas(entries: pa.Table, context: CheckContext) -> list[Replica]:
    """Split one queue's entries by node; every node of the group has a replica."""
    committed_max = max(context.committed.values(), default=NOWHERE)
    replicas = []
    for node in context.nodes:
        mine = entries.filter(pc.equal(entries["node"], node))
        intact = pc.and_(pc.is_null(mine["problem"]), pc.is_valid(mine["offset"]))
        rows = mine.filter(intact)
        order = np.lexsort((_ints(rows["index"]), _ints(rows["offset"])))
        replicas.append(
            Replica(
                node=node,
                is_live=node in context.committed,
                committed=context.committed.get(node, committed_max),
                offset=_ints(rows["offset"])[order],
                index=_ints(rows["index"])[order],
                value=_ints(rows["value"])[order],
                has_value=np.asarray(pc.is_valid(rows["value"]).to_numpy(), np.bool_)[order],
                damaged=mine.filter(pc.is_valid(mine["problem"])).sort_by("position"),
            )
        )
    return replicas


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)
