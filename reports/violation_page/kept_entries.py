"""Read evidence/entries.json: the nodes' entries around a place side by side, and the log's map.

The file may be of another version, cut, or untrusted: what is malformed is skipped with a note.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from shaketable.harness.history.run_folder import NoPlainFileError, read_plain
from shaketable.reports.plain_json import listed, mapping, whole
from shaketable.reports.violation_page.violation_view import (
    Entries,
    Entry,
    EntryRow,
    LogMap,
    Stretch,
    Strip,
)

FILE: Final = "evidence/entries.json"
FILE_BYTES_MAX: Final = 8 << 20
"""The largest file that `harness.judging.judge` writes."""
KEPT_MAX: Final = 4_000
"""If the file has this many entries of a node, later ones were not kept."""
FORMAT: Final = 1
AROUND: Final = 4
"""Indices shown before and after a place."""
ROWS_MAX: Final = 40
"""Indices that one page shows."""
STRETCHES_MAX: Final = 2_000
"""Stretches of one strip that are drawn."""
MAP_WIDTH: Final = 960
LEFT: Final = 84
RIGHT: Final = 16
TOP: Final = 24
STRIP: Final = 30
STATES: Final = {
    "present": "the acknowledged append is there",
    "missing": "nothing is there",
    "other": "something else is there",
}
TICKS: Final = 6
NOT_KEPT: Final = (
    "What the nodes' logs held around this place was not kept; `shaketable analyze` on this folder"
    " does it, as long as the nodes' files are there."
)
NOT_THIS: Final = "The entries around this place were not kept: there were too many findings."


@dataclass(frozen=True, slots=True)
class Kept:
    """The file's content, as far as it is valid; `note` says why it is empty."""

    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    places: tuple[Mapping[str, Any], ...] = ()
    entries: Mapping[str, Sequence[Entry]] = field(default_factory=dict)
    maps: tuple[Mapping[str, Any], ...] = ()
    note: str = ""


def read_kept(folder: Path) -> Kept:
    """Read the entries that were kept; for a missing or damaged file, return a note."""
    path = folder / FILE
    if not path.exists():
        return Kept(note=NOT_KEPT)
    try:
        value = json.loads(read_plain(path, FILE_BYTES_MAX))
    except (NoPlainFileError, ValueError, RecursionError):
        return Kept(note=f"{FILE} cannot be read. {NOT_KEPT}")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        return Kept(note=f"{FILE} is of another version of shaketable: its entries are not shown.")
    columns = tuple(map(str, listed(value.get("columns"))))
    return Kept(
        nodes={
            str(node): facts
            for node, facts in mapping(value.get("nodes")).items()
            if isinstance(facts, Mapping)
        },
        places=tuple(each for each in listed(value.get("places")) if isinstance(each, Mapping)),
        entries={
            str(node): [*_entries(columns, listed(rows))]
            for node, rows in mapping(value.get("entries")).items()
        },
        maps=tuple(each for each in listed(value.get("maps")) if isinstance(each, Mapping)),
    )


def entries_around(
    kept: Kept, key: str | None, offset: int | None, indices: Sequence[int]
) -> Entries | None:
    """Return the entries around an offset of a queue, or around indices of the log.

    Return None if the violation is about neither.
    """
    if offset is None and not indices:
        return None
    if kept.note:
        return Entries((), (), (), (kept.note,))
    nodes = tuple(sorted(kept.nodes))
    by_node = {node: kept.entries.get(node, ()) for node in nodes}
    wanted = {each for each in indices if each >= 0}
    spots = {
        entry.index
        for entries in by_node.values()
        for entry in entries
        if _is_at_place(entry, key, offset, wanted)
    }
    spots |= wanted
    if not spots and offset is not None:  # no node has it: show where each queue ends before it
        before = [
            max((e for e in entries if e.key == key and (e.offset or 0) < offset),
                key=lambda e: e.offset or 0, default=None)
            for entries in by_node.values()
        ]  # fmt: skip
        spots = {entry.index for entry in before if entry is not None}
    if not spots:
        return Entries(nodes, (), (), (NOT_THIS,))
    rows = _rows(kept, nodes, spots, key, offset, wanted)
    notes = [
        f"{node}: {facts['problem']}." for node, facts in kept.nodes.items() if facts.get("problem")
    ]
    of_nodes = tuple(
        (node, _holds(by_node[node], kept.nodes[node], key, offset, wanted)) for node in nodes
    )
    return Entries(nodes, rows, of_nodes, tuple(notes))


def _rows(
    kept: Kept,
    nodes: Sequence[str],
    spots: Iterable[int],
    key: str | None,
    offset: int | None,
    wanted: set[int],
) -> tuple[EntryRow, ...]:
    near = {index for spot in spots for index in range(spot - AROUND, spot + AROUND + 1)}
    is_dense = any(_is_dense(kept.entries.get(node, ())) for node in nodes)
    at: dict[int, dict[str, list[Entry]]] = {}
    known: dict[str, _Known] = {}
    for node in nodes:
        entries = kept.entries.get(node, ())
        # Where an index is a byte position, show neighbouring entries, not adjacent numbers.
        places = [n for n, e in enumerate(entries) if _is_at_place(e, key, offset, wanted)]
        beside = [] if is_dense else [_beside(place, len(entries)) for place in places]
        known[node] = _known(entries, near, beside, kept.nodes[node])
        chosen = {n for stretch in beside for n in stretch}
        for n, entry in enumerate(entries):
            if entry.index in near or n in chosen:
                at.setdefault(entry.index, {}).setdefault(node, []).append(entry)
    rows: list[EntryRow] = []
    for index in _nearest(sorted(at), sorted(spots)):
        present = at[index]
        kinds = {_what(entry) for entries in present.values() for entry in entries}
        cells = tuple(
            tuple(
                _marked(entry, _is_at_place(entry, key, offset, wanted), len(kinds) > 1)
                for entry in present.get(node, ())
            )
            for node in nodes
        )
        # In a log with byte indices, nothing is left out between two rows.
        is_gap = bool(rows) and is_dense and index - rows[-1].index > 1
        rows.append(EntryRow(index, cells, is_gap, tuple(known[node].has(index) for node in nodes)))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class _Known:
    """The indices for which it is known what a node has: all that it had there was kept."""

    near: Collection[int]
    stretches: tuple[tuple[int, int], ...]
    last: int | None
    is_read: bool

    def has(self, index: int) -> bool:
        if not self.is_read or (self.last is not None and index > self.last):
            return False
        return index in self.near or any(a <= index <= b for a, b in self.stretches)


def _known(
    entries: Sequence[Entry],
    near: Collection[int],
    beside: Sequence[range],
    facts: Mapping[str, Any],
) -> _Known:
    stretches = tuple((entries[n[0]].index, entries[n[-1]].index) for n in beside)
    last = entries[-1].index if len(entries) >= KEPT_MAX else None
    return _Known(near, stretches, last, not facts.get("problem"))


def _beside(place: int, count: int) -> range:
    return range(max(0, place - AROUND), min(count, place + AROUND + 1))


def _is_dense(entries: Sequence[Entry]) -> bool:
    """Return whether a log's indices count entries, so that adjacent ones differ by one."""
    return any(after.index - before.index == 1 for before, after in pairwise(entries))


def _nearest(indices: Sequence[int], spots: Sequence[int]) -> list[int]:
    """Return at most ROWS_MAX indices, those nearest to a spot, in their order."""

    def distance(index: int) -> int:
        place = bisect(spots, index)
        return min(abs(index - spot) for spot in spots[max(0, place - 1) : place + 1])

    return sorted(sorted(indices, key=distance)[:ROWS_MAX])


def _entries(columns: Sequence[str], rows: Iterable[Any]) -> Iterator[Entry]:
    for row in rows:
        named = dict(zip(columns, row if isinstance(row, list) else (), strict=False))
        index = whole(named.get("index"))
        if index is None:
            continue
        yield Entry(
            index=index,
            term=whole(named.get("term")),
            crc=whole(named.get("crc")),
            key=_text(named.get("key")),
            offset=whole(named.get("offset")),
            value=whole(named.get("value")),
            problem=_text(named.get("problem")),
            is_at_place=False,
            differs=False,
        )


def _marked(entry: Entry, is_at_place: bool, differs: bool) -> Entry:
    return Entry(
        entry.index, entry.term, entry.crc, entry.key, entry.offset, entry.value, entry.problem,
        is_at_place, differs,
    )  # fmt: skip


def _is_at_place(entry: Entry, key: str | None, offset: int | None, wanted: set[int]) -> bool:
    if entry.index in wanted:
        return True
    return offset is not None and entry.key == key and entry.offset == offset


def _what(entry: Entry) -> tuple[object, ...]:
    return (entry.term, entry.crc, entry.problem)


def _holds(
    entries: Sequence[Entry],
    facts: Mapping[str, Any],
    key: str | None,
    offset: int | None,
    wanted: set[int],
) -> str:
    """Return what a node has at the place, and how far its log goes."""
    found = [entry for entry in entries if _is_at_place(entry, key, offset, wanted)]
    text = " and ".join(entry_summary(entry) for entry in found[:3]) or "nothing"
    if problem := facts.get("problem"):
        return f"a log that was not read whole ({problem}); found of it: {text}"
    last, committed = whole(facts.get("last")), whole(facts.get("committed"))
    ends = "its log is empty" if last is None else f"its log ends at index {last}"
    upto = "" if committed is None else f", committed up to {committed}"
    return f"{text}; {ends}{upto}"


def entry_summary(entry: Entry) -> str:
    """Summarize an entry: "value 17 (entry 40, term 2)"."""
    if entry.problem is not None:
        return f"a damaged entry ({entry.problem})"
    what = "an entry of the group's own" if entry.key is None else f"value {entry.value}"
    if entry.key is not None and entry.value is None:
        what = "an entry without a value"
    term = "" if entry.term is None else f", term {entry.term}"
    return f"{what} (entry {entry.index}{term})"


def map_around(kept: Kept, key: str | None, offset: int | None) -> LogMap | None:
    """Return the map of a queue, with a marker at an offset; None if none was kept."""
    found = next((each for each in kept.maps if each.get("key") == key), None)
    first = None if found is None else whole(found.get("first"))
    last = None if found is None else whole(found.get("last"))
    if found is None or first is None or last is None or last < first:
        return None
    scale = (MAP_WIDTH - LEFT - RIGHT) / (last - first + 1)
    strips = []
    for number, (node, strip) in enumerate(sorted(mapping(found.get("nodes")).items())):
        if not isinstance(strip, Mapping):
            continue
        counts = mapping(strip.get("counts"))
        strips.append(
            Strip(
                node=str(node),
                y=float(TOP + number * STRIP),
                stretches=tuple(_stretches(listed(strip.get("stretches")), first, last, scale)),
                counts=tuple((state, whole(counts.get(state)) or 0) for state in STATES),
            )
        )
    marker = None
    if offset is not None and first <= offset <= last:
        marker = round(LEFT + (offset - first + 0.5) * scale, 1)
    return LogMap(
        key=str(key),
        first=first,
        last=last,
        acknowledged=whole(found.get("acknowledged")) or 0,
        offsets_a_bin=whole(found.get("bin")) or 1,
        width=MAP_WIDTH,
        height=TOP + STRIP * len(strips) + 24,
        strips=tuple(strips),
        marker=marker,
        ticks=tuple(_ticks(first, last, scale)),
    )


def _stretches(rows: Sequence[Any], first: int, last: int, scale: float) -> Iterator[Stretch]:
    for row in rows[:STRETCHES_MAX]:
        if not isinstance(row, list) or len(row) < 4 or row[2] not in STATES:
            continue
        start, end, count = whole(row[0]), whole(row[1]), whole(row[3]) or 0
        if start is None or end is None or not first <= start <= end <= last:
            continue
        offsets = f"offset {start}" if start == end else f"offsets {start} to {end}"
        title = f"{offsets}: {STATES[row[2]]}"
        if row[2] != "present" and end > start:
            title = f"{offsets}: {row[2]} for {count} acknowledged appends"
        width = max(2.0, (end - start + 1) * scale)
        x = min(LEFT + (start - first) * scale, MAP_WIDTH - RIGHT - width)
        yield Stretch(round(x, 2), round(width, 2), row[2], title)


def _ticks(first: int, last: int, scale: float) -> Iterator[tuple[float, str]]:
    """Yield (x, label) of some round offsets."""
    step = max(1, (last - first) // TICKS)
    scaled = 1
    while scaled * 10 <= step:
        scaled *= 10
    step = next(each * scaled for each in (1, 2, 5, 10) if each * scaled >= step)
    for offset in range(-(-first // step) * step, last + 1, step):
        yield round(LEFT + (offset - first + 0.5) * scale, 1), f"{offset}"


def _text(value: object) -> str | None:
    return None if value is None else str(value)
