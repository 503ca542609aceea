"""Finds each acknowledged append in the copies of it that the nodes' logs hold.

A hash join by (key, value): appends are hashed, copies are looked up, neither has to be sorted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import compiled

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.uint8]

NOWHERE = -1
"""In a table of log indices: the entry is not there. In one of rows: there is no such row."""

FEW_MAX = 2
"""Copies of one value in one log are counted up to this: one, or more than one."""


@compiled
def hash_values(key: Ints, value: Ints, slots: Rows, following: Rows, first: Rows) -> None:
    """Fill a hash table of appends by (key, value).

    Args:
        key: each append's key, by number.
        value: each append's value.
        slots: all NOWHERE, their number a power of two; receives the first append of each value.
        following: as long as `key`, all NOWHERE; receives the next append of the same value.
        first: as long as `key`; receives the first append of the same value.
    """
    mask = len(slots) - 1
    last = np.empty(len(key), dtype=np.int32)  # of the chain that starts at a row
    for row in range(len(key)):
        slot = _slot(key[row], value[row], mask)
        while True:
            head = slots[slot]
            if head == NOWHERE:
                slots[slot] = row
                last[row] = row
                first[row] = row
                break
            if key[head] == key[row] and value[head] == value[row]:
                following[last[head]] = row
                last[head] = row
                first[row] = head
                break
            slot = (slot + 1) & mask  # linear probing


@compiled
def find_values(
    key: Ints, value: Ints, slots: Rows, wanted_key: Ints, wanted: Ints, found: Rows
) -> None:
    """Put into `found` the first append of each wanted (key, value), or NOWHERE."""
    mask = len(slots) - 1
    for n in range(len(wanted)):
        slot = _slot(wanted_key[n], wanted[n], mask)
        head = slots[slot]
        while head != NOWHERE and not (key[head] == wanted_key[n] and value[head] == wanted[n]):
            slot = (slot + 1) & mask
            head = slots[slot]
        found[n] = head


@compiled
def match_copies(
    head: Rows,
    nodes: Ints,
    place: tuple[Ints, Ints],
    appends: tuple[Rows, Ints, Bools],
    limits: Ints,
    committed_max: int,
    found: tuple[Ints, Counts, Counts],
) -> None:
    """Find for each append at which index each node holds it, and where else its value is.

    Args:
        head: for each copy, the first append of its value (see `find_values`).
        nodes: for each copy, which nodes hold it: a bit for each node.
        place: for each copy, its (offset, log index).
        appends: (`following`, offset, whether it was acknowledged) of each append.
        limits: for each node, up to which index its copies count.
        committed_max: the highest index that any node reported as committed.
        found: receives, by node and append, the lowest index of the copy at the append's own
            offset, or NOWHERE; how many copies of the value count, up to FEW_MAX (of the
            first append of each value); whether a committed copy is at another offset.
    """
    offset, index = place
    following, wanted, is_acked = appends
    indices, counts, elsewhere = found
    for n in range(len(head)):
        if head[n] == NOWHERE:
            continue
        for at in range(len(limits)):
            if not (nodes[n] >> at) & 1:
                continue
            row = head[n]  # a value may have been appended more than once: visit the chain
            if index[n] <= limits[at] and counts[at, row] < FEW_MAX:
                counts[at, row] += 1
            while row != NOWHERE:
                if is_acked[row]:
                    if wanted[row] == offset[n]:
                        if indices[at, row] == NOWHERE or index[n] < indices[at, row]:
                            indices[at, row] = index[n]
                    elif index[n] <= committed_max:
                        elsewhere[at, row] = 1
                row = following[row]


@compiled
def _slot(key: int, value: int, mask: int) -> int:
    h = np.uint64(value) * np.uint64(0x9E3779B97F4A7C15)
    h ^= np.uint64(key) * np.uint64(0xC2B2AE3D27D4EB4F)
    h ^= h >> np.uint64(29)
    return int(np.int64(h & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask)
