"""Reduce a run's view to the numbers that are compared: by condition and window, by fault. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.finding_texts import merge_totals
from shaketable.reports.run_view import CheckerView, FaultRow, RunView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LATENCY_OPERATIONS_MIN: Final = 5
"""A window with fewer acknowledged operations has no latency."""
NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9

CALM: Final = "calm"
"""The steady phase, and the parts of the chaos phase outside of faults and their aftermath."""


@dataclass(frozen=True, slots=True)
class Series:
    """Measurements of the windows of one condition, by time; NaN where there was too little data.

    `throughput`: acknowledged operations a second. `median_ms`, `p99_ms`: latency of acknowledged
    operations, by their call. `refused`: share of the invoked operations that did not succeed, 0 to
    1. `pieces`: the stretch that each window is part of (`Window.piece`).
    """

    throughput: Floats
    median_ms: Floats
    p99_ms: Floats
    refused: Floats
    pieces: Ints
    condition: str = CALM

    def __len__(self) -> int:
        return len(self.throughput)


@dataclass(frozen=True, slots=True)
class Recoveries:
    """Recovery times after the faults of one kind, in seconds.

    After `never` of them the group did not recover: they are last, with the time waited in vain.
    """

    lengths_s: tuple[float, ...]
    never: int = 0

    @property
    def recovered_s(self) -> tuple[float, ...]:
        """The times after which the group served again."""
        return self.lengths_s[: len(self.lengths_s) - self.never]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run in numbers.

    `findings` counts anomalies by kind, `observed` those that break no promise. `errors` counts
    operations by outcome and error. `setting` is the part of the campaign that matters for a
    comparison. `busy_with_others`: the share of the machine that other work took during the run, if
    known.
    """

    folder: str
    name: str
    verdict: str
    why: str
    operations: int
    conditions: Mapping[str, Series]
    recoveries: Mapping[str, Recoveries]
    findings: Mapping[str, int] = field(default_factory=dict)
    observed: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[tuple[str, str], int] = field(default_factory=dict)
    faults_asked: tuple[str, ...] = ()
    setting: Mapping[str, str] = field(default_factory=dict)
    busy_with_others: float | None = None


def measure(
    view: RunView, setting: Mapping[str, str] | None = None, busy_with_others: float | None = None
) -> Measured:
    """Measure a run."""
    loaded = [(span.start_ns, span.stop_ns) for span in view.phases if span.name in LOADED]
    cut = windows(loaded or [(0, view.duration_ns)], [_fault_period(row) for row in view.faults])
    return Measured(
        folder=view.folder,
        name=view.name,
        verdict=view.verdict,
        why=view.why,
        operations=sum(view.outcomes),
        conditions=series_of(view.operations, cut),
        recoveries=_recoveries(view.faults),
        findings=merge_totals(checker.totals for checker in view.checkers),
        observed=merge_totals(_observed(checker).items() for checker in view.checkers),
        errors={(outcome, text): count for outcome, text, count in view.errors},
        faults_asked=view.faults_asked,
        setting=dict(setting or {}),
        busy_with_others=busy_with_others,
    )


def _observed(checker: CheckerView) -> dict[str, int]:
    """Count anomalies that break no promise, by kind: all, or those that an older run kept."""
    kept: Counter[str] = Counter()
    for group in checker.observed:
        kept[group.kind] += group.total
    return {**kept, **dict(checker.observed_totals)}


def series_of(operations: pa.Table, cut: Mapping[str, Sequence[Window]]) -> dict[str, Series]:
    """Measure the windows of each condition.

    Args:
        operations: rows of OPERATIONS in any order; reads call_ns, return_ns and outcome.
        cut: the windows of each condition.
    """
    is_ok = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    ok = operations.filter(is_ok)
    calls = _times(ok["call_ns"])
    latency_ms = (_times(ok["return_ns"]) - calls) / NS_PER_MS
    order = np.argsort(calls, kind="stable")
    calls, latency_ms = calls[order], latency_ms[order]
    returns = np.sort(_times(ok["return_ns"]))
    called = np.sort(_times(operations["call_ns"]))
    return {
        name: _series(name, of_condition, calls, latency_ms, returns, called)
        for name, of_condition in cut.items()
    }


def _series(
    name: str, cut: Sequence[Window], calls: Ints, latency_ms: Floats, returns: Ints, called: Ints
) -> Series:
    starts = np.array([window.start_ns for window in cut], dtype=np.int64)
    stops = np.array([window.stop_ns for window in cut], dtype=np.int64)
    throughput = _inside(returns, starts, stops) / ((stops - starts) / NS_PER_S)
    asked = _inside(called, starts, stops)
    succeeded = _inside(calls, starts, stops)
    refused = np.full(len(cut), np.nan)
    np.divide(asked - succeeded, asked, out=refused, where=asked > 0)
    quantiles = np.full((2, len(cut)), np.nan)
    firsts = np.searchsorted(calls, starts)
    for place, (first, count) in enumerate(zip(firsts, succeeded, strict=True)):
        if count >= LATENCY_OPERATIONS_MIN:
            inside = latency_ms[first : first + count]
            quantiles[:, place] = np.percentile(inside, (50, 99), method="inverted_cdf")
    pieces = np.array([window.piece for window in cut], dtype=np.int64)
    return Series(throughput, quantiles[0], quantiles[1], refused, pieces, name)


def _inside(ascending: Ints, starts: Ints, stops: Ints) -> Ints:
    """Count the times in each window [start, stop)."""
    counts: Ints = np.searchsorted(ascending, stops) - np.searchsorted(ascending, starts)
    return counts


def _times(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _fault_period(row: FaultRow) -> FaultPeriod:
    """Return the span of a fault and its aftermath: until the group served again, plus a while."""
    window, recovery = row.window, row.recovery
    until_ns = window.stop_ns
    if recovery is not None and recovery.recovery_ns is not None and window.took_effect:
        until_ns = max(until_ns, window.from_ns + recovery.recovery_ns)
    return FaultPeriod(window.name, window.from_ns, until_ns + SETTLE_NS)


def _recoveries(faults: Sequence[FaultRow]) -> dict[str, Recoveries]:
    """Collect recoveries from faults that took effect and were followed by appends."""
    lengths: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for row in faults:
        recovery = row.recovery
        if recovery is None or not recovery.took_effect or not recovery.asked:
            continue
        name = row.window.name
        if recovery.recovery_ns is None:
            until_ns = recovery.until_ns - row.window.from_ns
            waited.setdefault(name, []).append(until_ns / NS_PER_S)
        else:
            lengths.setdefault(name, []).append(recovery.recovery_ns / NS_PER_S)
    return {
        name: Recoveries((*lengths.get(name, ()), *waited.get(name, ())), len(waited.get(name, ())))
        for name in sorted(lengths.keys() | waited.keys())
    }


# Divides the time of a run into conditions (calm, under some fault), and these into windows.
#
# Runs with different faults, fault times and lengths are compared condition by condition, so that
# a longer fault does not look like a slower group. Pure.

WINDOW_NS: Final = 1_000_000_000
WINDOWS_MAX: Final = 100_000
"""Windows of a run; in a run of more seconds each window is longer."""
SETTLE_NS: Final = WINDOW_NS
"""How long after the undoing of a fault (or the recovery, if later) time is not yet calm."""
LOADED: Final = ("steady", "chaos")
"""The phases in which clients apply the load that the campaign asks for."""


@dataclass(frozen=True, slots=True)
class FaultPeriod:
    """The time of one fault, its aftermath included."""

    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one condition, roughly `WINDOW_NS` long.

    `piece` numbers the contiguous stretches of that condition: windows of one piece are adjacent.
    """

    start_ns: int
    stop_ns: int
    piece: int = 0


def windows(
    loaded: Iterable[tuple[int, int]], fault_periods: Sequence[FaultPeriod]
) -> dict[str, tuple[Window, ...]]:
    """Return the windows of each condition, by time.

    Args:
        loaded: stretches (start_ns, stop_ns) in which clients were working.
        fault_periods: the faults. Where they overlap, the condition is their combination
            ("kill + pause").
    """
    found: dict[str, list[Window]] = {}
    loaded = list(loaded)
    window_ns = max(WINDOW_NS, -(-sum(stop - start for start, stop in loaded) // WINDOWS_MAX))
    for start, stop in loaded:
        for name, from_ns, to_ns in _conditions(start, stop, fault_periods):
            cut = found.setdefault(name, [])
            cut += _cut(from_ns, to_ns, window_ns, piece=cut[-1].piece + 1 if cut else 0)
    return {name: tuple(cut) for name, cut in found.items() if cut}


def _conditions(
    start: int, stop: int, fault_periods: Sequence[FaultPeriod]
) -> list[tuple[str, int, int]]:
    """Split [start, stop) at each start and end of a fault; join neighbours of one condition."""
    edges = {start, stop}
    for fault in fault_periods:
        edges |= {edge for edge in (fault.start_ns, fault.stop_ns) if start < edge < stop}
    pieces: list[tuple[str, int, int]] = []
    for from_ns, to_ns in pairwise(sorted(edges)):
        on = {
            fault.name
            for fault in fault_periods
            if fault.start_ns <= from_ns and fault.stop_ns >= to_ns
        }
        name = " + ".join(sorted(on)) or CALM
        if pieces and pieces[-1][0] == name:
            pieces[-1] = (name, pieces[-1][1], to_ns)
        else:
            pieces.append((name, from_ns, to_ns))
    return pieces


def _cut(start: int, stop: int, window_ns: int, piece: int) -> list[Window]:
    """Split a stretch into equal windows of about `window_ns`; none if it is too short.

    A remainder shorter than half a window makes no window of its own: it has too few operations.
    """
    length, rest_min = stop - start, window_ns // 2
    if length < rest_min:
        return []
    count = max(1, (length + rest_min) // window_ns)
    edges = [start + length * number // count for number in range(count + 1)]
    return [Window(from_ns, to_ns, piece) for from_ns, to_ns in pairwise(edges)]
