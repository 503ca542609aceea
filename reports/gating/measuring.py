"""A run's operations and faults -> the numbers that a policy may bound. Pure.

Source: OpenChaos for recovery time (RTO) and loss (RPO); SRE's availability by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.schema import APPENDING
from harness.plugins import FaultWindow
from harness.verdict import Outcome
from reports.gating.model import Conclusion
from reports.recovery import recovery_times

COLUMNS: Final = ("f", "call_ns", "return_ns", "outcome")
"""Of OPERATIONS: what is measured."""
NS_PER_S: Final = 1e9
NS_PER_MS: Final = 1e6
LOSSES: Final = ("lost-append", "lost-message", "lost-element", "lost-write")
"""Kinds of findings that say that something acknowledged is gone."""
LOSS_CHECKERS: Final = ("durability", "group-delivery", "log-anomalies", "set-full", "total-queue")
"""Checkers that find these, where there are any."""

Times = npt.NDArray[np.int64]


@dataclass(slots=True)
class Measured:
    """Numbers by their keys in a policy, and why those that lack are not known."""

    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def measure_operations(
    operations: pa.Table, windows: Sequence[FaultWindow], unavailable_from_s: float
) -> Measured:
    """Measure recovery, latency and availability.

    Recovery and availability go by operations that append; where a workload has none, by all of
    them. A fault after which nothing was acknowledged again has an infinite recovery time.

    Args:
        operations: the columns COLUMNS of OPERATIONS.
        windows: the faults as they were done.
        unavailable_from_s: a stretch without an acknowledgement counts from this length on.
    """
    found = Measured({"operations": operations.num_rows})
    served = _serving(operations)
    _recovery(found, served, windows)
    _latency(found, operations, windows)
    _availability(found, served, unavailable_from_s)
    return found


def measure_loss(conclusions: Sequence[Conclusion]) -> Measured:
    """Count acknowledged operations that were seen lost, whether or not a promise was broken.

    Several checkers look at the same history: what they count is not added up.
    """
    losses = [
        kind.count
        for one in conclusions
        for kind in (*one.kinds, *one.observed)
        if kind.name in LOSSES
    ]
    able = [one for one in conclusions if one.checker in LOSS_CHECKERS]
    unsure = [one.checker for one in able if one.outcome is Outcome.UNKNOWN]
    if losses:
        return Measured({"acknowledged_loss": max(losses)})
    if unsure:
        return Measured(missing={"acknowledged_loss": f"{', '.join(unsure)} came to no verdict"})
    if not able:
        return Measured(missing={"acknowledged_loss": "no checker of the run looks for losses"})
    return Measured({"acknowledged_loss": 0})


def _serving(operations: pa.Table) -> pa.Table:
    """The operations that show whether the group serves, all under a name that appends."""
    appends = operations.filter(pc.is_in(operations["f"], value_set=pa.array(APPENDING)))
    if appends.num_rows:
        return appends
    names = pa.array([APPENDING[0]] * operations.num_rows, pa.string())
    return operations.set_column(operations.column_names.index("f"), "f", names)


def _recovery(found: Measured, served: pa.Table, windows: Sequence[FaultWindow]) -> None:
    asked = [one for one in recovery_times(served, windows) if one.bit and one.asked]
    if not asked:
        why = "no fault bit after which a client asked" if windows else "there was no fault"
        found.missing["recovery_median_s"] = found.missing["recovery_worst_s"] = why
        return
    times_s = sorted(
        np.inf if one.recovery_ns is None else one.recovery_ns / NS_PER_S for one in asked
    )
    # Of an even number the later one of the middle: an infinite one has no mean with another.
    found.values["recovery_median_s"] = float(times_s[len(times_s) // 2])
    found.values["recovery_worst_s"] = float(times_s[-1])


def _latency(found: Measured, operations: pa.Table, windows: Sequence[FaultWindow]) -> None:
    is_done = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    done = operations.filter(is_done)
    calls = _times(done["call_ns"])
    took_ms = (_times(done["return_ns"]) - calls) / NS_PER_MS
    _p99(found, "p99_ms", took_ms, "no operation was acknowledged")
    first_ns = min((window.from_ns for window in windows), default=None)
    steady = took_ms if first_ns is None else took_ms[calls < first_ns]
    _p99(found, "p99_steady_ms", steady, "no operation was acknowledged before the first fault")


def _p99(found: Measured, key: str, took_ms: npt.NDArray[np.float64], why: str) -> None:
    if len(took_ms):
        found.values[key] = float(np.percentile(took_ms, 99, method="higher"))
    else:
        found.missing[key] = why


def _availability(found: Measured, served: pa.Table, unavailable_from_s: float) -> None:
    calls = _times(served["call_ns"])
    if not len(calls):
        why = "there are no operations"
        found.missing["unavailable_longest_s"] = found.missing["unavailable_total_s"] = why
        return
    is_done = pc.and_(pc.equal(served["outcome"], "ok"), pc.is_valid(served["return_ns"]))
    first, last = int(calls.min()), int(calls.max())
    acknowledged = np.sort(_times(served.filter(is_done)["return_ns"]))
    inside = acknowledged[(acknowledged > first) & (acknowledged < last)]
    gaps_s = np.diff(np.concatenate(([first], inside, [last]))) / NS_PER_S
    found.values["unavailable_longest_s"] = float(gaps_s.max())
    found.values["unavailable_total_s"] = float(gaps_s[gaps_s >= unavailable_from_s].sum())


def _times(column: Any) -> Times:
    return np.asarray(column.to_numpy(), dtype=np.int64)
