"""Quiet times, in which no fault was in force: bounds on time are judged only there. Pure.

A bound on time is a promise of a healthy group. A fault disturbs it from when it starts to be
applied until `RECOVERY_NS` after it was undone: elections, reconnects and backlogs take a while. A
busy machine disturbs it too: elections that no fault explains, and clients that stalled, count in
the same way. And if no client was answered meanwhile, it was the machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shaketable.checkers.anomalies.observations import (
    NEVER,
    STARTS,
    UNANSWERED,
    Bools,
    Ints,
    whole_numbers,
)
from shaketable.harness.contracts.plugins import CheckContext
from shaketable.harness.contracts.promises import FAULTS_OF_CLOCKS

RECOVERY_NS: Final = 5_000_000_000
"""For so long after a fault was undone the group may still be slow."""
ELECTION_NS: Final = 1_500_000_000
"""An election may have started so long before its term was first seen: nodes are polled ten times a
second, and a busy one answers late."""
TERM_SEEN_NS: Final = 5_000_000_000
"""On a machine that is overloaded a term may have begun so long before it was first seen."""
CLOCKS: Final = "clock"
"""The family of faults under which a broker's clock is not the real one."""
LOCAL: Final = tuple(sorted((*STARTS, *UNANSWERED, "unsubscribe")))
"""Operations that may be ok though no broker answered: they are no evidence about the group."""


def quiet_since(context: CheckContext, times: Ints, *, recovery_ns: int = RECOVERY_NS) -> Ints:
    """Return for each time (ns) since when it had been quiet, NEVER if it was not."""
    since = np.zeros(len(times), dtype=np.int64)
    for from_ns, stop_ns in disturbances(context):
        is_begun = from_ns <= times
        over_ns = stop_ns + recovery_ns
        since = np.where(is_begun & (over_ns > times), NEVER, since)
        since = np.where(is_begun & (over_ns <= times), np.maximum(since, over_ns), since)
    return np.asarray(since, dtype=np.int64)


def disturbances(context: CheckContext) -> Iterator[tuple[int, int]]:
    """Yield intervals (ns) in which a fault was in force, a leader was elected, clients stalled."""
    yield from ((window.from_ns, window.stop_ns) for window in context.windows)
    yield from ((seen_ns - ELECTION_NS, seen_ns) for seen_ns in context.elections_ns)
    yield from context.stalls


def is_one_term(context: CheckContext, start_ns: int, stop_ns: int) -> bool:
    """Return whether one leader was in office throughout, with a right clock.

    What a leader promises by itself (a lock, a wait) holds under the other faults too. Where terms
    are not known, only a time without any disturbance counts.
    """
    if not context.elections_ns:
        return all(
            from_ns > stop_ns or to_ns + RECOVERY_NS < start_ns
            for from_ns, to_ns in disturbances(context)
        )
    terms = ((seen_ns - TERM_SEEN_NS, seen_ns) for seen_ns in context.elections_ns)
    return all(
        from_ns > stop_ns or to_ns < start_ns
        for from_ns, to_ns in (*_clock_faults(context), *terms, *context.stalls)
    )


def under_clock_faults(context: CheckContext, start: Ints, end: Ints) -> Bools:
    """Return whether a clock fault was in force at some time from `start` to `end`."""
    is_under = np.zeros(len(start), dtype=np.bool_)
    for from_ns, stop_ns in _clock_faults(context):
        is_under |= (from_ns <= end) & (stop_ns >= start)
    return is_under


def _clock_faults(context: CheckContext) -> Iterator[tuple[int, int]]:
    for window in context.windows:
        family = context.families.get(window.name, "")
        if window.name in FAULTS_OF_CLOCKS or family == CLOCKS:
            yield window.from_ns, window.stop_ns


def answered_between(operations: pa.Table, start: Ints, stop: Ints) -> Bools:
    """Return whether a broker answered, by `stop`, an operation called at `start` or later (ns)."""
    is_ok = pc.and_(pc.equal(operations["outcome"], "ok"), pc.is_valid(operations["return_ns"]))
    is_local = pc.is_in(operations["f"], pa.array(LOCAL))
    table = operations.filter(pc.and_(is_ok, pc.invert(is_local)))
    call, ends = whole_numbers(table["call_ns"]), whole_numbers(table["return_ns"])
    if not len(call):
        return np.zeros(len(start), np.bool_)
    order = np.argsort(call, kind="stable")
    earliest = np.minimum.accumulate(ends[order][::-1])[::-1]
    at = np.searchsorted(call[order], start, side="left")
    is_answered: Bools = (at < len(call)) & (earliest[np.minimum(at, len(call) - 1)] <= stop)
    return is_answered


def unanswered_between(
    operations: pa.Table, start: Ints, stop: Ints, besides: Collection[str]
) -> Bools:
    """Return whether an operation called from `start` to `stop` (ns) had no known outcome.

    Those of the functions `besides` do not count.
    """
    is_other = pc.invert(pc.is_in(operations["f"], pa.array([*LOCAL, *besides])))
    table = operations.filter(pc.and_(pc.equal(operations["outcome"], "info"), is_other))
    call = np.sort(whole_numbers(table["call_ns"]))
    is_any: Bools = np.searchsorted(call, start, "left") < np.searchsorted(call, stop, "right")
    return is_any
