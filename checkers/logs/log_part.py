"""Acknowledged appends and their copies in the nodes' logs: one part of a history.

A part has all rows with certain values of certain keys, so it suffices to decide what became of
the appends of these values. Any split by (key, value) makes valid parts; `part_of` makes even
ones.

Tables are narrowed here, to travel between executors, and narrow tables are turned into arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.history.schema import APPENDING, ENTRIES

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

TEXT = pa.dictionary(pa.int32(), pa.string())
APPENDS = pa.schema(
    [
        ("key", TEXT),
        ("value", pa.int64()),
        ("op", pa.int64()),
        ("process", pa.int64()),
        ("offset", pa.int64()),
        ("return_ns", pa.int64()),
        ("node", TEXT),
        ("is_acked", pa.bool_()),
    ]
)
"""An append that happened or may have happened, in any order."""

COPIES = pa.schema(
    [
        ("key", TEXT),
        ("value", pa.int64()),
        ("offset", pa.int64()),
        ("index", pa.int64()),
        ("nodes", pa.int64()),  # its holders: bit n for the context's n-th node
    ]
)
"""An intact entry of a queue, in the logs of some nodes."""

NODES_MAX = 63
"""The number of nodes that fit into the bits of `nodes`."""

RUN_BITS = 12
"""Values that differ only in their last RUN_BITS bits share a part: their rows stay in order."""


@dataclass(frozen=True, slots=True)
class LogPart:
    """One part: appends in the order of their ids, copies, and the damaged entries.

    `appends` and `copies` are tables of APPENDS and COPIES; keys are numbered as in `keys`.
    `entries` counts all rows of ENTRIES that belong to the part.
    """

    keys: tuple[str | None, ...]
    appends: pa.Table
    append_key: Ints
    copies: pa.Table
    copy_key: Ints
    damaged: pa.Table
    entries: int


def narrow_operations(operations: pa.Table) -> pa.Table:
    """Return the appends that happened or may have, as a table of APPENDS.

    Those without a value are left out if they were not acknowledged.
    """
    is_append = pc.is_in(operations["f"], value_set=pa.array(APPENDING))
    maybe = pc.and_(is_append, pc.not_equal(operations["outcome"], "fail"))
    is_acked = pc.equal(operations["outcome"], "ok")
    table = operations.append_column("is_acked", is_acked)
    table = table.filter(pc.and_(maybe, pc.or_(pc.is_valid(table["input"]), is_acked)))
    columns = {"value": "input"}
    arrays = [table[columns.get(field.name, field.name)].cast(field.type) for field in APPENDS]
    return pa.table(arrays, schema=APPENDS)


def narrow_entries(entries: pa.Table, nodes: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the intact entries of queues as COPIES, and the damaged ones, of these nodes.

    Raises:
        ValueError: there are more than NODES_MAX nodes.
    """
    if len(nodes) > NODES_MAX:
        raise ValueError(f"{len(nodes)} nodes, at most {NODES_MAX} can be judged")
    place = pc.index_in(entries["node"], value_set=pa.array(nodes, pa.string()))
    intact, damaged = entries, entries.slice(0, 0)
    if entries["problem"].null_count < entries.num_rows:
        is_mine = pc.is_valid(place)
        damaged = entries.filter(pc.and_(is_mine, pc.is_valid(entries["problem"])))
    is_copy = pc.and_(pc.is_null(entries["problem"]), pc.is_valid(entries["offset"]))
    is_copy = pc.and_(is_copy, pc.is_valid(place))
    if not pc.all(is_copy, min_count=0).as_py():
        intact, place = entries.filter(is_copy), place.filter(is_copy)
    key = intact["key"].combine_chunks().dictionary_encode()
    holder = pa.array(np.int64(1) << ints(place))
    columns = [key, intact["value"], intact["offset"], intact["index"], holder]
    return pa.table(columns, schema=COPIES), damaged


def merge_copies(logs: Sequence[pa.Table]) -> pa.Table:
    """Merge what several nodes' logs hold at the same indices: equal entries become one row."""
    if len(logs) == 1:
        return logs[0]
    texts: dict[str | None, int] = {}
    columns = [
        (numbered(log["key"], texts), ints(log["value"]), ints(log["offset"]), ints(log["index"]))
        for log in logs
    ]
    has_value = [np.asarray(log["value"].is_valid().to_numpy(), np.bool_) for log in logs]
    nodes = [ints(log["nodes"]) for log in logs]
    are_equal = all(
        np.array_equal(has_value[0], has_value[n])
        and all(map(np.array_equal, columns[0], columns[n]))
        for n in range(1, len(logs))
    )
    if are_equal:
        return _held_by(logs[0], np.bitwise_or.reduce(nodes))
    joined = [np.concatenate(one) for one in zip(*columns, strict=True)]
    joined.append(np.concatenate(has_value).astype(np.int64))
    order = np.lexsort(joined[::-1])
    log_of = np.repeat(np.arange(len(logs)), [log.num_rows for log in logs])
    is_new = _differs([column[order] for column in joined])
    # What one log holds twice stays two rows: only the first is merged with those of other logs.
    is_more = ~_differs([np.cumsum(is_new), log_of[order]])
    order, again = order[~is_more], order[is_more]
    is_new = _differs([column[order] for column in joined])
    starts = np.flatnonzero(np.append(is_new, np.ones(len(again), dtype=np.bool_)))
    order = np.concatenate((order, again))
    holders = np.concatenate(nodes)[order]
    rows = pa.concat_tables(logs).unify_dictionaries().combine_chunks()
    rows = rows.take(pa.array(order[starts]))
    return _held_by(rows, np.bitwise_or.reduceat(holders, starts) if len(starts) else holders)


def _differs(columns: Sequence[Ints]) -> Bools:
    """Mark the rows that differ from the one before them in any column; the first does."""
    differs = np.ones(len(columns[0]), dtype=np.bool_)
    differs[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


def _held_by(copies: pa.Table, nodes: Ints) -> pa.Table:
    place = COPIES.get_field_index("nodes")
    return copies.set_column(place, COPIES.field(place), pa.array(nodes, pa.int64()))


def entries_in(copies: pa.Table) -> int:
    """Return how many entries of all logs together a table of COPIES represents."""
    return int(np.bitwise_count(ints(copies["nodes"])).sum())


def part_of(keys: Sequence[str | None], key: Ints, value: Ints, parts: int) -> Ints:
    """Return the part, from 0 to `parts` - 1, of each (key, value).

    Args:
        keys: the keys' texts: a part must not depend on how they were numbered.
        key: the number of each row's key.
        value: each row's value.
        parts: how many parts there are.
    """
    texts = [(text or "").encode() for text in keys]
    hashes = [crc32(text) << 32 | crc32(text, 1) for text in texts] or [0]
    runs = (value >> RUN_BITS).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (np.array(hashes, dtype=np.uint64)[key] ^ runs) * np.uint64(0xC2B2AE3D27D4EB4F)
    return np.asarray((mixed >> np.uint64(33)) % np.uint64(parts), dtype=np.int64)


def load_part(
    appends: Iterable[pa.Table],
    copies: Iterable[pa.Table],
    damaged: Iterable[pa.Table],
    entries: int,
) -> LogPart:
    """Join narrow tables into one part; `entries` is the number of its rows of ENTRIES."""
    ours = pa.concat_tables([APPENDS.empty_table(), *appends]).unify_dictionaries()
    ours = ours.combine_chunks()
    op = ints(ours["op"])
    if (np.diff(op) < 0).any():
        ours = ours.take(pa.array(np.argsort(op, kind="stable")))
    theirs = pa.concat_tables([COPIES.empty_table(), *copies]).unify_dictionaries()
    theirs = theirs.combine_chunks()
    texts: dict[str | None, int] = {}
    numbers = [numbered(table["key"], texts) for table in (ours, theirs)]
    bad = pa.concat_tables([ENTRIES.empty_table(), *damaged])
    return LogPart(tuple(texts), ours, numbers[0], theirs, numbers[1], bad, entries)


def whole_part(operations: pa.Table, entries: pa.Table, nodes: Sequence[str]) -> LogPart:
    """Return one part with all rows of these tables of OPERATIONS and ENTRIES."""
    copies, damaged = narrow_entries(entries, nodes)
    return load_part([narrow_operations(operations)], [copies], [damaged], entries.num_rows)


def numbered(column: pa.ChunkedArray, texts: dict[str | None, int]) -> Ints:
    """Return the numbers of a column's texts, as in `texts`, which new texts are added to."""
    if not len(column):
        return np.zeros(0, dtype=np.int64)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    names: list[str | None] = array.dictionary.to_pylist()
    if array.null_count:
        names.append(None)
    renumbered = np.array([texts.setdefault(name, len(texts)) for name in names])
    codes = array.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(renumbered[codes], dtype=np.int64)


def ints(column: pa.ChunkedArray) -> Ints:
    """Return a column of numbers as an array, 0 where it is null."""
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def bools(column: pa.ChunkedArray) -> Bools:
    """Return a column of booleans without nulls as an array."""
    return np.asarray(column.to_numpy(), dtype=np.bool_)
