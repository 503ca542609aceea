"""What became of each acknowledged append, as far as the values alone can tell.

From one part of a history (see checkers.logs.log_part): which nodes hold an append at its own
offset, which of them count, and which values stand twice. What stands at the offset of a
lost one is asked for later: it may be in any other part.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shaketable.checkers.findings import Findings
from shaketable.checkers.kernels.log_match import (
    FEW_MAX,
    NOWHERE,
    Rows,
    find_values,
    hash_values,
    match_copies,
)
from shaketable.checkers.logs.log_part import Bools, Ints, LogPart, bools, ints
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.promises import OURS
from shaketable.harness.contracts.verdict import Finding

LOST, REORDERED, MISSING = "lost", "reordered", "missing"

UNSETTLED = pa.schema(
    [
        ("key", pa.string()),
        ("offset", pa.int64()),
        ("op", pa.int64()),
        ("value", pa.int64()),
        ("process", pa.int64()),
        ("acknowledged_ns", pa.int64()),
        ("node", pa.string()),  # who acknowledged it
        ("fate", pa.string()),  # LOST | REORDERED | MISSING
        ("indices", pa.list_(pa.int64())),  # by node: where it stands, or NOWHERE
        ("elsewhere_nodes", pa.list_(pa.int64())),  # where else its value stands,
        ("elsewhere_offsets", pa.list_(pa.int64())),  # one of each for every copy
    ]
)
"""An acknowledged append that does not stand where it must."""

STANDING = pa.schema(
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
"""What a node's log holds at an offset of a queue, and who wrote it."""


TAKE_COPIES = frozenset({"wipe", "damage", "rollback", "members"})
"""Faults after which fewer nodes than a majority may have an append, until the others caught up."""


def _may_be_fewer(context: CheckContext) -> bool:
    """Whether an append may stand on too few nodes for a while, and nobody saw that end."""
    majority = len(context.nodes) // 2 + 1
    if len(context.committed) >= majority:
        return False
    done = {window.name for window in context.windows if window.may_have_bitten}
    return bool(done & TAKE_COPIES or done - OURS)


class ValueSearch:
    """Looks the appends of one part up among its copies.

    Raises:
        ValueError: an acknowledged append lacks its offset, value or return.
    """

    def __init__(self, part: LogPart, context: CheckContext) -> None:
        self.part = part
        self.nodes = context.nodes
        self.is_acked = bools(part.appends["is_acked"])
        for name, said in (("offset", "offset"), ("value", "input"), ("return_ns", "return_ns")):
            lacks = part.appends[name].is_null().to_numpy() & self.is_acked
            if lacks.any():
                op = part.appends["op"][int(np.flatnonzero(lacks)[0])]
                raise ValueError(f"append {op} is ok but lacks its {said}")
        self.committed_max = max(context.committed.values(), default=NOWHERE)
        limits = [context.committed.get(node, self.committed_max) for node in context.nodes]
        self.limits = np.array(limits, dtype=np.int64)
        self.is_live = [
            node in context.committed and node not in context.unread for node in context.nodes
        ]
        self.unread = sum(node in context.unread for node in context.nodes)
        self.may_be_fewer = _may_be_fewer(context)
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
        """Return counts, and the acknowledged appends that do not stand (UNSETTLED).

        A live node that lacks an append is at fault only if it said that it had committed
        that far: one that had not caught up yet breaks no promise, but shows nothing.
        """
        present = self.indices != NOWHERE
        copies = (present & (self.indices <= self.committed_max)).sum(axis=0)
        is_held = copies >= self.majority
        is_uncommitted = ~is_held & (present.sum(axis=0) >= self.majority)
        missing, behind = self._missing(present, is_held & self.is_acked)
        held = present.sum(axis=0)
        is_lost = self.is_acked & ~is_held & ~is_uncommitted
        # Whoever cannot be read may have it; of some faults one copy that is left is no loss yet.
        is_open = is_lost & (held + self.unread >= self.majority)
        if self.may_be_fewer:
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
        """Return which held appends a live node lacks, and how often one is only behind."""
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
        """List for each of these appends the (node, offset) of every copy of its value."""
        wanted = self.first[rows]
        is_wanted = np.zeros(len(self.op), dtype=np.bool_)
        is_wanted[wanted] = True
        copies, node = self._by_node(self._copies_of(is_wanted))
        order = np.lexsort((self.copy_offset[copies], node, self.head[copies]))
        copies, node = copies[order], node[order]
        begin = np.searchsorted(self.head[copies], wanted, side="left")
        end = np.searchsorted(self.head[copies], wanted, side="right")
        sizes = end - begin
        behind = np.cumsum(sizes)
        picked = np.repeat(begin - (behind - sizes), sizes) + np.arange(sizes.sum())
        bounds = pa.array(np.concatenate(([0], behind)).astype(np.int32))
        lists = [node[picked], self.copy_offset[copies[picked]]]
        arrays = [pa.ListArray.from_arrays(bounds, pa.array(values)) for values in lists]
        return arrays[0], arrays[1]

    def _copies_of(self, is_wanted: Bools) -> Ints:
        """Return the copies whose value is first carried by one of the marked appends."""
        rows = np.flatnonzero(self.head != NOWHERE)
        return rows[is_wanted[self.head[rows]]]

    def _by_node(self, copies: Ints) -> tuple[Ints, Ints]:
        """Return (copy, node) for each node that has one of these copies."""
        pairs = [(copies[(self.holders[copies] >> n) & 1 == 1], n) for n in range(len(self.nodes))]
        rows = np.concatenate([rows for rows, _ in pairs])
        return rows, np.concatenate([np.full(len(rows), n) for rows, n in pairs])

    def duplicates(self, findings: Findings) -> None:
        """Find values that one node's committed log holds at more than one place.

        Values that more than one append carried are left out: they may stand twice.
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
        """Return the copies of values that nobody appended and that some log holds twice."""
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
        """Say where the copies `rows` of one value stand."""
        key, value = self.part.keys[self.part.copy_key[rows[0]]], int(self.copy_value[rows[0]])
        copies, node = self._by_node(rows)
        offsets = {
            name: np.sort(self.copy_offset[copies[node == n]]).tolist()
            for n, name in enumerate(self.nodes)
        }
        places = {name: found for name, found in offsets.items() if found}
        where = np.unique(self.copy_offset[rows]).tolist()
        message = f"{key}: the value {value} stands more than once, at offsets {where}."
        details = {"value": value, "offsets": places}
        head = self.head[rows[0]]
        operations = () if head == NOWHERE else (int(self.op[head]),)
        return Finding("duplicated", message, key, where[0], operations, details)

    def standing(self) -> pa.Table:
        """Return each copy with who wrote it, as a table of STANDING."""
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
        return pa.table([columns[name] for name in STANDING.names], schema=STANDING)
