"""Trends of the runs of one name over time, as points and lines of charts.

Pure, except for `Trends`, which measures runs and caches the results.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from shaketable.harness.history.run_folder import RunFolder
from shaketable.harness.serving.index import JUDGED, Entry
from shaketable.harness.serving.store_paths import is_self_contained

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
    from shaketable.reports.comparing.folders import measured  # noqa: PLC0415 - half a second, for others

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
