"""What nodes kept, and what they wrote into their logs, as the page of a violation shows it.

Entries around a place are shown side by side, with a map of the log, as evidence/entries.json has
them. The file may be of another version, cut, or untrusted: what is malformed is skipped with a
note.

Lines of logs are those around some moments, merged by time. They have the wall clock of their node,
the harness' markers the run's own time. Run.json's `clock` relates the two. If it is missing (older
runs), the markers bound it: a node wrote a line after the marker before it, so each such pair is an
upper bound of the clock at the run's start.
"""

from __future__ import annotations

import json
import re
from bisect import bisect, bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from shaketable.harness.history.run_folder import NoPlainFileError, open_plain, read_plain
from shaketable.reports.check_page.checked_history import visible
from shaketable.reports.plain_json import listed, mapping, whole
from shaketable.reports.violation_page.violation_view import (
    Entries,
    Entry,
    EntryRow,
    LogLine,
    LogLines,
    LogMap,
    Stretch,
    Strip,
)

# Entries.

FILE: Final = "evidence/entries.json"
ENTRIES_BYTES_MAX: Final = 8 << 20
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
        value = json.loads(read_plain(path, ENTRIES_BYTES_MAX))
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


# Lines of logs.

LOG_BYTES_MAX: Final = 16 << 20
"""Only the end of a larger log is read."""
LINES_OF_NODE_MAX: Final = 40
"""Lines of one node that are shown, those nearest to a moment."""
LINE_MAX: Final = 300
"""Characters of a line that are shown."""
REPEATS_MIN: Final = 4
"""A line repeated at least this often is shown once, with its count."""
BEFORE_NS: Final = 5_000_000_000
AFTER_NS: Final = 5_000_000_000
"""How far around a moment lines are shown."""
NS_PER_S: Final = 1_000_000_000
MARKER: Final = re.compile(r"--- shaketable: (?P<what>.*) at (?P<at>[0-9]{1,9}\.[0-9]{3}) s")
_STAMP: Final = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})[T ](?P<time>[0-9]{2}:[0-9]{2}:[0-9]{2})"
    r"(?:[.,](?P<part>[0-9]{1,9}))?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?"
)
STAMP_WITHIN: Final = 60
"""A timestamp must start within this many characters: some programs write JSON."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_CLOCK: Final = (
    "This run does not say what the nodes' clocks showed when it started; their lines are placed"
    " by the harness' marks among them, and may be up to a second too late."
)
NO_TIMES: Final = "The lines of {node} bear no time that could be related to the run's."
CUT: Final = "The log of {node} is large: only the end of it was looked at."


@dataclass(frozen=True, slots=True)
class Clock:
    """The nodes' wall clock at the run's start; `unix_ns` is None if not known.

    `utc_offset_s`: offset from UTC of the local time in their timestamps.
    """

    unix_ns: int | None
    utc_offset_s: int


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line as written: a marker has `run_ns`, a line with a timestamp `unix_ns`, others neither.

    `is_local`: the timestamp has no zone, so `unix_ns` is as if the node's zone were UTC.
    """

    text: str
    run_ns: int | None = None
    unix_ns: int | None = None
    is_local: bool = True


@dataclass(slots=True)
class NodeLog:
    """One node's log; `is_cut`: earlier lines were not read.

    `related`: its lines in the order of time, by clock; cached for the other pages.
    """

    node: str
    lines: list[RawLine] = field(default_factory=list)
    is_cut: bool = False
    related: dict[Clock, tuple[list[LogLine], bool]] = field(default_factory=dict)


def clock_of(run: Mapping[str, Any]) -> Clock:
    """Read run.json's `clock`; a malformed one counts as missing."""
    clock = run.get("clock")
    if not isinstance(clock, Mapping):
        return Clock(None, 0)
    unix_ns, offset_s = clock.get("unix_ns"), clock.get("utc_offset_s", 0)
    if not _is_whole(unix_ns) or not _is_whole(offset_s):
        return Clock(None, 0)
    return Clock(unix_ns, offset_s)


def read_logs(folder: Path, nodes: Iterable[str]) -> list[NodeLog]:
    """Read the nodes' logs that exist."""
    logs = []
    for node in nodes:
        path = folder / "nodes" / node / "node.log"
        try:
            if folder.resolve() not in path.resolve().parents:
                continue
            file, size = open_plain(path)
            with file:
                file.seek(max(0, size - LOG_BYTES_MAX))
                data = file.read(LOG_BYTES_MAX)
        except (NoPlainFileError, OSError, ValueError, RuntimeError):
            continue  # RuntimeError: a symbolic link to itself
        text = data.decode("utf-8", "replace")
        log = NodeLog(node, is_cut=size > LOG_BYTES_MAX)
        log.lines = [parsed(line) for line in text.split("\n") if line.strip()]
        logs.append(log)
    return logs


def parsed(line: str) -> RawLine:
    """Parse a line's timestamp, if it has one."""
    text = visible(line.strip())
    text = text if len(text) <= LINE_MAX else text[: LINE_MAX - 1] + "…"
    if marker := MARKER.match(line):
        return RawLine(visible(marker["what"])[:LINE_MAX], round(float(marker["at"]) * NS_PER_S))
    stamp = _STAMP.search(line, 0, STAMP_WITHIN + 40)
    if stamp is None or stamp.start() > STAMP_WITHIN:
        return RawLine(text)
    try:
        moment = datetime.fromisoformat(f"{stamp['date']}T{stamp['time']}").replace(tzinfo=UTC)
    except ValueError:
        return RawLine(text)
    unix_ns = (moment - _EPOCH) // timedelta(microseconds=1) * 1000
    unix_ns += int((stamp["part"] or "0").ljust(9, "0"))
    if not stamp.start():  # the time has a column of its own
        text = text[stamp.end() :].strip() or text
    zone = stamp["zone"]
    if zone is None:
        return RawLine(text, None, unix_ns)
    return RawLine(text, None, unix_ns - _zone_ns(zone), is_local=False)


def lines_around(
    logs: Sequence[NodeLog],
    clock: Clock,
    moments_ns: Sequence[int],
    events: Sequence[tuple[int, str]] = (),
) -> LogLines | None:
    """Return the lines around some moments; None if there are no logs.

    Args:
        logs: of the nodes.
        clock: relates their times to the run's.
        moments_ns: since the run's start; at least one.
        events: other events (when, what) to show among the lines.
    """
    notes, found = [], []
    spans = _spans(moments_ns)
    is_estimated = False
    for log in logs:
        timed, estimated = _related(log, clock)
        is_estimated |= estimated
        if log.is_cut:
            notes.append(CUT.format(node=log.node))
        if not timed:
            if log.lines:
                notes.append(NO_TIMES.format(node=log.node))
            continue
        inside = _without_repeats([line for span in spans for line in _inside(timed, span)])
        nearest = sorted(
            inside, key=lambda line: min(abs(line.time_ns - each) for each in moments_ns)
        )
        if len(nearest) > LINES_OF_NODE_MAX:
            notes.append(
                f"{len(nearest) - LINES_OF_NODE_MAX} more lines of {log.node} in these seconds"
                f" are in nodes/{log.node}/node.log."
            )
        kept = {id(line) for line in nearest[:LINES_OF_NODE_MAX]}
        found += [line for line in inside if id(line) in kept]
    if not logs:
        return None
    if is_estimated:
        notes.insert(0, NO_CLOCK)
    if found:
        found += [
            LogLine(time_ns, "", what, is_marker=False)
            for time_ns, what in events
            if any(from_ns <= time_ns <= to_ns for from_ns, to_ns in spans)
        ]
    found.sort(key=lambda line: line.time_ns)
    return LogLines(tuple(log.node for log in logs), tuple(found), tuple(spans), tuple(notes))


def _spans(moments_ns: Sequence[int]) -> list[tuple[int, int]]:
    """Return the spans of time around moments, overlapping ones merged."""
    spans: list[tuple[int, int]] = []
    for moment_ns in sorted(moments_ns):
        from_ns, to_ns = max(0, moment_ns - BEFORE_NS), moment_ns + AFTER_NS
        if spans and from_ns <= spans[-1][1]:
            from_ns = spans.pop()[0]
        spans.append((from_ns, to_ns))
    return spans


def _inside(timed: Sequence[LogLine], span: tuple[int, int]) -> Sequence[LogLine]:
    first = bisect_left(timed, span[0], key=_time_of)
    return timed[first : bisect_right(timed, span[1], key=_time_of)]


def _without_repeats(lines: Sequence[LogLine]) -> list[LogLine]:
    """Keep the first of identical lines that are repeated often, and append the count."""
    again: dict[str, list[LogLine]] = {}
    for line in lines:
        if not line.is_marker:
            again.setdefault(line.text, []).append(line)
    kept = []
    for line in lines:
        same = again.get(line.text, ()) if not line.is_marker else ()
        if len(same) < REPEATS_MIN:
            kept.append(line)
        elif same[0] is line:
            until_s = same[-1].time_ns / NS_PER_S
            more = f"{line.text} (again {len(same) - 1} times until {until_s:.3f} s)"
            kept.append(replace(line, text=more))
    return kept


def _related(log: NodeLog, clock: Clock) -> tuple[list[LogLine], bool]:
    """Return a log's lines in the order of time, and whether their times are an estimate."""
    if clock not in log.related:
        start_ns, estimated = _clock_at_start(log, clock)
        timed = sorted(_timed(log, start_ns, clock.utc_offset_s * NS_PER_S), key=_time_of)
        log.related[clock] = timed, estimated
    return log.related[clock]


def _time_of(line: LogLine) -> int:
    return line.time_ns


def _timed(log: NodeLog, start_ns: int | None, offset_ns: int) -> Iterator[LogLine]:
    """Yield the lines with the run's time; without a timestamp, that of the line before."""
    last_ns = None
    for line in log.lines:
        if line.run_ns is not None:
            last_ns = line.run_ns
        elif line.unix_ns is not None and start_ns is not None:
            last_ns = line.unix_ns - start_ns - (offset_ns if line.is_local else 0)
        if last_ns is not None:
            yield LogLine(last_ns, log.node, line.text, line.run_ns is not None)


def _clock_at_start(log: NodeLog, clock: Clock) -> tuple[int | None, bool]:
    """Return what a node's clock showed at the run's start, and whether that is an estimate."""
    if clock.unix_ns is not None:
        return clock.unix_ns, False
    latest: int | None = None
    bounds = []
    for line in log.lines:
        if line.run_ns is not None:
            latest = line.run_ns
        elif line.unix_ns is not None and latest is not None:
            # The clock at the start, plus the time since the marker: an upper bound of the former.
            bounds.append(line.unix_ns - latest)
    return (min(bounds), True) if bounds else (None, False)


def _zone_ns(zone: str) -> int:
    if zone == "Z":
        return 0
    sign = -1 if zone[0] == "-" else 1
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    return sign * (hours * 3600 + minutes * 60) * NS_PER_S


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
