"""Collects the log entries around the places that findings are about, for the report.

Pure but for the logs, which are passed in as iterators of batches of ENTRIES. The first pass finds
where each node holds what a finding is about, the second collects the entries around it on all
nodes. Nothing here changes a verdict.

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

from shaketable.checkers.evidence.offset_map import AckedAppends, NodeOffsets, map_of

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

Ints = npt.NDArray[np.int64]
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
