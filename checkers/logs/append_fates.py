"""Finds what became of each acknowledged append, as far as its value shows.

For one part of a history: which nodes hold an append at its own offset, which of these copies
count, and which values are stored twice. What is stored at the offset of a lost append is looked
up later: it may be in any other part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, fault_name, just_before, windows_at
from shaketable.checkers.kernels.log_match import (
    FEW_MAX,
    NOWHERE,
    Rows,
    find_values,
    hash_values,
    match_copies,
)
from shaketable.harness.contracts.finding_kinds import record_of
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.promises import BUILT_IN_FAULTS
from shaketable.harness.contracts.verdict import Finding
from shaketable.harness.history.schema import APPENDING, BATCH, DELAY, ENTRIES

# Acknowledged appends and their copies in the nodes' logs: one part of a history.
#
# A part has all rows with certain values of certain keys, so it suffices to decide what became of
# the appends of these values. Any split by (key, value) makes valid parts; `part_of` makes even
# ones.
#
# Tables are narrowed here, to travel between executors, and narrow tables are turned into arrays.

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

BATCH_VALUES_MAX = 100_000
"""The number of values of a batch: a damaged history may say any."""

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

    A batch is as many appends as it has values. A value that is appended later is as if it had not
    been acknowledged: where it must be is not known. Those without a value are left out if they
    were not acknowledged.
    """
    f = operations["f"]
    is_append = pc.is_in(f, value_set=pa.array([*APPENDING, BATCH, DELAY]))
    maybe = pc.and_(is_append, pc.not_equal(operations["outcome"], "fail"))
    is_acked = pc.and_(pc.equal(operations["outcome"], "ok"), pc.not_equal(f, DELAY))
    table = operations.append_column("is_acked", is_acked)
    table = table.filter(pc.and_(maybe, pc.or_(pc.is_valid(table["input"]), is_acked)))
    if BATCH in pc.unique(table["f"]).to_pylist():
        table = _each_of_a_batch(table)
    columns = {"value": "input"}
    arrays = [table[columns.get(field.name, field.name)].cast(field.type) for field in APPENDS]
    return pa.table(arrays, schema=APPENDS)


def _each_of_a_batch(table: pa.Table) -> pa.Table:
    """Return a row for each value of a batch, with its offset if that of the first is known.

    Raises:
        ValueError: a batch has more than BATCH_VALUES_MAX values.
    """
    sizes = ints(table["expected"])
    is_batch = np.asarray(pc.equal(table["f"], BATCH).to_numpy(), dtype=np.bool_)
    sizes = np.where(is_batch, np.maximum(sizes, 1), 1)
    if sizes.max() > BATCH_VALUES_MAX:
        raise ValueError(f"a batch of {sizes.max():,} values, at most {BATCH_VALUES_MAX:,}")
    ends = np.cumsum(sizes)
    place = pa.array(np.arange(ends[-1]) - np.repeat(ends - sizes, sizes))
    table = table.take(pa.array(np.repeat(np.arange(len(sizes)), sizes)))
    for name in ("input", "offset"):
        number = table.schema.get_field_index(name)
        table = table.set_column(number, name, pc.add(table[name], place))
    return table


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


# What became of each append.

LOST, REORDERED, MISSING = "lost", "reordered", "missing"

UNSETTLED = pa.schema(
    [
        ("key", pa.string()),
        ("offset", pa.int64()),
        ("op", pa.int64()),
        ("value", pa.int64()),
        ("process", pa.int64()),
        ("acknowledged_ns", pa.int64()),
        ("node", pa.string()),  # the node that acknowledged it
        ("fate", pa.string()),  # LOST | REORDERED | MISSING
        ("indices", pa.list_(pa.int64())),  # by node: its index in the log, or NOWHERE
        ("elsewhere_nodes", pa.list_(pa.int64())),  # where else its value is stored,
        ("elsewhere_offsets", pa.list_(pa.int64())),  # one of each for every copy
    ]
)
"""An acknowledged append that is not stored where it must be."""

STORED = pa.schema(
    [
        ("key", pa.string()),
        ("offset", pa.int64()),
        ("node", pa.int64()),
        ("index", pa.int64()),
        ("value", pa.int64()),
        ("writer", pa.int64()),  # the append that carried the value; null if none did
        ("problem", pa.string()),  # of a damaged entry
    ]
)
"""What a node's log holds at an offset of a queue, and which append wrote it."""


COPY_LOSING_FAULTS = frozenset({"wipe", "damage", "rollback", "members"})
"""Faults after which fewer nodes than a majority may hold an append until others catch up."""


def _may_lack_copies(context: CheckContext) -> bool:
    """Return whether an append may temporarily have too few copies, without proof that it ended.

    A majority of nodes that reported a committed index is that proof.
    """
    majority = len(context.nodes) // 2 + 1
    if len(context.committed) >= majority:
        return False
    done = {window.name for window in context.windows if window.may_have_taken_effect}
    return bool(done & COPY_LOSING_FAULTS or done - BUILT_IN_FAULTS)


class ValueSearch:
    """Looks up the appends of one part among its copies.

    Raises:
        ValueError: an acknowledged append lacks its offset, value or return.
    """

    def __init__(self, part: LogPart, context: CheckContext) -> None:
        self.part = part
        self.nodes = context.nodes
        self.is_acked = bools(part.appends["is_acked"])
        for name, wording in (("offset", "offset"), ("value", "input"), ("return_ns", "return_ns")):
            lacks = part.appends[name].is_null().to_numpy() & self.is_acked
            if lacks.any():
                op = part.appends["op"][int(np.flatnonzero(lacks)[0])]
                raise ValueError(f"append {op} is ok but lacks its {wording}")
        self.committed_max = max(context.committed.values(), default=NOWHERE)
        limits = [context.committed.get(node, self.committed_max) for node in context.nodes]
        self.limits = np.array(limits, dtype=np.int64)
        self.is_live = [
            node in context.committed and node not in context.unread for node in context.nodes
        ]
        self.unread = sum(node in context.unread for node in context.nodes)
        self.may_lack_copies = _may_lack_copies(context)
        self.is_everywhere = context.promises.copies is None
        self.majority = context.promises.copies or len(context.nodes) // 2 + 1
        self.op, self.value = ints(part.appends["op"]), ints(part.appends["value"])
        self.offset = ints(part.appends["offset"])
        self.holders = ints(part.copies["nodes"])
        self.copy_offset, self.index = ints(part.copies["offset"]), ints(part.copies["index"])
        self.copy_value = ints(part.copies["value"])
        self.has_value = np.asarray(part.copies["value"].is_valid().to_numpy(), dtype=np.bool_)
        self._match()

    def _match(self) -> None:
        shape = (len(self.nodes), len(self.op))
        slots = np.full(1 << max(4, (2 * len(self.op)).bit_length()), NOWHERE, dtype=np.int32)
        self.following: Rows = np.full(len(self.op), NOWHERE, dtype=np.int32)
        self.first: Rows = np.empty(len(self.op), dtype=np.int32)
        hash_values(self.part.append_key, self.value, slots, self.following, self.first)
        self.head: Rows = np.full(len(self.holders), NOWHERE, dtype=np.int32)
        key = self.part.copy_key
        find_values(self.part.append_key, self.value, slots, key, self.copy_value, self.head)
        self.head[~self.has_value] = NOWHERE
        self.indices: Ints = np.full(shape, NOWHERE, dtype=np.int64)
        self.copies = np.zeros(shape, dtype=np.uint8)
        self.elsewhere = np.zeros(shape, dtype=np.uint8)
        match_copies(
            self.head, self.holders, (self.copy_offset, self.index),
            (self.following, self.offset, self.is_acked), self.limits, self.committed_max,
            (self.indices, self.copies, self.elsewhere),
        )  # fmt: skip

    def fates(self) -> tuple[dict[str, int], pa.Table]:
        """Return counts, and the acknowledged appends that are not where they must be (UNSETTLED).

        A live node that lacks an append is at fault only if it reported a committed index that
        high: one that had not caught up yet breaks no promise, but proves nothing either.
        """
        # Only a committed append is acknowledged, so enough nodes must store it; copies above the
        # highest known committed index prove nothing: they may yet be truncated.
        present = self.indices != NOWHERE
        copies = (present & (self.indices <= self.committed_max)).sum(axis=0)
        is_held = copies >= self.majority
        # On enough nodes, but above every committed index that was reported: not proven either way.
        is_uncommitted = ~is_held & (present.sum(axis=0) >= self.majority)
        missing, behind = self._missing(present, is_held & self.is_acked)
        held = present.sum(axis=0)
        is_lost = self.is_acked & ~is_held & ~is_uncommitted
        # A node whose log cannot be read may hold it; after some faults one copy is no loss yet.
        is_open = is_lost & (held + self.unread >= self.majority)
        if self.may_lack_copies:
            is_open |= is_lost & (held > 0)
        is_lost &= ~is_open
        is_moved = is_lost & ((self.elsewhere > 0).sum(axis=0) >= self.majority)
        counts = {
            "standing": int((self.is_acked & is_held & ~missing).sum()),
            "behind": behind,
            "uncommitted": int((self.is_acked & is_uncommitted).sum()),
            "unknown_copies": int(is_open.sum()),
        }
        fate = np.where(is_moved, 1, np.where(is_lost, 0, 2))
        rows = np.flatnonzero(is_lost | missing)
        return counts, self._unsettled(rows, fate[rows])

    def _missing(self, present: Bools, is_held: Bools) -> tuple[Bools, int]:
        """Return which held appends a live node lacks, and how often one only lags behind."""
        missing = np.zeros(len(self.op), dtype=np.bool_)
        behind = 0
        index = self.indices.max(axis=0, initial=NOWHERE)
        for n, is_live in enumerate(self.is_live):
            if is_live and self.is_everywhere:
                lacks = is_held & ~present[n]
                missing |= lacks & (index <= self.limits[n])
                behind += int((lacks & (index > self.limits[n])).sum())
        return missing, behind

    def _unsettled(self, rows: Ints, fate: Ints) -> pa.Table:
        appends = self.part.appends.take(pa.array(rows))
        texts = pa.array(self.part.keys, pa.string())
        nodes, offsets = self._elsewhere(rows)
        bounds = pa.array(np.arange(len(rows) + 1, dtype=np.int32) * len(self.nodes), pa.int32())
        columns = {
            "key": texts.take(pa.array(self.part.append_key[rows])),
            "offset": appends["offset"],
            "op": appends["op"],
            "value": appends["value"],
            "process": appends["process"],
            "acknowledged_ns": appends["return_ns"],
            "node": appends["node"].cast(pa.string()),
            "fate": pa.array([LOST, REORDERED, MISSING]).take(pa.array(fate)),
            "indices": pa.ListArray.from_arrays(bounds, pa.array(self.indices[:, rows].T.ravel())),
            "elsewhere_nodes": nodes,
            "elsewhere_offsets": offsets,
        }
        return pa.table([columns[name] for name in UNSETTLED.names], schema=UNSETTLED)

    def _elsewhere(self, rows: Ints) -> tuple[pa.Array, pa.Array]:
        """Return for each of these appends the nodes and offsets of all copies of its value."""
        wanted = self.first[rows]
        is_wanted = np.zeros(len(self.op), dtype=np.bool_)
        is_wanted[wanted] = True
        copies, node = self._by_node(self._copies_of(is_wanted))
        order = np.lexsort((self.copy_offset[copies], node, self.head[copies]))
        copies, node = copies[order], node[order]
        start = np.searchsorted(self.head[copies], wanted, side="left")
        end = np.searchsorted(self.head[copies], wanted, side="right")
        sizes = end - start
        ends = np.cumsum(sizes)
        picked = np.repeat(start - (ends - sizes), sizes) + np.arange(sizes.sum())
        bounds = pa.array(np.concatenate(([0], ends)).astype(np.int32))
        lists = [node[picked], self.copy_offset[copies[picked]]]
        arrays = [pa.ListArray.from_arrays(bounds, pa.array(values)) for values in lists]
        return arrays[0], arrays[1]

    def _copies_of(self, is_wanted: Bools) -> Ints:
        """Return the copies of the marked appends, which are the first of their value."""
        rows = np.flatnonzero(self.head != NOWHERE)
        return rows[is_wanted[self.head[rows]]]

    def _by_node(self, copies: Ints) -> tuple[Ints, Ints]:
        """Return (copy, node) for each node that holds one of these copies."""
        pairs = [(copies[(self.holders[copies] >> n) & 1 == 1], n) for n in range(len(self.nodes))]
        rows = np.concatenate([rows for rows, _ in pairs])
        return rows, np.concatenate([np.full(len(rows), n) for rows, n in pairs])

    def duplicates(self, findings: Findings) -> None:
        """Find values that one node's committed log holds more than once.

        Values that more than one append carried are left out: they may be stored twice.
        """
        is_repeated = self.following != NOWHERE
        is_repeated |= self.first != np.arange(len(self.first))
        is_twice = (self.copies >= FEW_MAX).any(axis=0) & ~is_repeated
        rows = np.concatenate((self._copies_of(is_twice), self._foreign_twice()))
        keys, values, offsets = (
            self.part.copy_key[rows],
            self.copy_value[rows],
            self.copy_offset[rows],
        )
        _, first, group = np.unique(
            np.stack((keys, values), axis=1), axis=0, return_index=True, return_inverse=True
        )
        lowest = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(lowest, group, offsets)
        names = [self.part.keys[key] or "" for key in keys[first].tolist()]
        order = sorted(range(len(first)), key=lambda n: (names[n], lowest[n], values[first[n]]))
        findings.add("duplicated", order, lambda n: self._duplicate(rows[group == n]))

    def _foreign_twice(self) -> Ints:
        """Return the copies of values that no append carried and that some log holds twice."""
        rows = np.flatnonzero((self.head == NOWHERE) & self.has_value)
        if not len(rows):
            return rows
        pairs = np.stack((self.part.copy_key[rows], self.copy_value[rows]), axis=1)
        _, group = np.unique(pairs, axis=0, return_inverse=True)
        is_twice = np.zeros(group.max() + 1, dtype=np.bool_)
        for n, limit in enumerate(self.limits.tolist()):
            counts = ((self.holders[rows] >> n) & 1 == 1) & (self.index[rows] <= limit)
            is_twice |= np.bincount(group[counts], minlength=len(is_twice)) >= FEW_MAX
        return rows[is_twice[group]]

    def _duplicate(self, rows: Ints) -> Finding:
        """Describe where the copies `rows` of one value are stored."""
        key, value = self.part.keys[self.part.copy_key[rows[0]]], int(self.copy_value[rows[0]])
        copies, node = self._by_node(rows)
        offsets = {
            name: np.sort(self.copy_offset[copies[node == n]]).tolist()
            for n, name in enumerate(self.nodes)
        }
        places = {name: found for name, found in offsets.items() if found}
        where = np.unique(self.copy_offset[rows]).tolist()
        message = f"{key}: the value {value} is there more than once, at offsets {where}."
        details = {"value": value, "offsets": places}
        head = self.head[rows[0]]
        operations = () if head == NOWHERE else (int(self.op[head]),)
        return Finding("duplicated", message, key, where[0], operations, details)

    def stored(self) -> pa.Table:
        """Return each copy with the append that wrote it, as a table of STORED."""
        rows, node = self._by_node(np.arange(len(self.head)))
        heads = self.head[rows]
        no_writer = heads == NOWHERE
        writer = np.append(self.op, NOWHERE)[heads]
        columns = {
            "key": pa.array(self.part.keys, pa.string()).take(pa.array(self.part.copy_key[rows])),
            "offset": pa.array(self.copy_offset[rows]),
            "node": pa.array(node),
            "index": pa.array(self.index[rows]),
            "value": pa.array(self.copy_value[rows], mask=~self.has_value[rows]),
            "writer": pa.array(writer, mask=no_writer),
            "problem": pa.nulls(len(rows), pa.string()),
        }
        return pa.table([columns[name] for name in STORED.names], schema=STORED)


# The findings on acknowledged appends that are not where they must be.
#
# The second half: compares them with what every node's log holds at their offsets.

NS_PER_S = 1_000_000_000
PLACES = 1 << 23
"""The number of hash values of `place_of`."""


def place_of(keys: tuple[str | None, ...], key: Ints, offset: Ints) -> Ints:
    """Return a hash below PLACES of each offset of a queue; many offsets share one."""
    hashes = [crc32((text or "").encode(), 7) << 17 for text in keys] or [0]
    mixed = np.array(hashes, dtype=np.uint64)[key] ^ offset.astype(np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(mixed >> np.uint64(64 - 23), dtype=np.int64)


def places_of(table: pa.Table) -> Ints:
    """Return `place_of` each row of a table with columns key and offset."""
    texts: dict[str | None, int] = {}
    key = numbered(table["key"], texts)
    return place_of(tuple(texts), key, ints(table["offset"]))


def copies_at(part: LogPart, is_wanted: Bools) -> LogPart:
    """Return the part with only the copies at wanted places (an element for each of PLACES)."""
    there = is_wanted[place_of(part.keys, part.copy_key, ints(part.copies["offset"]))]
    copies = part.copies.filter(pa.array(there))
    return replace(part, copies=copies, copy_key=part.copy_key[there])


def damage_at(part: LogPart, is_wanted: Bools, context: CheckContext) -> pa.Table:
    """Return the damaged entries of a part at wanted places, as a table of STORED."""
    rows = part.damaged.filter(pc.is_valid(part.damaged["offset"]))
    rows = rows.filter(pa.array(is_wanted[places_of(rows)]))
    node = pc.index_in(rows["node"], value_set=pa.array(context.nodes, pa.string()))
    nothing = pa.nulls(rows.num_rows, pa.int64())
    columns = {
        "node": node.cast(pa.int64()), "key": rows["key"], "offset": rows["offset"],
        "index": rows["index"], "value": nothing, "writer": nothing, "problem": rows["problem"],
    }  # fmt: skip
    return pa.table([columns[name] for name in STORED.names], schema=STORED)


def judge_unsettled(
    unsettled: pa.Table, stored: pa.Table, context: CheckContext, findings: Findings
) -> None:
    """Add findings on what became of the appends in `unsettled`.

    Args:
        unsettled: a table of UNSETTLED.
        stored: a table of STORED with all that is stored at their places, and maybe more.
        context: names the nodes, in the order of their numbers.
        findings: gets them, each kind ordered by (key, offset, operation).
    """
    unsettled = unsettled.sort_by([(name, "ascending") for name in ("key", "offset", "op")])
    search = _PlaceSearch(unsettled, stored, context)
    fate = np.array(unsettled["fate"].to_pylist(), dtype=object)
    is_altered = (fate == LOST) & search.has_foreign()
    kinds = {
        "lost-append": (fate == LOST) & ~is_altered,
        "altered": is_altered,
        "reordered": fate == REORDERED,
        "missing-on-node": fate == MISSING,
    }
    for kind, mask in kinds.items():

        def describe(n: int, kind: str = kind) -> Finding:
            return search.describe(kind, n)

        findings.add(kind, np.flatnonzero(mask).tolist(), describe)


class _PlaceSearch:
    """Appends, and what is stored at their places."""

    def __init__(self, unsettled: pa.Table, stored: pa.Table, context: CheckContext) -> None:
        self.unsettled, self.context = unsettled, context
        texts: dict[str | None, int] = {}
        wanted = np.stack((numbered(unsettled["key"], texts), ints(unsettled["offset"])), axis=1)
        there = np.stack((numbered(stored["key"], texts), ints(stored["offset"])), axis=1)
        both = np.concatenate((wanted, there))
        _, place = np.unique(both, axis=0, return_inverse=True) if len(both) else (None, both[:, 0])
        self._place, places = place[: len(wanted)], place[len(wanted) :]
        order = np.lexsort((ints(stored["index"]), ints(stored["node"]), places))
        self._places = places[order]
        self._stored = stored.take(pa.array(order))

    def has_foreign(self) -> Bools:
        """Mark the appends at whose offset some node holds a value that no append carried."""
        is_foreign = pc.and_(
            pc.is_null(self._stored["problem"]), pc.is_null(self._stored["writer"])
        )
        foreign = np.unique(self._places[np.asarray(is_foreign.to_numpy(), dtype=np.bool_)])
        return np.isin(self._place, foreign)

    def describe(self, kind: str, n: int) -> Finding:
        """Describe what became of an acknowledged append, with the evidence node by node."""
        row = self.unsettled.slice(n, 1).to_pylist()[0]
        moment_ns, node = row["acknowledged_ns"], row["node"] or "an unnamed node"
        windows = windows_at(self.context, moment_ns)
        faults = [fault_name(window) for window in windows]
        under = f"under {' and '.join(faults)}" if windows else "under no fault"
        if not windows and (next_fault := just_before(self.context, moment_ns)):
            windows = [next_fault]
            under = f"just before {fault_name(next_fault)}"
            faults = [under]
        nodes = self.context.nodes
        stored_there = self._describe_stored(n, row["indices"])
        holders = [name for name, i in zip(nodes, row["indices"], strict=True) if i != NOWHERE]
        details: dict[str, Any] = {
            "value": row["value"],
            "process": row["process"],
            "acknowledged_by": row["node"],
            "acknowledged_ns": moment_ns,
            "instead": stored_there,
            "held_by": holders,
            "faults": faults,
        }
        if windows:
            details["fault"] = windows[0].fault
        if kind == "reordered" or (kind != "missing-on-node" and not holders):
            elsewhere = _elsewhere(row, nodes)
            if elsewhere:
                details["value_stands_at"] = elsewhere
        held = f"{len(holders)} of {len(nodes)} nodes hold it"
        there = "; ".join(
            f"{k} has {what} there" for k, what in stored_there.items() if k not in holders
        )
        message = (
            f"{row['key']}: the append of {row['value']} (op {row['op']}), acknowledged by {node}"
            f" at offset {row['offset']} after {moment_ns / NS_PER_S:.3f} s {under},"
            f" {record_of(kind).became}: {held}; {there}."
        )
        return Finding(kind, message, row["key"], row["offset"], (row["op"],), details)

    def _describe_stored(self, n: int, indices: list[int]) -> dict[str, str]:
        """Describe for each node what it holds at the offset of append `n`."""
        first, end = np.searchsorted(self._places, (self._place[n], self._place[n] + 1))
        rows = self._stored.slice(int(first), int(end - first)).to_pylist()
        held_by_node = {}
        for number, node in enumerate(self.context.nodes):
            mine = [row for row in rows if row["node"] == number]
            found = [_name(row) for row in mine if row["problem"] is None]
            if not found:
                found = [f"a damaged entry ({row['problem']})" for row in mine]
            if indices[number] != NOWHERE:
                found = [f"it (entry {indices[number]})"]
            held_by_node[node] = " and ".join(found) or "nothing"
        return held_by_node


def _elsewhere(row: dict[str, Any], nodes: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the offsets at which an append's value is stored, by node."""
    found: dict[str, list[int]] = {}
    for node, offset in zip(row["elsewhere_nodes"], row["elsewhere_offsets"], strict=True):
        found.setdefault(nodes[node], []).append(offset)
    return found


def _name(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return f"an entry without a value (entry {row['index']})"
    by = "which no client appended" if row["writer"] is None else f"op {row['writer']}"
    return f"{row['value']} ({by}, entry {row['index']})"
