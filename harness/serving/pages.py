"""The content of the store's pages for the templates: list, run, folder, trends."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import numpy as np
from jinja2 import Environment

from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.serving.store import (
    JUDGED,
    STATES,
    Entry,
    Index,
    Listing,
    filter_entries,
    is_allowed_name,
    is_self_contained,
    matrix_of,
)
from shaketable.reports import templating

# Trends of the runs of one name over time, as points and lines of charts.
#
# Pure, except for `Trends`, which measures runs and caches the results.

log = logging.getLogger(__name__)

RUNS_MAX: Final = 40
"""The newest runs of a name; measuring one takes part of a second, the first time."""
OPERATIONS_BYTES_MAX: Final = 128 << 20
"""Runs with larger tables are not measured: a page must not take minutes."""
MEASURING_S: Final = 4.0
"""How long a page may spend measuring; the rest is left for the next request."""
KNOWN_MAX: Final = 2_000
WIDTH: Final = 720.0
HEIGHT: Final = 150.0
LEFT: Final = 64.0
TOP: Final = 10.0
BOTTOM: Final = 22.0
RIGHT: Final = 12.0


@dataclass(frozen=True, slots=True)
class Numbers:
    """The charted numbers of a run; None where unknown.

    `recovery_s` is the median, infinite if the group did not recover from most faults; it did not
    recover from `never` of `recoveries` faults.
    """

    throughput: float | None = None
    p99_ms: float | None = None
    recovery_s: float | None = None
    never: int = 0
    recoveries: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One run in a chart."""

    x: float
    y: float
    entry: Entry
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One number over the runs; `ticks` are heights with labels, `lines` connect neighbours."""

    title: str
    points: tuple[Point, ...]
    lines: tuple[str, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(slots=True)
class Trends:
    """Measures runs, each once until it is judged again. Thread-safe."""

    store: Path
    _known: dict[tuple[str, int], Numbers] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def numbers(self, entry: Entry, until_s: float = math.inf) -> Numbers | None:
        """Return a run's numbers; None if it is not measured yet and `until_s` has passed."""
        folder = RunFolder(self.store.resolve() / entry.id)
        try:
            key = (entry.id, folder.results_json.stat().st_mtime_ns)
        except OSError:
            return Numbers()
        with self._lock:
            if key not in self._known:
                if time.monotonic() > until_s:
                    return None
                while len(self._known) >= KNOWN_MAX:
                    self._known.pop(next(iter(self._known)))
                self._known[key] = _measure(folder)
            return self._known[key]


def _measure(folder: RunFolder) -> Numbers:
    from shaketable.reports.comparing.compared_measures import CALM  # noqa: PLC0415 - as above
    from shaketable.reports.comparing.page import measured  # noqa: PLC0415 - half a second, for others

    try:
        if is_large(folder) or not is_self_contained(folder):
            return Numbers()
        run = measured(folder.path)
    except Exception as error:  # a damaged run must not hide the others
        log.debug("event=not_measured run=%s why=%r", folder.path, error)
        return Numbers()
    calm = run.conditions.get(CALM)
    lengths = [length for each in run.recoveries.values() for length in each.recovered_s]
    never = sum(each.never for each in run.recoveries.values())
    lengths = sorted([*lengths, *[math.inf] * never])
    return Numbers(
        throughput=None if calm is None else _middle(calm.throughput.tolist()),
        p99_ms=None if calm is None else _middle(calm.p99_ms.tolist()),
        # The upper median: with an infinite value there is no mean of the middle two.
        recovery_s=lengths[len(lengths) // 2] if lengths else None,
        never=never,
        recoveries=len(lengths),
    )


def is_large(folder: RunFolder) -> bool:
    """Return whether a run is too large to be measured for a page."""
    size = sum(path.stat().st_size for path in folder.operations.glob("*.parquet"))
    return size > OPERATIONS_BYTES_MAX


def _middle(values: Sequence[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return float(np.median(known)) if known else None


Value = tuple[float | None, str]
"""A number of a run, and a note on it."""
CHARTED: Final[tuple[tuple[str, str, Callable[[Numbers], Value]], ...]] = (
    ("Acknowledged operations a second, calm time", "/s", lambda of: (of.throughput, "")),
    ("p99 latency, calm time", "ms", lambda of: (of.p99_ms, "")),
    ("Median recovery after a fault", "s", lambda of: (of.recovery_s, _never(of))),
)


def _never(of: Numbers) -> str:
    return f"; {of.never} of {of.recoveries} never" if of.never else ""


def draw_charts(entries: Sequence[Entry], trends: Trends) -> tuple[list[Chart], int]:
    """Return charts of the newest judged runs, oldest left, and how many are not measured yet."""
    until_s = time.monotonic() + MEASURING_S
    judged = [entry for entry in entries if entry.state in JUDGED][:RUNS_MAX]
    measured = [(entry, trends.numbers(entry, until_s)) for entry in judged][::-1]
    charts = [
        chart(title, unit, [(entry, *of(numbers or Numbers())) for entry, numbers in measured])
        for title, unit, of in CHARTED
    ]
    return charts, sum(numbers is None for _, numbers in measured)


def chart(title: str, unit: str, values: Sequence[tuple[Entry, float | None, str]]) -> Chart:
    """Lay out one number; runs without it leave a gap, and infinite values are at the top."""
    top = _round_up(max((v for _, v, _ in values if v is not None and v < math.inf), default=1.0))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(values) - 1)
    points: list[Point] = []
    lines: list[list[str]] = []
    line: list[str] = []
    for place, (entry, value, more) in enumerate(values):
        if value is None or not math.isfinite(value):
            lines.append(line)
            line = []
        if value is None or math.isnan(value):
            continue
        x = round(LEFT + place * step, 1)
        share = min(1.0, value / top)
        y = round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - share), 1)
        text = f"{_number(value)} {unit}" if math.isfinite(value) else "never"
        points.append(Point(x, y, entry, text + more))
        if math.isfinite(value):
            line.append(f"{x},{y}")
    lines.append(line)
    ticks = tuple(
        (round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - share), 1), _number(top * share))
        for share in (0.0, 0.5, 1.0)
    )
    return Chart(
        f"{title} ({unit})",
        tuple(points),
        tuple(" ".join(each) for each in lines if len(each) > 1),
        ticks,
    )


def _round_up(value: float) -> float:
    """Return the next higher 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# What each page shows.

TEMPLATES: Final = Path(__file__).parent / "templates"
REPORT_CSS: Final = Path(__file__).parents[2] / "reports" / "templates" / "report.css"
PAGE_DIGITS_MAX: Final = 9
ENTRIES_A_PAGE: Final = 100
OTHERS_MAX: Final = 50
ROWS_MAX: Final = 2_000
FILTERS: Final = ("state", "name", "target", "workload", "world")


def rendered(template: str, **what: object) -> str:
    """Render a page."""
    return _environment().get_template(template).render(**what)


@cache
def style() -> bytes:
    """Return the CSS of all pages: that of the reports and the store's own."""
    return REPORT_CSS.read_bytes() + (TEMPLATES / "store.css").read_bytes()


@cache
def script() -> bytes:
    """Return the only script."""
    return (TEMPLATES / "store.js").read_bytes()


def listing(listed: Listing, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the list of runs, searched and filtered."""
    entries = listed.entries
    terms = {name: query.get(name, "") for name in ("q", *FILTERS)}
    wanted = {name: terms[name] for name in FILTERS}
    found = filter_entries(list(entries), terms["q"], **wanted)
    page = _page_number(query.get("page", ""), len(found))
    first = (page - 1) * ENTRIES_A_PAGE

    def link(number: int) -> str:
        fields = {name: value for name, value in terms.items() if value}
        return urlencode({**fields, "page": number})

    return {
        "entries": found[first : first + ENTRIES_A_PAGE],
        "shown_of": len(found),
        "total": len(entries),
        "matrices": listed.matrices,
        "left_out": listed.left_out,
        "query": terms,
        "choices": [(name, _values(entries, name)) for name in FILTERS],
        "page": page,
        "before": link(page - 1),
        "after": link(page + 1) if first + ENTRIES_A_PAGE < len(found) else "",
    }


def run(entry: Entry, index: Index, *, has_report: bool) -> dict[str, Any]:
    """Return the page of one run."""
    facts = (
        ("started (UTC)", when(entry.time)),
        ("target", entry.target),
        ("planted bug", entry.mutant),
        ("workload", entry.workload),
        ("world", entry.world),
        ("faults", entry.faults),
        ("seed", entry.seed),
        ("operations", "" if entry.operations is None else f"{entry.operations:,}"),
        ("folder", entry.id),
    )
    others = [
        other
        for other in filter_entries(index.entries(), name=entry.name)
        if other.id != entry.id and other.state in JUDGED
    ]
    return {
        "entry": entry,
        "facts": facts,
        "has_report": has_report,
        "matrix": matrix_of(entry.id, index.store),
        "others": others[:OTHERS_MAX] if entry.state in JUDGED else [],
    }


def trending(index: Index, measured: Trends, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the trends of the runs of one name, by default that of the newest run."""
    entries = [entry for entry in index.entries() if entry.state in JUDGED]
    names = Counter(entry.name for entry in entries)
    name = query.get("name") or (entries[0].name if entries else "")
    of_name = [entry for entry in entries if entry.name == name]
    judged = of_name[:RUNS_MAX][::-1]
    charts, left = draw_charts(of_name, measured)
    return {
        "name": name,
        "names": sorted(names.items()),
        "judged": judged,
        "charts": charts,
        "left_out": left,
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
    }


def folder(path: Path, here: Path, *, is_run: bool) -> dict[str, Any]:
    """Return the content of a folder: folders, and regular files with their sizes."""
    rows: list[tuple[str, int | None]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if not is_allowed_name(entry.name) or entry.is_symlink():
                continue
            if entry.is_dir():
                rows.append((entry.name, None))
            elif entry.is_file():
                rows.append((entry.name, entry.stat().st_size))
    rows.sort(key=lambda row: (row[1] is not None, row[0]))
    return {
        "here": "" if here == Path() else str(here),
        "rows": rows[:ROWS_MAX],
        "cut": max(0, len(rows) - ROWS_MAX),
        "is_run": is_run,
    }


def when(time: str) -> str:
    """Return a run's folder name as a readable time, if it is one."""
    try:
        begun = datetime.strptime(time, "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return time
    return f"{begun:%Y-%m-%d %H:%M:%S}"


def quoted(text: object) -> str:
    """Return a path or a name percent-encoded for a URL; it may hold any bytes."""
    return quote(str(text).encode(errors="surrogateescape"))


def safe_name(text: str) -> str:
    """Return a text as a file name that is safe in headers and on every system."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:80].lstrip(".") or "file"


def _values(entries: Sequence[Entry], name: str) -> list[str]:
    there = {getattr(entry, name) for entry in entries} - {""}
    return [state for state in STATES if state in there] if name == "state" else sorted(there)


def _page_number(text: str, found: int) -> int:
    last = max(1, -(-found // ENTRIES_A_PAGE))
    if not (text.isascii() and text.isdigit()):
        return 1
    return min(max(1, int(text)), last) if len(text) <= PAGE_DIGITS_MAX else last


@cache
def _environment() -> Environment:
    environment = templating.environment(TEMPLATES)
    environment.filters["when"] = when
    environment.filters["urlencode"] = quoted
    return environment
