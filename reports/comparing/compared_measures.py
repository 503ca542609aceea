"""A run's view -> the numbers that are compared: by condition and window, by fault. Pure."""

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

from shaketable.reports.run_view import CheckerView, FaultRow, RunView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LATENCY_OPERATIONS_MIN: Final = 5
"""A window with fewer acknowledged operations says nothing of latency."""
NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9

CALM: Final = "calm"
"""Steady phase, and what of the chaos phase lies outside of faults and their aftermath."""


@dataclass(frozen=True, slots=True)
class Series:
    """What was measured in the windows of one condition, by time; NaN where there was too little.

    `throughput`: acknowledged operations a second. `median_ms`, `p99_ms`: latency of the
    acknowledged ones by their call. `refused`: share of the operations called that did not
    succeed, 0 to 1. `pieces`: which windows stand in one stretch (`Window.piece`).
    `condition`: whose windows they are.
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
    """How long the group took to serve again after each fault of a kind, in seconds.

    `never` of them did not: they stand with the time that was waited in vain, behind the others.
    """

    lengths_s: tuple[float, ...]
    never: int = 0

    @property
    def recovered_s(self) -> tuple[float, ...]:
        """Those after which it did serve again."""
        return self.lengths_s[: len(self.lengths_s) - self.never]


@dataclass(frozen=True, slots=True)
class Measured:
    """One run in numbers.

    `findings` counts anomalies by kind, `observed` those that break no promise; `errors` counts
    operations by outcome and error;
    `setting` is what the campaign asked for, as far as it matters for a comparison.
    `others`: the share of the machine that other work took while the run went on, if known.
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
    others: float | None = None


def measure(
    view: RunView, setting: Mapping[str, str] | None = None, others: float | None = None
) -> Measured:
    """Measure a run."""
    findings: Counter[str] = Counter()
    observed: dict[str, int] = {}
    for checker in view.checkers:
        findings.update(dict(checker.totals))
        for kind, count in _observed(checker).items():  # several may see the same
            observed[kind] = max(count, observed.get(kind, 0))
    loaded = [(span.start_ns, span.stop_ns) for span in view.phases if span.name in LOADED]
    cut = windows(loaded or [(0, view.duration_ns)], [_shaken(row) for row in view.faults])
    return Measured(
        folder=view.folder,
        name=view.name,
        verdict=view.verdict,
        why=view.why,
        operations=sum(view.outcomes),
        conditions=series_of(view.operations, cut),
        recoveries=_recoveries(view.faults),
        findings=dict(findings),
        observed=observed,
        errors={(outcome, text): count for outcome, text, count in view.errors},
        faults_asked=view.faults_asked,
        setting=dict(setting or {}),
        others=others,
    )


def _observed(checker: CheckerView) -> dict[str, int]:
    """Count what breaks no promise by kind: all of them, or what an older run kept."""
    kept: Counter[str] = Counter()
    for group in checker.observed:
        kept[group.kind] += group.total
    return {**kept, **dict(checker.observed_totals)}


def series_of(operations: pa.Table, cut: Mapping[str, Sequence[Window]]) -> dict[str, Series]:
    """Measure the windows of each condition.

    Args:
        operations: rows of OPERATIONS in any order; call_ns, return_ns and outcome are read.
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
    """Count the times of each window [start, stop)."""
    counts: Ints = np.searchsorted(ascending, stops) - np.searchsorted(ascending, starts)
    return counts


def _times(column: pa.ChunkedArray) -> Ints:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _shaken(row: FaultRow) -> Shaken:
    """A fault with its aftermath: until the group served again, and a little longer."""
    window, recovery = row.window, row.recovery
    until_ns = window.stop_ns
    if recovery is not None and recovery.recovery_ns is not None and window.took_effect:
        until_ns = max(until_ns, window.from_ns + recovery.recovery_ns)
    return Shaken(window.name, window.from_ns, until_ns + SETTLE_NS)


def _recoveries(faults: Sequence[FaultRow]) -> dict[str, Recoveries]:
    """Collect the recoveries from faults that bit and after which somebody asked."""
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


# Cuts the time of a run into conditions (calm, under this or that fault) and these into windows.
#
# Runs with other faults, other times of faults and other lengths are compared condition by
# condition, so that a longer fault does not look like a slower group. Pure.

WINDOW_NS: Final = 1_000_000_000
WINDOWS_MAX: Final = 100_000
"""Of a run; those of one that lasted longer than so many seconds are longer."""
SETTLE_NS: Final = WINDOW_NS
"""How long after a fault's undo (or the recovery, if that is later) it is not yet calm."""
LOADED: Final = ("steady", "chaos")
"""The phases in which clients put the load on that the campaign asks for."""


@dataclass(frozen=True, slots=True)
class Shaken:
    """A stretch of time in which a fault was at work, its aftermath included."""

    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of one condition, `WINDOW_NS` long or a little less or more.

    `piece` numbers the stretches of that condition: windows of one piece hang together.
    """

    start_ns: int
    stop_ns: int
    piece: int = 0


def windows(
    loaded: Iterable[tuple[int, int]], shaken: Sequence[Shaken]
) -> dict[str, tuple[Window, ...]]:
    """Return the windows of each condition, by time.

    Args:
        loaded: stretches (start_ns, stop_ns) in which clients were at work.
        shaken: the faults, which may overlap: such time is a condition of its own
            ("kill + pause").
    """
    found: dict[str, list[Window]] = {}
    loaded = list(loaded)
    window_ns = max(WINDOW_NS, -(-sum(stop - start for start, stop in loaded) // WINDOWS_MAX))
    for start, stop in loaded:
        for name, begin, end in _conditions(start, stop, shaken):
            cut = found.setdefault(name, [])
            cut += _cut(begin, end, window_ns, piece=cut[-1].piece + 1 if cut else 0)
    return {name: tuple(cut) for name, cut in found.items() if cut}


def _conditions(start: int, stop: int, shaken: Sequence[Shaken]) -> list[tuple[str, int, int]]:
    """Cut [start, stop) where a fault begins or ends; neighbours of one condition are joined."""
    edges = {start, stop}
    for fault in shaken:
        edges |= {edge for edge in (fault.start_ns, fault.stop_ns) if start < edge < stop}
    pieces: list[tuple[str, int, int]] = []
    for begin, end in pairwise(sorted(edges)):
        on = {fault.name for fault in shaken if fault.start_ns <= begin and fault.stop_ns >= end}
        name = " + ".join(sorted(on)) or CALM
        if pieces and pieces[-1][0] == name:
            pieces[-1] = (name, pieces[-1][1], end)
        else:
            pieces.append((name, begin, end))
    return pieces


def _cut(start: int, stop: int, window_ns: int, piece: int) -> list[Window]:
    """Cut a stretch into equal windows of about `window_ns`; none if it is too short.

    A rest of less than half of that makes no window of its own: too few operations fall into it.
    """
    length, rest_min = stop - start, window_ns // 2
    if length < rest_min:
        return []
    count = max(1, (length + rest_min) // window_ns)
    edges = [start + length * number // count for number in range(count + 1)]
    return [Window(begin, end, piece) for begin, end in pairwise(edges)]
