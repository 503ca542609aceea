"""Measure how long the group took to serve again: after each fault, and after kills of the leader.

Pure functions of Arrow tables.

Appends are measured; if the workload has none, the writes of its registers, sets or counters.

Source: the recovery time (RTO) of OpenChaos, made stricter: only an append *invoked* after the
fault took effect counts. One in flight at that moment may have been decided before the fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.schema import APPENDING, WRITING
from shaketable.reports.availability.outages import ClientActivity, Gap, ends_ns

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the group recovered from one fault.

    `recovery_ns`: from the start of applying the fault (sending SIGKILL) to the first
    acknowledgement of an append that was invoked after the fault was in effect (the process is
    gone), or of one that had waited for an answer throughout the aftermath; None if there was none.
    `asked`: appends invoked between the effect and `until_ns`, plus those invoked before and still
    unanswered then; if 0, the absence of a recovery means nothing.
    `gap`: the longest stretch without an acknowledged append from the effect to `until_ns`; None if
    no append was invoked.
    `until_ns`: the end of the fault's aftermath: the start of the next fault after this one was
    undone, else the end of the clients' working time (or, if unknown, the run's last invocation of
    an append).
    `took_effect`: whether the fault did anything; if not, there is nothing to recover from.
    """

    fault: int
    recovery_ns: int | None
    gap: Gap | None
    asked: int
    until_ns: int
    took_effect: bool = True


@dataclass(frozen=True, slots=True)
class RecoverySummary:
    """Recoveries from faults that took effect and were followed by appends; `never` had none."""

    median_ns: int | None
    max_ns: int | None
    gap_max_ns: int | None
    recovered: int
    never: int


def recovery_times(
    operations: pa.Table, windows: Sequence[FaultWindow], activity: ClientActivity | None = None
) -> list[Recovery]:
    """Return one `Recovery` for each window, in the order of `windows`.

    Args:
        operations: rows of OPERATIONS in any order; reads f, call_ns, return_ns and outcome, and
            process if `activity` is given.
        windows: the faults as they were applied.
        activity: when clients worked. Without it, waiting clients are not seen, and neither is an
            outage in which all of them wait.
    """
    operations = _writes(operations)
    starts = np.sort(np.array([window.start_ns for window in windows], dtype=np.int64))
    waiting = _NONE_WAITS
    if activity is not None:
        operations = operations.filter(pc.less_equal(operations["call_ns"], activity.until_ns))
        waiting = _waiting(operations, starts, activity)
    calls, ok_calls, ok_returns = _append_times(operations)
    by_call = np.argsort(ok_calls, kind="stable")
    ok_calls = ok_calls[by_call]
    first_return_from = np.minimum.accumulate(ok_returns[by_call][::-1])[::-1]
    acknowledged = np.sort(ok_returns)
    last_ns = int(calls[-1]) if len(calls) else None
    last_ns = last_ns if activity is None else activity.until_ns

    recoveries = []
    for window in windows:
        until_ns = _until(window, starts, last_ns)
        first = np.searchsorted(calls, window.start_ns, side="left")
        asked = int(np.searchsorted(calls, until_ns, side="right") - first)
        waited, answered_ns = waiting.through(window.start_ns, until_ns)
        position = int(np.searchsorted(ok_calls, window.start_ns, side="left"))
        back_ns = int(first_return_from[position]) if position < len(ok_calls) else answered_ns
        recovery_ns = None if back_ns is None else back_ns - window.from_ns
        asked += waited
        gap = _longest(acknowledged, window.start_ns, until_ns) if asked else None
        recoveries.append(
            Recovery(window.fault, recovery_ns, gap, asked, until_ns, window.took_effect)
        )
    return recoveries


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Appends in flight when some fault took effect: their calls and ends, and which were ok."""

    calls: Times
    ends: Times
    is_ok: npt.NDArray[np.bool_]

    def through(self, start_ns: int, until_ns: int) -> tuple[int, int | None]:
        """Count appends in flight from `start_ns` past `until_ns`; return the first answer, too."""
        if start_ns >= until_ns:
            return 0, None
        waited = (self.calls < start_ns) & (self.ends > until_ns)
        answers = self.ends[waited & self.is_ok]
        return int(waited.sum()), int(answers.min()) if len(answers) else None


_NONE_WAITS = _Waiting(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


def _waiting(appends: pa.Table, starts: Times, activity: ClientActivity) -> _Waiting:
    """Return the appends in flight when a fault took effect: a small share of all."""
    calls, ends = _times(appends["call_ns"]), ends_ns(appends, activity.given_up)
    began = np.searchsorted(starts, calls, side="right")
    spans = np.searchsorted(starts, ends, side="left") > began
    is_ok = np.asarray(pc.equal(appends["outcome"], "ok"))
    return _Waiting(calls[spans], ends[spans], is_ok[spans])


def longest_gap(operations: pa.Table, start_ns: int, stop_ns: int) -> Gap:
    """Return the longest stretch in [start, stop] without an acknowledged append.

    Both ends of the interval bound it as an acknowledgement would; of equal gaps, return the first.
    """
    _, _, ok_returns = _append_times(operations)
    return _longest(np.sort(ok_returns), start_ns, stop_ns)


def summarise(recoveries: Iterable[Recovery]) -> RecoverySummary:
    """Summarize the recoveries of a run."""
    asked = [recovery for recovery in recoveries if recovery.took_effect and recovery.asked]
    times = [recovery.recovery_ns for recovery in asked if recovery.recovery_ns is not None]
    gaps = [recovery.gap.length_ns for recovery in asked if recovery.gap is not None]
    return RecoverySummary(
        median_ns=int(np.median(times)) if times else None,
        max_ns=max(times, default=None),
        gap_max_ns=max(gaps, default=None),
        recovered=len(times),
        never=len(asked) - len(times),
    )


def _writes(operations: pa.Table) -> pa.Table:
    """Return the appends; if there are none, what else changes something."""
    for names in (APPENDING, WRITING):
        found = operations.filter(pc.is_in(operations["f"], value_set=pa.array(names)))
        if found.num_rows:
            break
    return found


def _append_times(operations: pa.Table) -> tuple[Times, Times, Times]:
    """Return the sorted call times of all appends, and calls and returns of acknowledged ones."""
    # An acknowledged append shows that the group serves.
    appends = _writes(operations)
    acknowledged = appends.filter(
        pc.and_(pc.equal(appends["outcome"], "ok"), pc.is_valid(appends["return_ns"]))
    )
    calls = np.sort(_times(appends["call_ns"]))
    return calls, _times(acknowledged["call_ns"]), _times(acknowledged["return_ns"])


def _times(column: Any) -> Times:
    return np.asarray(column.drop_null().to_numpy(), dtype=np.int64)


def _until(window: FaultWindow, starts: Times, last_ns: int | None) -> int:
    """Return where the aftermath of a fault ends; never before the fault's start."""
    until_ns = window.start_ns if last_ns is None else last_ns
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


# Failover: how soon writes continue after the leader is killed (RTO).
#
# A kill counts if it took effect, the leader was among its victims, and a majority survived:
# without one no failover is possible. The time runs from sending SIGKILL to the first
# acknowledgement of an append that a client invoked after the process was gone. Only a leader
# elected since can have acknowledged such an append. One in flight during the kill may have been
# acknowledged by the old leader and does not count, so the time is never too short.
#
# Source: recovery time (RTO) of OpenChaos; goals: DESIGN.md section 5.

KILL = "kill"
GOAL_MEDIAN_NS = 1_000_000_000
GOAL_P99_NS = 2_000_000_000
P99 = 0.99


@dataclass(frozen=True, slots=True)
class Failover:
    """The leader kills of a run, and the next acknowledged write after each.

    `kills` are those after which a client invoked an append; in `never` of them none was
    acknowledged again. The times are None if no kill was recovered from.
    """

    kills: int
    never: int
    median_ns: int | None
    p99_ns: int | None
    max_ns: int | None

    @property
    def meets_goals(self) -> bool:
        """Whether writes always continued, and within the goals."""
        return (
            self.never == 0
            and self.median_ns is not None
            and self.p99_ns is not None
            and self.median_ns <= GOAL_MEDIAN_NS
            and self.p99_ns <= GOAL_P99_NS
        )


def kills_leader(window: FaultWindow, plan: Mapping[str, Any], nodes: int) -> bool:
    """Return whether the fault is a kill that took effect, hit the leader and left a majority."""
    victims: Sequence[str] = plan.get("victims") or ()
    is_leader_in = plan.get("leader") is not None and plan["leader"] in victims
    return window.name == KILL and window.took_effect and is_leader_in and 2 * len(victims) < nodes


def summarise_failover(recoveries: Iterable[Recovery]) -> Failover | None:
    """Summarize the recoveries from leader kills; None if no append was invoked after any.

    The 99th percentile is a measured time (nearest rank): for up to 100 kills it is the slowest.
    """
    asked = [recovery for recovery in recoveries if recovery.asked]
    if not asked:
        return None
    times = sorted(one.recovery_ns for one in asked if one.recovery_ns is not None)
    return Failover(
        kills=len(asked),
        never=len(asked) - len(times),
        median_ns=int(np.median(times)) if times else None,
        p99_ns=times[math.ceil(P99 * len(times)) - 1] if times else None,
        max_ns=times[-1] if times else None,
    )


def measure_failover(
    operations: pa.Table,
    windows: Sequence[FaultWindow],
    plans: Mapping[int, Mapping[str, Any]],
    nodes: int,
    activity: ClientActivity | None = None,
) -> Failover | None:
    """Measure a run's failover from its operations, faults and their plans as aimed.

    Without `activity`, kills after which every client was stuck waiting are missed.
    """
    recoveries = zip(windows, recovery_times(operations, windows, activity), strict=True)
    return summarise_failover(
        recovery
        for window, recovery in recoveries
        if kills_leader(window, plans.get(window.fault, {}), nodes)
    )


def failover_json(found: Failover) -> dict[str, Any]:
    """Return the numbers for results.json, in seconds."""
    return {
        "leader_kills": found.kills,
        "never": found.never,
        "median_s": _seconds(found.median_ns),
        "p99_s": _seconds(found.p99_ns),
        "worst_s": _seconds(found.max_ns),
        "goal_median_s": GOAL_MEDIAN_NS / 1e9,
        "goal_p99_s": GOAL_P99_NS / 1e9,
        "meets_goals": found.meets_goals,
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 6)
