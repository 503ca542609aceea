"""How long the group took to serve again after each fault: pure functions of Arrow tables.

Source: the recovery time (RTO) of OpenChaos, sharpened: only an append that was *invoked*
after the fault's effect counts, since one that was on its way proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.history.schema import APPENDING
from harness.plugins import FaultWindow

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time without an acknowledged append."""

    start_ns: int
    stop_ns: int

    @property
    def length_ns(self) -> int:
        """How long it was."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the group recovered from one fault.

    `recovery_ns`: from when the fault began to be applied (the SIGKILL sent) to the first
    acknowledgement of an append that was invoked after it was in effect (the process gone);
    None if there was none.
    `asked`: appends that were invoked from the effect to `until_ns`; with 0 of them the
    absence of a recovery says nothing.
    `gap`: the longest stretch without an acknowledged append from the effect to `until_ns`;
    None if nobody asked.
    `until_ns`: where the fault's aftermath ends: the first start of another fault after this
    one was undone, else the run's last invocation of an append.
    `bit`: whether the fault did anything; after one that did not there is nothing to recover.
    """

    fault: int
    recovery_ns: int | None
    gap: Gap | None
    asked: int
    until_ns: int
    bit: bool = True


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Over the faults that bit and after which somebody asked; `never` did not recover."""

    median_ns: int | None
    max_ns: int | None
    gap_max_ns: int | None
    recovered: int
    never: int


def recovery_times(operations: pa.Table, windows: Sequence[FaultWindow]) -> list[Recovery]:
    """Return one `Recovery` for each window, in the order of `windows`.

    Args:
        operations: rows of OPERATIONS in any order; f, call_ns, return_ns and outcome are read.
        windows: the faults as they were done.
    """
    calls, ok_calls, ok_returns = _append_times(operations)
    by_call = np.argsort(ok_calls, kind="stable")
    ok_calls = ok_calls[by_call]
    first_return_from = np.minimum.accumulate(ok_returns[by_call][::-1])[::-1]
    acknowledged = np.sort(ok_returns)
    starts = np.sort(np.array([window.start_ns for window in windows], dtype=np.int64))

    recoveries = []
    for window in windows:
        until_ns = _until(window, starts, calls)
        first = np.searchsorted(calls, window.start_ns, side="left")
        asked = int(np.searchsorted(calls, until_ns, side="right") - first)
        position = int(np.searchsorted(ok_calls, window.start_ns, side="left"))
        recovery_ns = None
        if position < len(ok_calls):
            recovery_ns = int(first_return_from[position]) - window.from_ns
        gap = _longest(acknowledged, window.start_ns, until_ns) if asked else None
        recoveries.append(Recovery(window.fault, recovery_ns, gap, asked, until_ns, window.bit))
    return recoveries


def longest_gap(operations: pa.Table, start_ns: int, stop_ns: int) -> Gap:
    """Return the longest stretch in [start, stop] without an acknowledged append.

    The interval's ends bound it like acknowledgements; of equal gaps the first is returned.
    """
    _, _, ok_returns = _append_times(operations)
    return _longest(np.sort(ok_returns), start_ns, stop_ns)


def summarise(recoveries: Iterable[Recovery]) -> RecoverySummary:
    """Join the recoveries of a run into the numbers that its summary prints."""
    asked = [recovery for recovery in recoveries if recovery.bit and recovery.asked]
    times = [recovery.recovery_ns for recovery in asked if recovery.recovery_ns is not None]
    gaps = [recovery.gap.length_ns for recovery in asked if recovery.gap is not None]
    return RecoverySummary(
        median_ns=int(np.median(times)) if times else None,
        max_ns=max(times, default=None),
        gap_max_ns=max(gaps, default=None),
        recovered=len(times),
        never=len(asked) - len(times),
    )


def _append_times(operations: pa.Table) -> tuple[Times, Times, Times]:
    """Return sorted invocation times of all appends; calls and returns of acknowledged ones."""
    # Their acknowledgements show that the group serves.
    is_append = pc.is_in(operations["f"], value_set=pa.array(APPENDING))
    appends = operations.filter(is_append)
    acknowledged = appends.filter(
        pc.and_(pc.equal(appends["outcome"], "ok"), pc.is_valid(appends["return_ns"]))
    )
    calls = np.sort(_times(appends["call_ns"]))
    return calls, _times(acknowledged["call_ns"]), _times(acknowledged["return_ns"])


def _times(column: Any) -> Times:
    return np.asarray(column.drop_null().to_numpy(), dtype=np.int64)


def _until(window: FaultWindow, starts: Times, calls: Times) -> int:
    """Where the aftermath of a fault ends; never before the fault's start."""
    until_ns = int(calls[-1]) if len(calls) else window.start_ns
    later = int(np.searchsorted(starts, max(window.stop_ns, window.start_ns + 1), side="left"))
    if later < len(starts):
        until_ns = min(until_ns, int(starts[later]))
    return max(until_ns, window.start_ns)


def _longest(acknowledged: Times, start_ns: int, stop_ns: int) -> Gap:
    """Find the longest gap between sorted acknowledgement times within [start, stop]."""
    assert start_ns <= stop_ns
    first = np.searchsorted(acknowledged, start_ns, side="left")
    last = np.searchsorted(acknowledged, stop_ns, side="right")
    inside = acknowledged[first:last]
    edges = np.concatenate(([start_ns], inside, [stop_ns])).astype(np.int64)
    widest = int(np.argmax(np.diff(edges)))
    return Gap(int(edges[widest]), int(edges[widest + 1]))
