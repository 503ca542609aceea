"""When clients worked, and which of their operations were still without an answer at a time. Pure.

An outage in which every client waits shows in no call and in no answer: only in that the clients'
time went by. Source: the phases in run.json, and Jepsen's `:info` for when a client gave up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.harness.history.export import GIVEN_UP
from shaketable.harness.history.schema import APPENDING

Times = npt.NDArray[np.int64]

LOADED: Final = ("steady", "chaos")
"""The phases in which clients put the load on that the campaign asks for."""
RETRY: Final = "retry"
"""Clients work until its end where a kind of fault had not bitten in their time."""
DRAIN: Final = "drain"
"""Its begin stops clients that still work: those of a run that was ended early."""
TEARDOWN: Final = "teardown"
NEVER_NS: Final = int(np.iinfo(np.int64).max)
"""The end of an operation that has none."""
NS_PER_S: Final = 1e9


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """A phase of the run (steady, chaos, heal, ...) and when it was."""

    name: str
    start_ns: int
    stop_ns: int


@dataclass(frozen=True, slots=True)
class Worked:
    """Until when clients worked, and when they gave up (rows of GIVEN_UP)."""

    until_ns: int
    given_up: pa.Table = field(default_factory=GIVEN_UP.empty_table)


def worked_until(phases: Iterable[PhaseSpan], time_limit_s: float | None) -> int | None:
    """Return until when clients worked; None if there was no phase in which they did.

    Faults may still be undone when the clients' time is over: the phase "chaos" lasts longer then.
    A run that was ended early goes on working until its drain begins, and one that has a phase
    "retry" until that is over.

    Args:
        phases: of the run; one that did not end stops with what was recorded.
        time_limit_s: how long the campaign lets clients work, if that is known.
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

    Those that append, or all of them where a workload has none.
    """
    appends = operations.filter(pc.is_in(operations["f"], value_set=pa.array(APPENDING)))
    return appends if appends.num_rows else operations


def ends_ns(operations: pa.Table, given_up: pa.Table) -> Times:
    """Return when each operation was over for its client; NEVER_NS if it waits still.

    Args:
        operations: process and return_ns of OPERATIONS are read.
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


def outages(operations: pa.Table, worked: Worked) -> tuple[Times, Times]:
    """Return when stretches began (ns) and ended in which clients asked and got nothing.

    A stretch begins with an acknowledgement after which somebody still waits, else with the next
    call; it ends with the next acknowledgement of what was called while clients worked, or where
    there is none with their time. Time in which nobody asks for anything is none of it.

    Args:
        operations: those that show that the group serves: process, call_ns, return_ns, outcome.
        worked: until when clients worked, and when they gave up.
    """
    until_ns = worked.until_ns
    operations = operations.filter(pc.less_equal(operations["call_ns"], until_ns))
    if not operations.num_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    is_ok = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    acknowledged = np.sort(_times(operations.filter(is_ok)["return_ns"]))
    calls = np.sort(_times(operations["call_ns"]))
    ends = np.sort(ends_ns(operations, worked.given_up))
    begins = np.concatenate((calls[:1], acknowledged))
    stops = np.append(acknowledged, until_ns)
    waiting = np.searchsorted(calls, begins, "right") - np.searchsorted(ends, begins, "right")
    following = np.searchsorted(calls, begins, "right")
    next_call = np.append(calls, NEVER_NS)[following]
    starts = np.where(waiting > 0, begins, next_call)
    starts[0] = calls[0]
    is_one = (starts < stops) & (starts < until_ns)
    return starts[is_one], stops[is_one]


def _times(column: pa.ChunkedArray) -> Times:
    return np.asarray(column.to_numpy(), dtype=np.int64)
