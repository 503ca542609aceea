"""When clients worked, and when the group did not serve them: no request was acknowledged. Pure.

An outage in which every client waits shows in no call and no answer, only in the clients' time
passing.

Source: availability by time, as service level objectives define it; the phases in run.json, and
Jepsen's `:info` for when a client gave up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.schema import APPENDING

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
OUTAGE_MIN_NS: Final = 500_000_000
"""A stretch without an acknowledgement counts as an outage from this length on."""


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of the run (steady, chaos, heal, ...) and when it was."""

    name: str
    start_ns: int
    stop_ns: int


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
