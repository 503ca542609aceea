"""The log entries around the places that findings are about, and a map of their queue.

For the report. Pure but for the logs, which are passed in as iterators of batches of ENTRIES. The
first pass finds where each node holds what a finding is about, the second collects the entries
around it on all nodes. Nothing here changes a verdict.

The result is JSON; see `collect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

# A map of a queue: what each node's log holds at the offsets of acknowledged appends. Pure.
#
# The map is small whatever the queue's length: neighbouring offsets in the same state form one
# stretch, and in long queues several offsets share a bin. A bin shows the worst state of its
# offsets, so nothing that is wrong is left out.

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
        offset, value = (_filled(operations[name]) for name in ("offset", "input"))
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
        offset, index, ordinal = (_filled(rows[name]) for name in ("offset", "index", "ordinal"))
        has_value = pc.and_(pc.is_valid(rows["value"]), pc.is_null(rows["problem"]))
        order = np.lexsort((ordinal, offset))
        return cls(
            offset[order],
            index[order],
            ordinal[order],
            _filled(rows["value"])[order],
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


def _filled(column: pa.ChunkedArray) -> Ints:
    return np.asarray(pc.fill_null(column, -1).to_numpy(), dtype=np.int64)


FORMAT: Final = 1
PLACES_MAX: Final = 80
"""Places whose surrounding entries are kept."""
AROUND: Final = 4
"""Entries before and after a place that are kept of each node."""
ENTRIES_KEPT_MAX: Final = 4_000
"""Entries that are kept of one node."""
ENTRIES_READ_MAX: Final = 50_000_000
"""Entries that are read of one node."""
TEXT_MAX: Final = 200
"""Characters of a queue's name or of a problem that are kept."""
COLUMNS: Final = ("index", "term", "crc", "key", "offset", "value", "size", "problem")
"""What is kept of an entry, in this order."""


Json = dict[str, Any]
Read = Callable[[], Iterator[pa.RecordBatch]]
"""Reads a node's log from its start; raises OSError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a finding is about: an offset of a queue, or an index of the log."""

    key: str | None = None
    offset: int | None = None
    index: int | None = None


@dataclass(slots=True)
class _NodeLog:
    """What the first pass finds on a node; `spots` are the (index, ordinal) of each place."""

    count: int = 0
    first: int | None = None
    last: int | None = None
    problem: str | None = None
    spots: dict[Place, list[tuple[int, int]]] = field(default_factory=dict)
    before: dict[Place, tuple[int, int, int]] = field(default_factory=dict)
    offsets: dict[str, NodeOffsets] = field(default_factory=dict)


def collect(
    logs: Mapping[str, Read],
    places: Iterable[Place],
    acked: Mapping[str, AckedAppends],
    committed: Mapping[str, int],
) -> Json:
    """Return what the logs hold around the places, as JSON.

    Args:
        logs: reads each node's log.
        places: what findings are about; only the first PLACES_MAX are used.
        acked: the acknowledged appends of each queue that is to be mapped.
        committed: the committed index that each node reported; nothing is promised above the
            highest.

    Returns:
        {"format", "columns", "nodes": {node: {"entries", "first", "last", "problem"}},
        "places": [{"key", "offset", "index", "at": {node: [index, ...]}}],
        "entries": {node: [[index, term, crc, ...], ...]}, "maps": [...], "left_out"}.
    """
    wanted = list(dict.fromkeys(places))
    shown = wanted[:PLACES_MAX]
    found = {node: _first_pass(read, shown, tuple(acked)) for node, read in logs.items()}
    windows = _windows(found, shown)
    limit = max(committed.values(), default=None)
    return {
        "format": FORMAT,
        "columns": list(COLUMNS),
        "nodes": {
            node: {
                "entries": log.count,
                "first": log.first,
                "last": log.last,
                "committed": committed.get(node),
                "problem": log.problem,
            }
            for node, log in found.items()
        },
        "places": [_place_json(place, found) for place in shown],
        "entries": {node: _second_pass(logs[node], found[node], windows) for node in logs},
        "maps": [
            map_of(key, appends, {node: log.offsets.get(key) for node, log in found.items()}, limit)
            for key, appends in acked.items()
        ],
        "left_out": len(wanted) - len(shown),
    }


def _first_pass(read: Read, places: Sequence[Place], keys: Sequence[str]) -> _NodeLog:
    """Find where a node holds each place, and what it holds of the queues that are mapped."""
    log = _NodeLog()
    by_offset: dict[tuple[str, int], list[Place]] = {}
    by_index: dict[int, list[Place]] = {}
    for place in places:
        if place.key is not None and place.offset is not None:
            by_offset.setdefault((place.key, place.offset), []).append(place)
        elif place.index is not None:
            by_index.setdefault(place.index, []).append(place)
    wanted_keys = pa.array(sorted({key for key, _ in by_offset} | set(keys)), pa.string())
    parts: dict[str, list[pa.Table]] = {}
    try:
        for batch in read():
            if log.count + batch.num_rows > ENTRIES_READ_MAX:
                log.problem = f"only the first {log.count:,} entries were looked at"
                break
            _scan(batch, log, by_index, wanted_keys, parts)
    except OSError as error:
        log.problem = f"its files cannot be read: {error.strerror or error}"[:TEXT_MAX]
    for key, tables in parts.items():
        log.offsets[key] = NodeOffsets.of(pa.concat_tables(tables))
    for (key, offset), at_offset in by_offset.items():
        mine = log.offsets.get(key)
        spots = [] if mine is None else mine.at(offset)
        last = None if mine is None else mine.last_before(offset)
        for place in at_offset:
            log.spots[place] = spots
            if last is not None:
                log.before[place] = last
    return log


def _scan(
    batch: pa.RecordBatch,
    log: _NodeLog,
    by_index: Mapping[int, Sequence[Place]],
    wanted_keys: pa.Array,
    parts: dict[str, list[pa.Table]],
) -> None:
    """Record in `log` and `parts` what a batch has of the wanted indices and queues."""
    if not batch.num_rows:
        return
    rows = pa.Table.from_batches([batch])
    index = _ints(rows["index"])
    ordinals = np.arange(log.count, log.count + len(index), dtype=np.int64)
    log.first = int(index[0]) if log.first is None else log.first
    log.last = int(index[-1])
    if by_index:
        for n in np.flatnonzero(np.isin(index, list(by_index))).tolist():
            for place in by_index[int(index[n])]:
                log.spots.setdefault(place, []).append((int(index[n]), int(ordinals[n])))
    if len(wanted_keys):
        mine = rows.select(["index", "key", "offset", "value", "problem"])
        mine = mine.append_column("ordinal", pa.array(ordinals))
        mine = mine.filter(pc.is_in(mine["key"], value_set=wanted_keys))
        for key in pc.unique(mine["key"]).to_pylist():
            part = mine.filter(pc.equal(mine["key"], key)).drop_columns(["key"])
            parts.setdefault(key, []).append(part)
    log.count += len(index)


def _windows(found: Mapping[str, _NodeLog], places: Sequence[Place]) -> Ints:
    """Return the indices around each place on any node, or the entry before it if none has it."""
    wanted: set[int] = set()
    for place in places:
        spots = [index for log in found.values() for index, _ in log.spots.get(place, ())]
        if not spots and place.index is not None:
            spots = [place.index]
        if not spots:
            spots = [log.before[place][0] for log in found.values() if place in log.before]
        for index in spots:
            wanted.update(range(index - AROUND, index + AROUND + 1))
    return np.array(sorted(wanted), dtype=np.int64)


def _second_pass(read: Read, log: _NodeLog, windows: Ints) -> list[list[Any]]:
    """Return a node's entries at these indices, and those around its own places."""
    near = {
        ordinal + step
        for spots in log.spots.values()
        for _, ordinal in spots
        for step in range(-AROUND, AROUND + 1)
    }
    near |= {ordinal for _, _, ordinal in log.before.values()}
    ordinals = np.array(sorted(near), dtype=np.int64)
    kept: list[list[Any]] = []
    seen = 0
    try:
        for batch in read():
            if seen + batch.num_rows > ENTRIES_READ_MAX:
                break  # as in the first pass
            if not batch.num_rows:
                continue
            here = np.arange(seen, seen + batch.num_rows, dtype=np.int64)
            is_wanted = np.isin(_ints(batch["index"]), windows) | np.isin(here, ordinals)
            seen += batch.num_rows
            if is_wanted.any():
                rows = batch.filter(pa.array(is_wanted)).select(list(COLUMNS)).to_pylist()
                kept += [[_clip(row[name]) for name in COLUMNS] for row in rows]
            if len(kept) >= ENTRIES_KEPT_MAX:
                return kept[:ENTRIES_KEPT_MAX]
    except OSError:
        return kept  # the first pass has reported it
    return kept


def _place_json(place: Place, found: Mapping[str, _NodeLog]) -> Json:
    return {
        "key": _clip(place.key),
        "offset": place.offset,
        "index": place.index,
        "at": {
            node: [index for index, _ in log.spots.get(place, ())][:AROUND]
            for node, log in found.items()
        },
    }


def _clip(value: Any) -> Any:
    return value if not isinstance(value, str) or len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"


def _ints(column: pa.ChunkedArray | pa.Array) -> Ints:
    return np.asarray(pc.fill_null(column, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
