"""What stands at the places of acknowledged appends that are not there, and so their findings.

The second half of checkers.logs.append_fates: the appends that are not settled, beside what
every node's log holds at their offsets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.findings import Findings, just_before, name_of, windows_at
from shaketable.checkers.kernels.log_match import NOWHERE
from shaketable.checkers.logs.append_fates import LOST, MISSING, REORDERED, STANDING
from shaketable.checkers.logs.log_part import Bools, Ints, LogPart, ints, numbered
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.verdict import Finding

NS_PER_S = 1_000_000_000
PLACES = 1 << 23
"""Into how many numbers `place_of` sorts the offsets of all queues."""

_SAID = {
    "lost-append": "is lost",
    "altered": "was altered",
    "reordered": "stands at another offset",
    "missing-on-node": "is missing on a live node",
}


def place_of(keys: tuple[str | None, ...], key: Ints, offset: Ints) -> Ints:
    """Return a number below PLACES for each offset of a queue; many offsets share one."""
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
    """Leave of a part's copies those at wanted places (an element each of PLACES)."""
    there = is_wanted[place_of(part.keys, part.copy_key, ints(part.copies["offset"]))]
    copies = part.copies.filter(pa.array(there))
    return replace(part, copies=copies, copy_key=part.copy_key[there])


def damage_at(part: LogPart, is_wanted: Bools, context: CheckContext) -> pa.Table:
    """Return the damaged entries of a part at wanted places, as a table of STANDING."""
    rows = part.damaged.filter(pc.is_valid(part.damaged["offset"]))
    rows = rows.filter(pa.array(is_wanted[places_of(rows)]))
    node = pc.index_in(rows["node"], value_set=pa.array(context.nodes, pa.string()))
    nothing = pa.nulls(rows.num_rows, pa.int64())
    columns = {
        "node": node.cast(pa.int64()), "key": rows["key"], "offset": rows["offset"],
        "index": rows["index"], "value": nothing, "writer": nothing, "problem": rows["problem"],
    }  # fmt: skip
    return pa.table([columns[name] for name in STANDING.names], schema=STANDING)


def settle_places(
    unsettled: pa.Table, standing: pa.Table, context: CheckContext, findings: Findings
) -> None:
    """Put into findings what became of the appends in `unsettled`.

    Args:
        unsettled: a table of UNSETTLED.
        standing: a table of STANDING with all that stands at their places, and maybe more.
        context: names the nodes, in the order of their numbers.
        findings: gets them, each kind in order of (key, offset, operation).
    """
    unsettled = unsettled.sort_by([(name, "ascending") for name in ("key", "offset", "op")])
    search = _PlaceSearch(unsettled, standing, context)
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
    """Appends and what stands at their places."""

    def __init__(self, unsettled: pa.Table, standing: pa.Table, context: CheckContext) -> None:
        self.unsettled, self.context = unsettled, context
        texts: dict[str | None, int] = {}
        wanted = np.stack((numbered(unsettled["key"], texts), ints(unsettled["offset"])), axis=1)
        there = np.stack((numbered(standing["key"], texts), ints(standing["offset"])), axis=1)
        both = np.concatenate((wanted, there))
        _, place = np.unique(both, axis=0, return_inverse=True) if len(both) else (None, both[:, 0])
        self._place, places = place[: len(wanted)], place[len(wanted) :]
        order = np.lexsort((ints(standing["index"]), ints(standing["node"]), places))
        self._places = places[order]
        self._standing = standing.take(pa.array(order))

    def has_foreign(self) -> Bools:
        """Mark the appends at whose offset some node has a value that nobody appended."""
        is_foreign = pc.and_(
            pc.is_null(self._standing["problem"]), pc.is_null(self._standing["writer"])
        )
        foreign = np.unique(self._places[np.asarray(is_foreign.to_numpy(), dtype=np.bool_)])
        return np.isin(self._place, foreign)

    def describe(self, kind: str, n: int) -> Finding:
        """Say what became of an acknowledged append, with the evidence node by node."""
        row = self.unsettled.slice(n, 1).to_pylist()[0]
        moment_ns, node = row["acknowledged_ns"], row["node"] or "an unnamed node"
        windows = windows_at(self.context, moment_ns)
        faults = [name_of(window) for window in windows]
        under = f"under {' and '.join(faults)}" if windows else "under no fault"
        if not windows and (next_fault := just_before(self.context, moment_ns)):
            windows = [next_fault]
            under = f"just before {name_of(next_fault)}"
            faults = [under]
        nodes = self.context.nodes
        stands = self._what_stands(n, row["indices"])
        holders = [name for name, i in zip(nodes, row["indices"], strict=True) if i != NOWHERE]
        details: dict[str, Any] = {
            "value": row["value"],
            "process": row["process"],
            "acknowledged_by": row["node"],
            "acknowledged_ns": moment_ns,
            "instead": stands,
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
        there = "; ".join(f"{k} has {what} there" for k, what in stands.items() if k not in holders)
        message = (
            f"{row['key']}: the append of {row['value']} (op {row['op']}), acknowledged by {node}"
            f" at offset {row['offset']} after {moment_ns / NS_PER_S:.3f} s {under},"
            f" {_SAID[kind]}: {held}; {there}."
        )
        return Finding(kind, message, row["key"], row["offset"], (row["op"],), details)

    def _what_stands(self, n: int, indices: list[int]) -> dict[str, str]:
        """Say for each node what it holds at the offset of append `n`."""
        first, behind = np.searchsorted(self._places, (self._place[n], self._place[n] + 1))
        rows = self._standing.slice(int(first), int(behind - first)).to_pylist()
        said = {}
        for number, node in enumerate(self.context.nodes):
            mine = [row for row in rows if row["node"] == number]
            found = [_name(row) for row in mine if row["problem"] is None]
            if not found:
                found = [f"a damaged entry ({row['problem']})" for row in mine]
            if indices[number] != NOWHERE:
                found = [f"it (entry {indices[number]})"]
            said[node] = " and ".join(found) or "nothing"
        return said


def _elsewhere(row: dict[str, Any], nodes: tuple[str, ...]) -> dict[str, list[int]]:
    """Return the offsets at which an append's value stands, by node."""
    found: dict[str, list[int]] = {}
    for node, offset in zip(row["elsewhere_nodes"], row["elsewhere_offsets"], strict=True):
        found.setdefault(nodes[node], []).append(offset)
    return found


def _name(row: dict[str, Any]) -> str:
    if row["value"] is None:
        return f"an entry without a value (entry {row['index']})"
    by = "which nobody appended" if row["writer"] is None else f"op {row['writer']}"
    return f"{row['value']} ({by}, entry {row['index']})"
