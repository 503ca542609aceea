"""Quiet times, in which no fault was in force: bounds on time are judged only there. Pure.

A bound on time is a promise of a healthy group. A fault disturbs it from when it starts to be
applied until `RECOVERY_NS` after it was undone: elections, reconnects and backlogs take a while. A
busy machine disturbs it too: elections that no fault explains, and clients that stalled, count in
the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shaketable.checkers.anomalies.observations import NEVER, Ints
from shaketable.harness.contracts.plugins import CheckContext

RECOVERY_NS: Final = 5_000_000_000
"""For so long after a fault was undone the group may still be slow."""
ELECTION_NS: Final = 1_500_000_000
"""An election may have started so long before its term was first seen: nodes are polled ten times a
second, and a busy one answers late."""


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
