"""Since when no fault was in force: what is judged by time is judged there alone. Pure.

A bound on time is a promise of a healthy group. A fault's time goes from when it began to be
applied to `RECOVERY_NS` after it was undone: elections, reconnects and what piled up take a while.
Where nobody did anything, a busy machine did: an election that no fault explains, or clients that
stalled, are heeded in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from shaketable.checkers.anomalies.observations import NEVER, Ints
from shaketable.harness.contracts.plugins import CheckContext

RECOVERY_NS: Final = 5_000_000_000
"""So long after a fault was undone its group may still be slow."""
ELECTION_NS: Final = 1_500_000_000
"""So long before its term was first seen an election may have begun: nodes are asked ten times a
second, and a busy one answers late."""


def quiet_since(context: CheckContext, times: Ints, *, recovery_ns: int = RECOVERY_NS) -> Ints:
    """Return for each time (ns) since when it had been quiet, NEVER where it was not."""
    since = np.zeros(len(times), dtype=np.int64)
    for from_ns, stop_ns in disturbances(context):
        is_begun = from_ns <= times
        over_ns = stop_ns + recovery_ns
        since = np.where(is_begun & (over_ns > times), NEVER, since)
        since = np.where(is_begun & (over_ns <= times), np.maximum(since, over_ns), since)
    return np.asarray(since, dtype=np.int64)


def disturbances(context: CheckContext) -> Iterator[tuple[int, int]]:
    """Yield from when to when (ns) a fault was in force, a leader was elected, clients stalled."""
    yield from ((window.from_ns, window.stop_ns) for window in context.windows)
    yield from ((seen_ns - ELECTION_NS, seen_ns) for seen_ns in context.elections_ns)
    yield from context.stalls
