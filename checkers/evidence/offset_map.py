"""A map of a queue: what each node's log holds at the offsets of acknowledged appends. Pure.

The map is small whatever the queue's length: neighbouring offsets in the same state form one
stretch, and in long queues several offsets share a bin. A bin shows the worst state of its
offsets, so nothing that is wrong is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

BINS_MAX: Final = 480
"""Bins of a map: about two pixels each on a wide page."""
PRESENT, MISSING, OTHER = "present", "missing", "other"
STATES: Final = (PRESENT, MISSING, OTHER)
"""What a node holds at an acknowledged offset: the append, nothing, another entry; worst last."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AckedAppends:
    """The acknowledged appends of a queue: offsets, ascending, and their values."""

    offset: Ints
    value: Ints

    @classmethod
    def of(cls, operations: pa.Table) -> AckedAppends:
        """Take acknowledged appends, rows with an offset and an input."""
        offset, value = (_ints(operations[name]) for name in ("offset", "input"))
        order = np.lexsort((value, offset))
        return cls(offset[order], value[order])


@dataclass(frozen=True, slots=True)
class NodeOffsets:
    """What a node's log holds of one queue, by offset; `has_value` is False for damaged entries."""

    offset: Ints
    index: Ints
    ordinal: Ints
    value: Ints
    has_value: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, rows: pa.Table) -> NodeOffsets:
        """Take rows of a queue: index, ordinal (its number in the log), offset, value, problem."""
        rows = rows.filter(pc.is_valid(rows["offset"]))
        offset, index, ordinal = (_ints(rows[name]) for name in ("offset", "index", "ordinal"))
        has_value = pc.and_(pc.is_valid(rows["value"]), pc.is_null(rows["problem"]))
        order = np.lexsort((ordinal, offset))
        return cls(
            offset[order],
            index[order],
            ordinal[order],
            _ints(rows["value"])[order],
            np.asarray(has_value.to_numpy(), dtype=np.bool_)[order],
        )

    def at(self, offset: int) -> list[tuple[int, int]]:
        """Return (index, ordinal) of the entries at an offset."""
        low, high = np.searchsorted(self.offset, (offset, offset + 1))
        rows = zip(self.index[low:high].tolist(), self.ordinal[low:high].tolist(), strict=True)
        return list(rows)

    def last_before(self, offset: int) -> tuple[int, int, int] | None:
        """Return (index, offset, ordinal) of the last entry before an offset, None if none is."""
        row = int(np.searchsorted(self.offset, offset)) - 1
        if row < 0:
            return None
        return int(self.index[row]), int(self.offset[row]), int(self.ordinal[row])


def map_of(
    key: str, acked: AckedAppends, nodes: Mapping[str, NodeOffsets | None], limit: int | None
) -> dict[str, Any]:
    """Return the map of one queue as JSON.

    Args:
        key: the queue.
        acked: its acknowledged appends.
        nodes: what each node's log holds of it; None: nothing.
        limit: the highest committed index; entries after it are no copies (None: all are).

    Returns:
        {"key", "first", "last" (offsets), "acknowledged", "bin" (offsets a bin), "nodes": {node:
        {"counts": {state: appends}, "stretches": [[first, last offset, state, appends that are
        not present], ...]}}}.
    """
    result: dict[str, Any] = {"key": key, "acknowledged": len(acked.offset), "nodes": {}}
    if not len(acked.offset):
        return result | {"first": None, "last": None, "bin": 1}
    first, last = int(acked.offset[0]), int(acked.offset[-1])
    size = -(-(last - first + 1) // BINS_MAX)
    bins = (acked.offset - first) // size
    for node, offsets in nodes.items():
        states = _states(acked, offsets, limit)
        counts = np.bincount(states, minlength=len(STATES)).tolist()
        result["nodes"][node] = {
            "counts": dict(zip(STATES, counts, strict=True)),
            "stretches": _stretches(states, bins, first, last, size),
        }
    return result | {"first": first, "last": last, "bin": size}


def _states(acked: AckedAppends, node: NodeOffsets | None, limit: int | None) -> Ints:
    """Return the state (index in STATES) of each acknowledged append on a node."""
    states = np.full(len(acked.offset), STATES.index(MISSING), dtype=np.int64)
    if node is None or not len(node.offset):
        return states
    is_copy = np.ones(len(node.offset), dtype=np.bool_) if limit is None else node.index <= limit
    offset, value = node.offset[is_copy], node.value[is_copy]
    has_value = node.has_value[is_copy]
    low = np.searchsorted(offset, acked.offset, side="left")
    high = np.searchsorted(offset, acked.offset, side="right")
    stored = np.flatnonzero(high > low)
    row = low[stored]
    is_it = has_value[row] & (value[row] == acked.value[stored])
    states[stored] = np.where(is_it, STATES.index(PRESENT), STATES.index(OTHER))
    # An offset may be stored any number of times, and the append be any of its copies.
    is_open = ~is_it & (high[stored] - row > 1)
    if is_open.any():
        other = stored[is_open]
        near = has_value & np.isin(offset, acked.offset[other])
        is_it = _is_in(acked.offset[other], acked.value[other], offset[near], value[near])
        states[other[is_it]] = STATES.index(PRESENT)
    return states


def _is_in(
    offset: Ints, value: Ints, other_offset: Ints, other_value: Ints
) -> npt.NDArray[np.bool_]:
    """Return which pairs of offset and value are among the others."""
    _, at = np.unique(np.concatenate((offset, other_offset)), return_inverse=True)
    _, what = np.unique(np.concatenate((value, other_value)), return_inverse=True)
    pair = at * len(what) + what
    return np.isin(pair[: len(offset)], pair[len(offset) :])


def _stretches(states: Ints, bins: Ints, first: int, last: int, size: int) -> list[list[Any]]:
    """Join neighbouring bins of equal state; a bin's state is the worst of its offsets."""
    filled, starts = np.unique(bins, return_index=True)
    worst = np.maximum.reduceat(states, starts)
    wrong = np.add.reduceat((states != 0).astype(np.int64), starts)
    stretches: list[list[Any]] = []
    for number, state, count in zip(filled.tolist(), worst.tolist(), wrong.tolist(), strict=True):
        start = first + number * size
        end = min(last, start + size - 1)
        if stretches and stretches[-1][2] == STATES[state] and stretches[-1][1] == start - 1:
            stretches[-1][1] = end
            stretches[-1][3] += count
        else:
            stretches.append([start, end, STATES[state], count])
    return stretches


def _ints(column: pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(column, -1).to_numpy(), dtype=np.int64)
