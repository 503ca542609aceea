"""FIFO queues with unique values: decided by four bad patterns, without a search.

A history is linearizable iff it has none of these: a value taken that was never enqueued, or
only later (VFresh); a value taken twice (VRepet); two values enqueued one after the other and
taken in the opposite order, or the first never taken (VOrd); a dequeue that found nothing while
the queue was certainly not empty (VWit). O(n log n) at any concurrency.

Source: Henzinger, Sezgin & Vafeiadis 2013, theorem 4; written from the definition.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.queue_history import (
    NO_ROW,
    QueueHistory,
    accuse_rows,
    covered_empty,
    decide_queue,
)

METHOD = "fifo"


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide the history of a FIFO queue that starts empty; None if the patterns do not suffice."""
    if problem.start != ():
        return None
    return decide_queue(METHOD, problem, _accuse, _deadlines, limits)


def _accuse(history: QueueHistory) -> Accusation | None:
    return _out_of_order(history) or covered_empty(history)


def _out_of_order(history: QueueHistory) -> Accusation | None:
    """Find a value that was taken before one that was certainly enqueued earlier (VOrd).

    That is b with some a whose enqueue returned before b's was called, and whose dequeue was
    called after b's had returned. With values sorted by the return of their enqueues, the latest
    call of a dequeue among all such a is a running maximum.
    """
    if not len(history.put):
        return None
    ahead = np.argsort(history.put_return, kind="stable")
    begun = history.take_call[ahead]
    latest = np.maximum.accumulate(begun)
    count = np.searchsorted(history.put_return[ahead], history.put_call, side="left")
    is_bad = (count > 0) & (history.take_return < latest[np.maximum(count - 1, 0)])
    if not is_bad.any():
        return None
    late = int(np.flatnonzero(is_bad)[0])
    first = int(ahead[np.argmax(begun[: count[late]])])
    rows = [int(row) for row in (history.take[late], history.put[first], history.put[late])]
    why = "{0} took a value though {1} was over before {2} began, and "
    if history.take[first] == NO_ROW:
        return accuse_rows(history, rows, why + "nobody had taken that one")
    rows.append(int(history.take[first]))
    return accuse_rows(history, rows, why + "{3} began only afterwards")


def _deadlines(history: QueueHistory) -> Ints:
    """Return by when each value must be taken, so that later values are taken in order.

    An empty dequeue that was called after the value's enqueue returned needs it taken as well.
    """
    deadline = np.full(len(history.put), NEVER, dtype=np.int64)
    empty_calls = history.problem.call_ns[history.empties]
    empty_returns = history.problem.return_ns[history.empties]
    for calls, ends in ((history.put_call, history.take_return), (empty_calls, empty_returns)):
        if not len(calls):
            continue
        order = np.argsort(calls, kind="stable")
        earliest = np.minimum.accumulate(ends[order][::-1])[::-1]
        place = np.searchsorted(calls[order], history.put_return, side="right")
        found = np.append(earliest, NEVER)[place]
        deadline = np.minimum(deadline, found)
    return deadline
