"""What is drawn over time, reduced to the size of a page. Pure.

Of clients, throughput and latency: as series, and as a table. Of nodes, each one's log position,
lag and clock errors, from the rows of samples.jsonl (harness.runtime.group_status).
They are sampled at different moments, so a node's lag is measured against the others' positions
interpolated to its own moments.

No verdict is computed from these: downsampling is only for display.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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


# Of nodes.

NODE_POINTS_MAX: Final = 1_200
"""Samples of one node that are shown; of more, the extremes of each stretch of time."""
NODES_MAX: Final = 32
"""Nodes that are shown; samples of further nodes are skipped and counted."""
NUMBER_MAX: Final = 2**53
"""Larger numbers are no measured index or offset."""
BREAK_FROM_S: Final = 1.6
"""Two samples of a node so far apart are not joined by a line: it did not answer in between."""
BREAK_SHARE: Final = 0.0016
"""... or this share of the run's age then, where long runs thin out their samples."""


@dataclass(frozen=True, slots=True)
class NodeSeries:
    """One node's samples by time; a sample of NaNs marks a time in which it did not answer.

    `lag` counts entries from its committed index to the highest that any node of its group had
    committed by then. Clock offsets are NaN for nodes that do not report their clocks.
    """

    node: str
    times_s: Floats
    committed: Floats
    end: Floats
    lag: Floats
    wall_ms: Floats
    monotonic_ms: Floats

    @property
    def has_clocks(self) -> bool:
        """Whether anything is known of its clocks."""
        return not (np.isnan(self.wall_ms).all() and np.isnan(self.monotonic_ms).all())


@dataclass(frozen=True, slots=True)
class Sampled:
    """All nodes' series, by name; `left_out` counts rows that were malformed or too many."""

    nodes: tuple[NodeSeries, ...] = ()
    left_out: int = 0


NOT_SAMPLED: Final = Sampled()


def read_samples(rows: Iterable[Mapping[str, Any]]) -> Sampled:
    """Turn rows of samples.jsonl into series; malformed ones are counted and skipped."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    left_out = 0
    for row in rows:
        sample = _sample(row)
        member = (str(row.get("group") or ""), str(row.get("node")))
        if sample is None or (member not in found and len(found) >= NODES_MAX):
            left_out += 1
            continue
        found.setdefault(member, []).append(sample)
    series = []
    for group in sorted({group for group, _ in found}):
        members = {node: _columns(found[group, node]) for of, node in found if of == group}
        for node, columns in members.items():
            others = [theirs for other, theirs in members.items() if other != node]
            series.append(_series(node, columns, others))
    return Sampled(tuple(sorted(series, key=lambda one: one.node)), left_out)


def _sample(row: Mapping[str, Any]) -> tuple[float, ...] | None:
    """Return time_s, committed, end, wall_ms, monotonic_ms; None if the row is malformed."""
    numbers = [_number(row.get(name)) for name in ("time_ns", "committed_index", "end_index")]
    time_ns, committed, end = numbers
    if time_ns is None or committed is None or end is None or time_ns < 0:
        return None
    clocks = [_number(row.get(name)) for name in ("wall_offset_ms", "monotonic_offset_ms")]
    offsets = [np.nan if number is None else number for number in clocks]
    return (time_ns / 1e9, committed, end, *offsets)


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) < NUMBER_MAX:  # type: ignore[arg-type]  # a number, as tested
        return None
    return float(value)  # type: ignore[arg-type]  # likewise


def _columns(samples: Sequence[tuple[float, ...]]) -> Floats:
    """Return the samples as columns, by time."""
    columns = np.array(samples, dtype=np.float64).T
    return columns[:, np.argsort(columns[0], kind="stable")]


def _series(node: str, columns: Floats, others: Sequence[Floats]) -> NodeSeries:
    times_s, committed, end, wall_ms, monotonic_ms = columns
    furthest = committed
    for theirs in others:
        # Before a node's first sample nothing is known of it; after its last one it stays there.
        there = np.interp(times_s, theirs[0], theirs[1], left=-np.inf)
        furthest = np.maximum(furthest, there)
    series = NodeSeries(node, times_s, committed, end, furthest - committed, wall_ms, monotonic_ms)
    return _with_breaks(_thinned(series))


def _thinned(series: NodeSeries) -> NodeSeries:
    """Keep the extreme samples of each stretch: the largest lag, the largest clock errors."""
    total = len(series.times_s)
    if total <= NODE_POINTS_MAX:
        return series
    kept: list[int] = []
    for part in np.array_split(np.arange(total), NODE_POINTS_MAX // 4):
        kept.append(int(part[-1]))
        kept += [
            int(part[np.argmax(np.nan_to_num(np.abs(values[part])))])
            for values in (series.lag, series.wall_ms, series.monotonic_ms)
        ]
    return _selected(series, np.unique(np.array(kept, dtype=np.int64)))


def _selected(series: NodeSeries, places: Ints) -> NodeSeries:
    return replace(
        series,
        times_s=series.times_s[places],
        committed=series.committed[places],
        end=series.end[places],
        lag=series.lag[places],
        wall_ms=series.wall_ms[places],
        monotonic_ms=series.monotonic_ms[places],
    )


def _with_breaks(series: NodeSeries) -> NodeSeries:
    """Insert a NaN sample where a node did not answer, so that no line is drawn across."""
    times_s = series.times_s
    apart = np.diff(times_s)
    usual = np.median(apart) if len(apart) else 0.0  # thinned-out samples are further apart
    longest = np.maximum(BREAK_FROM_S, np.maximum(BREAK_SHARE * times_s[1:], 4 * usual))
    at = np.flatnonzero(apart > longest) + 1
    if not len(at):
        return series

    def with_breaks(values: Floats) -> Floats:
        return np.insert(values, at, np.nan)

    return NodeSeries(
        series.node,
        np.insert(times_s, at, (times_s[at - 1] + times_s[at]) / 2),
        *map(
            with_breaks,
            (series.committed, series.end, series.lag, series.wall_ms, series.monotonic_ms),
        ),
    )
