"""A run's view -> the numbers that are compared: by condition and window, by fault. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.reports.comparing.stretches import CALM, LOADED, SETTLE_NS, Shaken, Window, windows
from shaketable.reports.model import CheckerView, FaultRow, RunView

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LATENCY_OPERATIONS_MIN: Final = 5
"""A window with fewer acknowledged operations says nothing of latency."""
NS_PER_MS: Final = 1e6
NS_PER_S: Final = 1e9


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
    if recovery is not None and recovery.recovery_ns is not None and window.bit:
        until_ns = max(until_ns, window.from_ns + recovery.recovery_ns)
    return Shaken(window.name, window.from_ns, until_ns + SETTLE_NS)


def _recoveries(faults: Sequence[FaultRow]) -> dict[str, Recoveries]:
    """Collect the recoveries from faults that bit and after which somebody asked."""
    lengths: dict[str, list[float]] = {}
    waited: dict[str, list[float]] = {}
    for row in faults:
        recovery = row.recovery
        if recovery is None or not recovery.bit or not recovery.asked:
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
