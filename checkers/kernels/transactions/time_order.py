"""The order of transactions in real time, reduced: each edge that others imply is left out.

Source: the sweep of Elle's realtime graph (Elle, VLDB 2020).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import compiled

_NONE = -1


@compiled
def frontier_edges(txns: Any, is_end: Any, count: int) -> Any:
    """Sweep over calls and ends in time; return the edges, source and target.

    The frontier holds the transactions that ended, and that no other one which ended was called
    after. It is a list in the order of their ends; those that leave it first are the oldest.

    Args:
        txns: the transaction of each event, in the order of time.
        is_end: whether it is an end.
        count: how many transactions there are.
    """
    found = np.empty((1024, 2), np.int64)
    filled = 0
    frontier = np.empty(count, np.int64)  # by end; what left it is before `oldest`
    place_of = np.full(count, _NONE, np.int64)
    seen = np.zeros(count, np.int64)  # how many had entered the frontier at a transaction's call
    oldest = entered = 0
    for event in range(len(txns)):
        txn = txns[event]
        if not is_end[event]:
            seen[txn] = entered
            while filled + entered - oldest > len(found):
                larger = np.empty((2 * len(found), 2), np.int64)
                larger[:filled] = found[:filled]
                found = larger
            for place in range(oldest, entered):
                found[filled, 0], found[filled, 1] = frontier[place], txn
                filled += 1
        else:
            # All that had ended before its call leave: they are the first in the order of ends.
            oldest = max(oldest, seen[txn])
            frontier[entered] = txn
            place_of[txn] = entered
            entered += 1
    return found[:filled]
