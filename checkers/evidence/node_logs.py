"""What the nodes' logs prove of a value: that it is stored, or that it certainly is not.

Pure. checkers.evidence.resolve explains why this is sound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import CheckContext

_Key = str | None
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LogValues:
    """What the nodes' logs hold of the wanted values.

    `committed` maps (key, value) to (offset, node, index) where every node that had committed
    that far agrees; `values` are all (key, value) in any log, committed or not; `complete` are the
    keys that all nodes hold alike, from offset 0 on, without damage.
    """

    committed: dict[tuple[_Key, int], tuple[int, str, int]]
    values: frozenset[tuple[_Key, int]]
    complete: frozenset[_Key]

    def entry(self, key: _Key, value: int) -> tuple[int, str, int] | None:
        """Return where a value is certainly stored, as (offset, node, log index), or None."""
        return self.committed.get((key, value))

    def only(self, values: Iterable[int]) -> LogValues:
        """Return the same, restricted to these values."""
        wanted_values = frozenset(values)
        committed = {pair: at for pair, at in self.committed.items() if pair[1] in wanted_values}
        return LogValues(
            committed, frozenset(p for p in self.values if p[1] in wanted_values), self.complete
        )

    def is_absent(self, key: _Key, value: int) -> bool:
        """Return whether a value is certainly in no log."""
        return key in self.complete and (key, value) not in self.values


def find_in_logs(entries: pa.Table, context: CheckContext, wanted: _Ints) -> LogValues:
    """Look up the values `wanted` in the nodes' ENTRIES of some keys."""
    is_damaged = pc.is_valid(entries["problem"])
    has_offset, has_value = pc.is_valid(entries["offset"]), pc.is_valid(entries["value"])
    without_value = pc.and_(has_offset, pc.invert(has_value))
    damaged_keys = frozenset(entries.filter(pc.or_(is_damaged, without_value))["key"].to_pylist())
    sound = pc.and_(pc.and_(has_offset, has_value), pc.invert(is_damaged))
    rows = entries.filter(sound)
    is_found = pc.is_in(rows["value"], pa.array(wanted, pa.int64()))
    found = rows.filter(is_found)
    # Any other value at the same queue and offset contradicts them.
    at_same_place = rows.filter(pa.array(_share_places(rows, is_found)))
    pairs = zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)
    return LogValues(
        committed=_committed(at_same_place, context, damaged_keys),
        values=frozenset(pairs),
        complete=_complete(rows, context) - damaged_keys,
    )


def _share_places(rows: pa.Table, is_found: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Mark the rows at the same queue and offset as one of those found."""
    key, _ = _number_keys(rows["key"])
    offset = _ints(rows["offset"])
    order = np.lexsort((offset, key))
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (key[order][1:] != key[order][:-1]) | (offset[order][1:] != offset[order][:-1])
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.cumsum(starts) - 1
    is_wanted = np.zeros(len(order), dtype=np.bool_)
    is_wanted[place[np.asarray(is_found.to_numpy(), dtype=np.bool_)]] = True
    return np.asarray(is_wanted[place])


def _committed(
    rows: pa.Table, context: CheckContext, damaged_keys: frozenset[_Key]
) -> dict[tuple[_Key, int], tuple[int, str, int]]:
    """Return the committed entries on which the nodes agree, of keys without damage."""
    holders: dict[tuple[_Key, int], dict[str, set[tuple[int, int]]]] = {}
    at: dict[tuple[_Key, int], set[int]] = defaultdict(set)
    columns = (rows[name].to_pylist() for name in ("node", "key", "value", "offset", "index"))
    for node, key, value, offset, index in zip(*columns, strict=True):
        if index <= context.committed.get(node, -1):
            places = holders.setdefault((key, value), {})
            places.setdefault(node, set()).add((offset, index))
            at[key, offset].add(value)
    agreed = {}
    for (key, value), places in holders.items():
        stored_at = set().union(*places.values())
        offset, index = min(stored_at)
        # Log Matching: every node that has committed up to this index must hold it, there only.
        must_hold = {node for node, up_to in context.committed.items() if up_to >= index}
        is_sound = key not in damaged_keys and set(places) == must_hold and len(stored_at) == 1
        if is_sound and at[key, offset] == {value}:
            agreed[key, value] = (offset, min(places), index)
    return agreed


def _complete(rows: pa.Table, context: CheckContext) -> frozenset[_Key]:
    """Return the keys that all nodes hold alike, from offset 0 to the end, committed or not."""
    if not set(context.nodes) <= set(context.committed) or not rows.num_rows:
        return frozenset()
    key, names = _number_keys(rows["key"])
    offset, value = _ints(rows["offset"]), _ints(rows["value"])
    counts, parts = [], []
    for node in context.nodes:
        mine = np.flatnonzero(np.asarray(pc.equal(rows["node"], node).to_numpy(), np.bool_))
        mine = mine[np.lexsort((offset[mine], key[mine]))]
        counts.append(np.bincount(key[mine], minlength=len(names)))
        parts.append(mine)
    # Compare entry by entry the keys of which all nodes hold equally many.
    fits = (np.array(counts) == counts[0]).all(axis=0) & (counts[0] > 0)
    parts = [mine[fits[key[mine]]] for mine in parts]
    first = parts[0]
    starts = np.cumsum(np.bincount(key[first], minlength=len(names))) - np.bincount(
        key[first], minlength=len(names)
    )
    # Sorted by offset, the n-th entry of a key without gaps has offset n.
    is_wrong = offset[first] != np.arange(len(first)) - starts[key[first]]
    for mine in parts[1:]:
        is_wrong |= (offset[mine] != offset[first]) | (value[mine] != value[first])
    fits[key[first[is_wrong]]] = False
    return frozenset(name for name, holds in zip(names, fits.tolist(), strict=True) if holds)


def _number_keys(column: pa.ChunkedArray) -> tuple[_Ints, list[_Key]]:
    """Number the keys; return each row's number, and the keys."""
    codes = column.combine_chunks().dictionary_encode(null_encoding="encode")
    if isinstance(codes, pa.ChunkedArray):
        codes = codes.combine_chunks()
    number = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return number, codes.dictionary.to_pylist()


def _ints(column: pa.ChunkedArray) -> _Ints:
    return np.asarray(column.fill_null(0).to_numpy(), dtype=np.int64)
