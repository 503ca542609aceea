"""Unordered queues with unique values: decided value by value, without a search.

A history is linearizable iff every value that was taken had been enqueued (its enqueue was called
before its dequeue returned), none was taken twice, and no dequeue found nothing while some value
was certainly there: the bad patterns of the FIFO queue except the one about order. O(n log n) at
any concurrency.

Source: as checkers.special.fifo.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.models.unordered_queue import Bag
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Decision
from shaketable.checkers.special.queue_history import QueueHistory, covered_empty, decide_queue

METHOD = "bag"


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide the history of an unordered queue that starts empty; None if it takes a search."""
    if problem.start != Bag():
        return None
    return decide_queue(METHOD, problem, covered_empty, _deadlines, limits)


def _deadlines(history: QueueHistory) -> Ints:
    """Return by when each value must be taken: the first return of an empty dequeue after it.

    That is one that was called after the value's enqueue had returned.
    """
    calls = history.problem.call_ns[history.empties]
    order = np.argsort(calls, kind="stable")
    ends = history.problem.return_ns[history.empties][order]
    earliest = np.append(np.minimum.accumulate(ends[::-1])[::-1], NEVER)
    return earliest[np.searchsorted(calls[order], history.put_return, side="right")]
