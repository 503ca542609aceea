"""When the group served, and how soon it served again: outages, and recovery after faults. Pure.

An outage in which every client waits shows in no call and no answer, only in the clients' time
passing. Recovery is measured after each fault, and after kills of the leader, by appends; if the
workload has none, by the writes of its registers, sets or counters.

Sources: availability by time, as service level objectives define it; the phases in run.json, and
Jepsen's `:info` for when a client gave up. The recovery time (RTO) of OpenChaos, made stricter:
only an append *invoked* after the fault took effect counts. One in flight at that moment may have
been decided before the fault.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.contracts.plugins import FaultWindow
from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.schema import APPENDING, WRITING

Times = npt.NDArray[np.int64]

LOADED: Final = ("steady", "chaos")
"""The phases in which clients apply the load that the campaign asks for."""
RETRY: Final = "retry"
"""Clients work until the end of this phase if a kind of fault had not taken effect before."""
DRAIN: Final = "drain"
"""The start of this phase stops clients that still work, in a run that was ended early."""
TEARDOWN: Final = "teardown"
NEVER_NS: Final = int(np.iinfo(np.int64).max)
"""The end time of an operation that has not ended."""
NS_PER_S: Final = 1e9
PHASES_MAX: Final = 1_000
TIME_NS_MAX: Final = 366 * 86_400 * 1_000_000_000
"""No run lasts longer: a file with a later time is damaged."""
OUTAGE_MIN_NS: Final = 500_000_000
"""A stretch without an acknowledgement counts as an outage from this length on."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of the run (steady, chaos, heal, ...) and when it was."""

    name: str
    start_ns: int
    stop_ns: int


def phase_spans(phases: object, end_ns: int) -> tuple[PhaseSpan, ...]:
    """Read run.json's phases: rows or a map by name, with start_ns and (if it ended) stop_ns.

    Entries that are no valid phase (wrong types, impossible times) are skipped.
    """
    if isinstance(phases, Mapping):
        phases = [
            {"name": name, **span} for name, span in phases.items() if isinstance(span, Mapping)
        ]
    if not isinstance(phases, Sequence):
        return ()
    spans = []
    for phase in phases[:PHASES_MAX]:
        if not isinstance(phase, Mapping):
            continue
        start_ns, stop_ns = phase.get("start_ns"), phase.get("stop_ns")
        stop_ns = end_ns if stop_ns is None else stop_ns
        if not (_is_time(start_ns) and _is_time(stop_ns)):
            continue
        name = str(phase.get("name") or phase.get("phase") or "?")
        spans.append(PhaseSpan(name, start_ns, max(start_ns, stop_ns)))
    return tuple(sorted(spans, key=lambda span: span.start_ns))


def _is_time(value: object) -> TypeGuard[int]:
    """Return whether a value of an untrusted file can be a time of a run, in ns since its start."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return is_number and 0 <= value <= TIME_NS_MAX  # type: ignore[operator]  # a number, as tested


@dataclass(frozen=True, slots=True)
class ClientActivity:
    """Until when clients worked, and when they gave up on operations (rows of GIVEN_UP)."""

    until_ns: int
    given_up: pa.Table = field(default_factory=GIVEN_UP.empty_table)


def active_until(phases: Iterable[PhaseSpan], time_limit_s: float | None) -> int | None:
    """Return until when clients worked; None if no phase had load.

    The phase "chaos" may outlast the clients' time while faults are undone. In a run that was ended
    early, clients work until the drain begins; with a phase "retry", until its end.

    Args:
        phases: of the run; a phase without an end stops at the last recorded time.
        time_limit_s: how long the campaign lets clients work, if known.
    """
    spans = [span for span in phases if span.name != TEARDOWN]
    loaded = [span for span in spans if span.name in LOADED]
    if not loaded:
        return None
    if time_limit_s is None or not time_limit_s >= 0:
        return max(span.stop_ns for span in loaded)
    drains = [span.start_ns for span in spans if span.name == DRAIN]
    stopped_ns = min(drains, default=max(span.stop_ns for span in spans))
    retries = [span.stop_ns for span in spans if span.name == RETRY]
    if retries:
        return min(stopped_ns, *retries)
    began_ns = min(span.start_ns for span in loaded)
    return int(min(stopped_ns, began_ns + min(time_limit_s * NS_PER_S, NEVER_NS / 2)))


def serving(operations: pa.Table) -> pa.Table:
    """Return the operations whose answers show that the group serves.

    These are the ones that append, or all if the workload has none.
    """
    appends = operations.filter(pc.is_in(operations["f"], value_set=pa.array(APPENDING)))
    return appends if appends.num_rows else operations


def ends_ns(operations: pa.Table, given_up: pa.Table) -> Times:
    """Return when each operation was over for its client; NEVER_NS if it is still in flight.

    Args:
        operations: reads process and return_ns of OPERATIONS.
        given_up: rows of GIVEN_UP.
    """
    ends = _times(pc.fill_null(operations["return_ns"], NEVER_NS))
    processes, times = _times(given_up["process"]), _times(given_up["time_ns"])
    if not len(processes):
        return ends
    order = np.argsort(processes, kind="stable")
    processes, times = processes[order], times[order]
    unknown = np.flatnonzero(ends == NEVER_NS)
    asked = _times(operations["process"])[unknown]
    places = np.minimum(np.searchsorted(processes, asked), len(processes) - 1)
    is_there = processes[places] == asked
    ends = ends.copy()
    ends[unknown[is_there]] = times[places[is_there]]
    return ends


def outages(operations: pa.Table, activity: ClientActivity) -> tuple[Times, Times]:
    """Return the starts and ends (ns) of stretches in which clients waited and got no answer.

    A stretch starts at an acknowledgement after which some operation is still in flight, else at
    the next call. It ends at the next acknowledgement of an operation called while clients worked,
    else at the end of their working time. Time without any operation in flight is not part of it.

    Args:
        operations: those that show that the group serves; reads process, call_ns, return_ns and
            outcome.
        activity: until when clients worked, and when they gave up.
    """
    until_ns = activity.until_ns
    operations = operations.filter(pc.less_equal(operations["call_ns"], until_ns))
    if not operations.num_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_ok = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    acknowledged = np.sort(_times(operations.filter(is_ok)["return_ns"]))
    calls = np.sort(_times(operations["call_ns"]))
    ends = np.sort(ends_ns(operations, activity.given_up))
    moments = np.concatenate((calls[:1], acknowledged))
    stops = np.append(acknowledged, until_ns)
    waiting = np.searchsorted(calls, moments, "right") - np.searchsorted(ends, moments, "right")
    following = np.searchsorted(calls, moments, "right")
    next_call = np.append(calls, NEVER_NS)[following]
    starts = np.where(waiting > 0, moments, next_call)
    starts[0] = calls[0]
    is_one = (starts < stops) & (starts < until_ns)
    return starts[is_one], stops[is_one]


def _times(column: pa.ChunkedArray) -> Times:
    return np.asarray(column.to_numpy(), dtype=np.int64)


# The outages of a run.


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch of time without an acknowledged append."""

    start_ns: int
    stop_ns: int

    @property
    def length_ns(self) -> int:
        """The length of the gap."""
        return self.stop_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Availability:
    """When the group did not serve, judged by acknowledgements.

    `serving` names the operations that are measured: those that append, or all if the workload has
    none. `start_ns` and `stop_ns` bound the time in which clients worked; an outage at its end
    lasts until the first acknowledgement after it, if there was one. `outages` are sorted by time
    and do not overlap.
    """

    serving: tuple[str, ...]
    start_ns: int
    stop_ns: int
    outages: tuple[Gap, ...] = ()

    @property
    def total_ns(self) -> int:
        """The total length of all outages."""
        return sum(outage.length_ns for outage in self.outages)

    @property
    def longest_ns(self) -> int:
        """The length of the longest outage; 0 without any."""
        return max((outage.length_ns for outage in self.outages), default=0)

    @property
    def share(self) -> float:
        """The share of the clients' working time without an outage, 0 to 1."""
        whole = self.stop_ns - self.start_ns
        return 1.0 if whole <= 0 else 1.0 - self.lost_ns(self.start_ns, self.stop_ns) / whole

    def lost_ns(self, start_ns: int, stop_ns: int) -> int:
        """Return how much of [start, stop] was outage."""
        first = bisect_right(self.outages, start_ns, key=_stop_ns)
        inside = takewhile(lambda outage: outage.start_ns < stop_ns, self.outages[first:])
        return sum(
            min(stop_ns, outage.stop_ns) - max(start_ns, outage.start_ns) for outage in inside
        )


def _stop_ns(outage: Gap) -> int:
    return outage.stop_ns


def availability(operations: pa.Table, activity: ClientActivity | None) -> Availability | None:
    """Find the outages of a run; None if no operation was invoked while clients worked.

    Args:
        operations: rows of OPERATIONS in any order.
        activity: when clients worked. If None, they count as working until the last call, and an
            outage in which all clients wait until the end is missed.
    """
    asked = serving(operations)
    if not asked.num_rows:
        return None
    activity = activity or ClientActivity(int(pc.max(asked["call_ns"]).as_py()))
    start_ns = int(pc.min(asked["call_ns"]).as_py())
    if start_ns > activity.until_ns:
        return None
    starts, stops = outages(asked, activity)
    is_long = stops - starts >= OUTAGE_MIN_NS
    found = zip(starts[is_long].tolist(), stops[is_long].tolist(), strict=True)
    names = tuple(sorted(filter(None, pc.unique(asked["f"]).to_pylist())))
    return Availability(names, start_ns, activity.until_ns, tuple(Gap(*each) for each in found))


# Recovery after each fault.

WATCH_MIN_NS = 2_000_000_000
"""Clients that stop sooner after a fault do not show that the group never recovered from it."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """How the group recovered from one fault.

    `recovery_ns`: from the start of applying the fault (sending SIGKILL) to the first
    acknowledgement of an append that was invoked after the fault was in effect (the process is
    gone), or of one that had waited for an answer throughout the aftermath; None if there was none.
    `asked`: appends invoked between the effect and `until_ns`, plus those invoked before and still
    unanswered then. It is 0 too if nothing was acknowledged and the clients stopped less than
    `WATCH_MIN_NS` after the effect. If 0, the absence of a recovery means nothing.
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
        if back_ns is None and last_ns is not None and last_ns - window.start_ns < WATCH_MIN_NS:
            asked = 0
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
    calls, ends = _known_times(appends["call_ns"]), ends_ns(appends, activity.given_up)
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
    recoveries = list(recoveries)
    asked = [recovery for recovery in recoveries if recovery.took_effect and recovery.asked]
    times = [recovery.recovery_ns for recovery in asked if recovery.recovery_ns is not None]
    gaps = [each.gap.length_ns for each in recoveries if each.took_effect and each.gap is not None]
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
    calls = np.sort(_known_times(appends["call_ns"]))
    return calls, _known_times(acknowledged["call_ns"]), _known_times(acknowledged["return_ns"])


def _known_times(column: Any) -> Times:
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
# acknowledged by the old leader and does not count, so the time is never too short (it may be for a
# target whose logs have leaders of their own, of which one was killed, as Kafka's). A target may
# have goals for it (contracts.promises.Promises.failover_goals_s).
#
# Source: recovery time (RTO) of OpenChaos.

KILL = "kill"
P99 = 0.99
Goals = tuple[float, float] | None
"""Of a target's failover: the median and the 99th percentile, in seconds."""


@dataclass(frozen=True, slots=True)
class Failover:
    """The leader kills of a run, and the next acknowledged write after each.

    `kills` are those after which a client invoked an append; in `never` of them none was
    acknowledged again. The times are None if no kill was recovered from. `goals_s`: what they
    should be at most, if the target has such goals: the median, and the 99th percentile.
    """

    kills: int
    never: int
    median_ns: int | None
    p99_ns: int | None
    max_ns: int | None
    goals_s: Goals = None

    @property
    def meets_goals(self) -> bool | None:
        """Whether writes always continued, and within the goals; None without goals."""
        if self.goals_s is None:
            return None
        median_s, p99_s = self.goals_s
        return (
            self.never == 0
            and self.median_ns is not None
            and self.p99_ns is not None
            and self.median_ns <= median_s * 1e9
            and self.p99_ns <= p99_s * 1e9
        )


def kills_leader(window: FaultWindow, plan: Mapping[str, Any], nodes: int) -> bool:
    """Return whether the fault is a kill that took effect, hit the leader and left a majority."""
    victims: Sequence[str] = plan.get("victims") or ()
    is_leader_in = plan.get("leader") is not None and plan["leader"] in victims
    return window.name == KILL and window.took_effect and is_leader_in and 2 * len(victims) < nodes


def summarise_failover(recoveries: Iterable[Recovery], goals_s: Goals = None) -> Failover | None:
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
        goals_s=goals_s,
    )


def measure_failover(
    operations: pa.Table,
    windows: Sequence[FaultWindow],
    plans: Mapping[int, Mapping[str, Any]],
    nodes: int,
    activity: ClientActivity | None = None,
    goals_s: Goals = None,
) -> Failover | None:
    """Measure a run's failover from its operations, faults and their plans as aimed.

    Without `activity`, kills after which every client was stuck waiting are missed.
    """
    recoveries = zip(windows, recovery_times(operations, windows, activity), strict=True)
    of_kills = (
        recovery
        for window, recovery in recoveries
        if kills_leader(window, plans.get(window.fault, {}), nodes)
    )
    return summarise_failover(of_kills, goals_s)


def failover_json(found: Failover) -> dict[str, Any]:
    """Return the numbers for results.json, in seconds."""
    goals = {}
    if found.goals_s is not None:
        median_s, p99_s = found.goals_s
        goals = {
            "goal_median_s": median_s, "goal_p99_s": p99_s, "meets_goals": found.meets_goals
        }  # fmt: skip
    return {
        "leader_kills": found.kills,
        "never": found.never,
        "median_s": _seconds(found.median_ns),
        "p99_s": _seconds(found.p99_ns),
        "worst_s": _seconds(found.max_ns),
        **goals,
    }


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e9, 6)
