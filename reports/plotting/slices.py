"""The plots as a table: the run in slices of time, a row each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.reports.availability.outages import Availability
from shaketable.reports.plotting.series import steps_ns

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
        (step for step in steps_ns() if duration_ns <= step * SLICES_MAX),
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
                p50_ms=_nearest_rank(inside, 50),
                p99_ms=_nearest_rank(inside, 99),
                max_ms=_nearest_rank(inside, 100),
                outage_ns=0 if available is None else available.lost_ns(start_ns, stop_ns),
                leaders=_during(leads, start_ns, stop_ns),
                faults=_during(faults, start_ns, stop_ns),
            )
        )
    return tuple(rows)


def _nearest_rank(ascending: np.ndarray, percent: int) -> float | None:
    if not len(ascending):
        return None
    return float(ascending[max(0, -(-len(ascending) * percent // 100) - 1)])


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
