"""Throughput and latency over time, reduced to the size of a page: as series, and as a table.

Pure functions. No verdict is computed from these: downsampling is only for display.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.availability import Availability

BUCKETS_MAX = 300
"""Time buckets of a plot, at most."""

POINTS_MAX = 4000
"""Points of one scattered series, at most."""

_STEPS_NS: tuple[int, ...] = tuple(
    int(step * 10**exponent) for exponent in range(8, 15) for step in (1, 2, 5)
)
"""Round widths of buckets and slices: 0.1, 0.2, 0.5, 1, ... s, to 5.8 days."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Operations a second by outcome; `ok[n]` is of the bucket that starts at `starts_s[n]`.

    An ok or fail counts when it returned, an info (which never did) when it was invoked.
    """

    width_s: float
    starts_s: Floats
    ok: Floats
    fail: Floats
    info: Floats


@dataclass(frozen=True, slots=True)
class Latency:
    """Latency of ok operations by the time of their call, in ms; NaN where a bucket is empty."""

    middles_s: Floats
    p50_ms: Floats
    p99_ms: Floats
    max_ms: Floats


@dataclass(frozen=True, slots=True)
class Points:
    """Single operations: row numbers of the table, chosen for a scatter plot."""

    rows: Ints
    total: int


def bucket_ns(duration_ns: int) -> int:
    """Choose a bucket of 0.1, 0.2, 0.5, 1, ... s so that there are at most `BUCKETS_MAX`."""
    for step in _STEPS_NS:
        if duration_ns <= step * BUCKETS_MAX:
            return step
    return -(-duration_ns // BUCKETS_MAX)


def _buckets(duration_ns: int, width_ns: int) -> int:
    """Return the number of buckets; a last one of less than half the width joins the one before."""
    return max(1, (duration_ns + width_ns // 2) // width_ns)


def throughput(operations: pa.Table, duration_ns: int) -> Throughput:
    """Count operations a second by outcome over [0, duration]."""
    width = bucket_ns(duration_ns)
    buckets = _buckets(duration_ns, width)
    lengths_s = np.full(buckets, width / 1e9)
    lengths_s[-1] = max(duration_ns - (buckets - 1) * width, width // 2) / 1e9
    ended = pc.coalesce(operations["return_ns"], operations["call_ns"])

    def rate(outcome: str) -> Floats:
        times = ended.filter(pc.equal(operations["outcome"], outcome)).to_numpy()
        places = np.clip(times // width, 0, buckets - 1).astype(np.int64)
        rates: Floats = np.bincount(places, minlength=buckets) / lengths_s
        return rates

    starts = np.arange(buckets, dtype=np.float64) * (width / 1e9)
    return Throughput(width / 1e9, starts, rate("ok"), rate("fail"), rate("info"))


def latency(operations: pa.Table, duration_ns: int) -> Latency:
    """Compute median, 99th percentile and maximum of the latency of ok operations."""
    width = bucket_ns(duration_ns)
    buckets = _buckets(duration_ns, width)
    ok = operations.filter(
        pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    )
    calls = ok["call_ns"].to_numpy()
    elapsed_ms = (ok["return_ns"].to_numpy() - calls) / 1e6
    places = np.clip(calls // width, 0, buckets - 1).astype(np.int64)
    order = np.lexsort((elapsed_ms, places))
    elapsed_ms = elapsed_ms[order]
    edges = np.searchsorted(places[order], np.arange(buckets + 1))
    columns = np.full((3, buckets), np.nan)
    for bucket in range(buckets):
        inside = elapsed_ms[edges[bucket] : edges[bucket + 1]]
        if len(inside):
            columns[:, bucket] = (_nearest_rank(inside, 50), _nearest_rank(inside, 99), inside[-1])
    middles = (np.arange(buckets, dtype=np.float64) + 0.5) * (width / 1e9)
    return Latency(middles, columns[0], columns[1], columns[2])


def _nearest_rank(ascending: Floats, percent: int) -> float:
    """Return the percentile by nearest rank: always a measured latency."""
    return float(ascending[max(0, -(-len(ascending) * percent // 100) - 1)])


def slowest_and_sample(elapsed_ms: Floats, points_max: int = POINTS_MAX) -> Points:
    """Choose rows to show: the slowest as a quarter of `points_max`, and every k-th of the rest."""
    total = len(elapsed_ms)
    if total <= points_max:
        return Points(np.arange(total, dtype=np.int64), total)
    slow = points_max // 4
    slowest = np.argpartition(elapsed_ms, total - slow)[total - slow :]
    stride = -(-total // (points_max - slow))
    rows = np.union1d(slowest, np.arange(0, total, stride))
    assert len(rows) <= points_max
    return Points(rows.astype(np.int64), total)


# The plots as a table: the run in slices of time, a row each.

SLICES_MAX: Final = 40
"""Rows of the table."""
NAMES_MAX: Final = 12
"""Faults, or leaders, that are named in a row; the others are counted."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice of the run: operations by outcome, latency in ms of those that were ok.

    An ok or fail counts when it returned, an info when it was called; latencies by the call.
    `outage_ns` is how much of the slice the group did not serve. `faults` are the active ones.
    """

    start_ns: int
    stop_ns: int
    ok: int
    fail: int
    info: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    outage_ns: int
    leaders: tuple[str, ...]
    faults: tuple[str, ...]


def slices(
    operations: pa.Table,
    duration_ns: int,
    windows: Sequence[FaultWindow],
    leads: Sequence[tuple[str, int, int]],
    available: Availability | None,
) -> tuple[Slice, ...]:
    """Cut [0, duration] into at most `SLICES_MAX` slices; `leads` are (node, start_ns, stop_ns)."""
    if not operations.num_rows:
        return ()
    width = next(
        (step for step in _STEPS_NS if duration_ns <= step * SLICES_MAX),
        max(1, -(-duration_ns // SLICES_MAX)),
    )
    count = max(1, -(-duration_ns // width))
    ended = pc.coalesce(operations["return_ns"], operations["call_ns"]).to_numpy()
    places = np.clip(ended // width, 0, count - 1)
    outcomes = operations["outcome"]
    numbers = {
        outcome: np.bincount(
            places[np.asarray(pc.fill_null(pc.equal(outcomes, outcome), fill_value=False))],
            minlength=count,
        )
        for outcome in ("ok", "fail", "info")
    }
    ok = operations.filter(pc.and_(pc.equal(outcomes, "ok"), pc.is_valid(operations["return_ns"])))
    calls = ok["call_ns"].to_numpy()
    took_ms = (ok["return_ns"].to_numpy() - calls) / 1e6
    called_in = np.clip(calls // width, 0, count - 1)
    order = np.lexsort((took_ms, called_in))
    took_ms, edges = took_ms[order], np.searchsorted(called_in[order], np.arange(count + 1))
    faults = [(f"{w.name} {w.fault}", w.start_ns, w.stop_ns) for w in windows]
    rows = []
    for place in range(count):
        start_ns, stop_ns = place * width, min((place + 1) * width, max(duration_ns, 1))
        inside = took_ms[edges[place] : edges[place + 1]]
        rows.append(
            Slice(
                start_ns,
                stop_ns,
                ok=int(numbers["ok"][place]),
                fail=int(numbers["fail"][place]),
                info=int(numbers["info"][place]),
                p50_ms=_rank_or_none(inside, 50),
                p99_ms=_rank_or_none(inside, 99),
                max_ms=_rank_or_none(inside, 100),
                outage_ns=0 if available is None else available.lost_ns(start_ns, stop_ns),
                leaders=_during(leads, start_ns, stop_ns),
                faults=_during(faults, start_ns, stop_ns),
            )
        )
    return tuple(rows)


def _rank_or_none(ascending: Floats, percent: int) -> float | None:
    return _nearest_rank(ascending, percent) if len(ascending) else None


def _during(spans: Sequence[tuple[str, int, int]], start_ns: int, stop_ns: int) -> tuple[str, ...]:
    """Return the names of the spans that overlap [start, stop), each once, in their order.

    A span of no length counts where it starts.
    """
    inside = (
        name for name, start, stop in spans if start < stop_ns and max(start + 1, stop) > start_ns
    )
    names = tuple(dict.fromkeys(inside))
    return (
        names if len(names) <= NAMES_MAX else (*names[:NAMES_MAX], f"{len(names) - NAMES_MAX} more")
    )
