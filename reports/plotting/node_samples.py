"""Each node's log position, lag and clock errors over time. Pure.

From the rows of samples.jsonl (harness.runtime.group_status). Nodes are sampled at different
moments, so a node's lag is measured against the others' positions interpolated to its own moments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

POINTS_MAX: Final = 1_200
"""Samples of one node that are shown; of more, the extremes of each stretch of time."""
NODES_MAX: Final = 32
"""Nodes that are shown; samples of further nodes are skipped and counted."""
NUMBER_MAX: Final = 2**53
"""Larger numbers are no measured index or offset."""
BREAK_FROM_S: Final = 1.6
"""Two samples of a node so far apart are not joined by a line: it did not answer in between."""
BREAK_SHARE: Final = 0.0016
"""... or this share of the run's age then, where long runs thin out their samples."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    if total <= POINTS_MAX:
        return series
    kept: list[int] = []
    for part in np.array_split(np.arange(total), POINTS_MAX // 4):
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
