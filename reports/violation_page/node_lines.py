"""The lines of the nodes' logs around some moments, merged by time.

Log lines have the wall clock of their node, the harness' markers the run's own time. Run.json's
`clock` relates the two. If it is missing (older runs), the markers bound it: a node wrote a line
after the marker before it, so each such pair is an upper bound of the clock at the run's start.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from shaketable.harness.history.run_folder import NoPlainFileError, open_plain
from shaketable.reports.check_page.checked_history import visible
from shaketable.reports.violation_page.violation_view import LogLine, LogLines

FILE_BYTES_MAX: Final = 16 << 20
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
                file.seek(max(0, size - FILE_BYTES_MAX))
                data = file.read(FILE_BYTES_MAX)
        except (NoPlainFileError, OSError, ValueError, RuntimeError):
            continue  # RuntimeError: a symbolic link to itself
        text = data.decode("utf-8", "replace")
        log = NodeLog(node, is_cut=size > FILE_BYTES_MAX)
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
