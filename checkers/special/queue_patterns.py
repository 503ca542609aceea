"""Queues with unique values: decided by bad patterns, without a search.

Every value that matters has the interval of its enqueue, and that of its dequeue. A value that
was never taken has a dequeue at "never", after all returns: as if everything that remains were
taken after the history's end.

Indeterminate dequeues may have taken values that no known dequeue took. Without them a history is
harder to explain, and with one for every such value it is easier, so both bounds are checked, and
one matching in between. If none of these proves anything, the special case does not decide.

Source: Henzinger, Sezgin & Vafeiadis 2013, Aspect-oriented linearizability proofs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shaketable.checkers.models.encoding import ABSENT, NOTHING
from shaketable.checkers.models.queue_models import Bag
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision

DEQUEUE, ENQUEUE, PEEK = 0, 1, 2
"""Codes of the kinds: the places of the names in sorted order."""
NO_ROW = -1
OPERATION_BYTES = 160
"""What the passes hold at a time for each operation, at the most (measured)."""


@dataclass(frozen=True, slots=True)
class QueueHistory:
    """A queue's history; arrays with an element for each value that was certainly enqueued.

    `put` and `take` are rows of the problem; `take` is NO_ROW where no dequeue is known to have
    taken the value, and then `take_call` and `take_return` are NEVER. `empties` are rows of
    dequeues that found nothing, `unknown_takes` the calls of indeterminate dequeues, sorted.
    """

    problem: Problem
    put: Ints
    take: Ints
    put_call: Ints
    put_return: Ints
    take_call: Ints
    take_return: Ints
    empties: Ints
    unknown_takes: Ints


Accuse = Callable[[QueueHistory], Accusation | None]
"""Finds what no queue of its kind can do, with all intervals as they are."""
Deadlines = Callable[[QueueHistory], Ints]
"""(history) -> for each value by when it must be taken, NEVER if it may stay."""


def decide_queue(
    method: str, problem: Problem, accuse: Accuse, deadlines: Deadlines, limits: Limits
) -> Decision | None:
    """Decide a queue's history; None if values repeat, or indeterminate dequeues leave it open.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    history = _load(problem)
    limits.check_time()
    if history is None:
        return None
    if isinstance(history, Accusation):
        return Decision(method, history)
    # An indeterminate dequeue need not happen: if the history is valid without any, it is valid.
    accusation = accuse(history)
    limits.check_time()
    if accusation is None:
        return Decision(method)
    if not len(history.unknown_takes):
        return Decision(method, accusation)
    # As if the first of them had taken each value that is left: if that is invalid, it is invalid.
    most = np.full(int((history.take == NO_ROW).sum()), history.unknown_takes[0])
    relaxed = accuse(_taken(history, np.flatnonzero(history.take == NO_ROW), most))
    limits.check_time()
    if relaxed is not None:
        return Decision(method, _with_unknown(history, relaxed))
    return Decision(method) if accuse(_matched(history, deadlines(history))) is None else None


def covered_empty(history: QueueHistory) -> Accusation | None:
    """Find a dequeue that found nothing while some value was certainly there all the time.

    A value is certainly there from the return of its enqueue to the call of its dequeue. If such
    spans overlap and cover the whole interval of an empty dequeue, the queue was never empty in
    that interval (pattern VWit).
    """
    spans = np.flatnonzero(history.put_return < history.take_call)
    if not len(spans) or not len(history.empties):
        return None
    spans = spans[np.argsort(history.put_return[spans], kind="stable")]
    begins = history.put_return[spans]
    farthest = np.maximum.accumulate(history.take_call[spans])
    calls = history.problem.call_ns[history.empties]
    returns = history.problem.return_ns[history.empties]
    gap = np.ones(len(spans), dtype=np.bool_)
    gap[1:] = begins[1:] >= farthest[:-1]  # two spans that only touch leave a moment between
    heads = np.flatnonzero(gap)
    tails = np.append(heads[1:], len(spans)) - 1
    block = np.searchsorted(begins[heads], calls, side="left") - 1
    is_covered = (block >= 0) & (returns < farthest[tails[np.maximum(block, 0)]])
    if not is_covered.any():
        return None
    which = int(np.flatnonzero(is_covered)[0])
    chain = _chain(history, spans, int(calls[which]), int(returns[which]))
    return _accuse_empty(history, int(history.empties[which]), chain)


def _chain(history: QueueHistory, spans: Ints, call: int, end: int) -> list[int]:
    """Return few values whose spans cover all of [call, end] (greedy interval cover)."""
    begins, ends = history.put_return[spans], history.take_call[spans]
    best = np.arange(len(spans))
    is_new = np.ones(len(spans), dtype=np.bool_)
    is_new[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    best = np.maximum.accumulate(np.where(is_new, best, 0))  # of spans started so far: ends last
    chain: list[int] = []
    at = call
    while not chain or at <= end:
        value = int(spans[best[np.searchsorted(begins, at, side="left") - 1]])
        chain.append(value)
        at = int(history.take_call[value])
    return chain


def _accuse_empty(history: QueueHistory, empty: int, chain: list[int]) -> Accusation:
    rows = [empty]
    parts = []
    for value in chain:
        put, take = int(history.put[value]), int(history.take[value])
        if take == NO_ROW:
            parts.append(f"{{{len(rows)}}}, which no client took out in time")
            rows += [put]
        else:
            parts.append(f"{{{len(rows)}}}, until {{{len(rows) + 1}}}")
            rows += [put, take]
    there = "; then ".join(parts)
    why = f"{{0}} found nothing, though something was there all the time: {there}"
    return accuse_rows(history, rows, why)


def accuse_rows(history: QueueHistory, rows: list[int], why: str) -> Accusation:
    """Accuse rows of the problem; the first is the accused one."""
    return Accusation(tuple(int(history.problem.op[row]) for row in rows), why)


def _load(problem: Problem) -> QueueHistory | Accusation | None:
    """Pair enqueues with dequeues; accuse a value taken twice or never enqueued.

    None if a value was enqueued twice.
    """
    code = problem.kinds.code[problem.kind]
    put_value, taken = problem.kinds.a[problem.kind], problem.kinds.b[problem.kind]
    puts = np.flatnonzero(code == ENQUEUE)
    takes = np.flatnonzero((code == DEQUEUE) & (taken != ABSENT) & (taken != NOTHING))
    values = 1 + max(put_value.max(initial=0), taken.max(initial=0))
    if np.bincount(put_value[puts], minlength=values).max(initial=0) > 1:
        return None
    putter = np.full(values, NO_ROW, dtype=np.int64)
    putter[put_value[puts]] = puts
    accusation = _accuse_takes(problem, takes, taken[takes], putter)
    if accusation is not None:
        return accusation
    taker = np.full(values, NO_ROW, dtype=np.int64)
    taker[taken[takes]] = takes
    take = taker[put_value[puts]]
    keep = (take != NO_ROW) | (problem.return_ns[puts] != NEVER)
    put, take = puts[keep], take[keep]
    is_taken = take != NO_ROW
    unknown_takes = np.flatnonzero((code == DEQUEUE) & (taken == ABSENT))
    return QueueHistory(
        problem=problem,
        put=put,
        take=take,
        put_call=problem.call_ns[put],
        put_return=problem.return_ns[put],
        take_call=np.where(is_taken, problem.call_ns[take], NEVER),
        take_return=np.where(is_taken, problem.return_ns[take], NEVER),
        empties=np.flatnonzero((code == DEQUEUE) & (taken == NOTHING)),
        unknown_takes=np.sort(problem.call_ns[unknown_takes]),
    )


def _accuse_takes(problem: Problem, takes: Ints, values: Ints, putter: Ints) -> Accusation | None:
    """Accuse dequeues of a value never enqueued, taken twice, or taken before its enqueue."""

    def accuse(rows: list[int], why: str) -> Accusation:
        return Accusation(tuple(int(problem.op[row]) for row in rows), why)

    nowhere = takes[putter[values] == NO_ROW]
    if len(nowhere):
        return accuse([int(nowhere[0])], "{0} took what no client ever put in")
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order][1:] == values[order][:-1])
    if len(again):
        one, other = int(takes[order[again[0]]]), int(takes[order[again[0] + 1]])
        rows = [other, one, int(putter[values[order[again[0]]]])]
        return accuse(rows, "{0} took what {1} had taken, and {2} put it in only once")
    early = np.flatnonzero(problem.return_ns[takes] < problem.call_ns[putter[values]])
    if len(early):
        rows = [int(takes[early[0]]), int(putter[values[early[0]]])]
        return accuse(rows, "{0} had returned before {1} was called")
    return None


def _taken(history: QueueHistory, values: Ints, calls: Ints) -> QueueHistory:
    """Return the history as if dequeues called at `calls`, that never return, took `values`."""
    take_call = history.take_call.copy()
    take_call[values] = calls
    return replace(history, take_call=take_call)


def _matched(history: QueueHistory, deadlines: Ints) -> QueueHistory:
    """Let the indeterminate dequeues take values: earliest call, earliest deadline."""
    wanted = np.flatnonzero((history.take == NO_ROW) & (deadlines != NEVER))
    wanted = wanted[np.lexsort((history.put_return[wanted], deadlines[wanted]))]
    count = min(len(wanted), len(history.unknown_takes))
    return _taken(history, wanted[:count], history.unknown_takes[:count])


def _with_unknown(history: QueueHistory, accusation: Accusation) -> Accusation:
    """Add the indeterminate dequeues: that they do not help is part of the proof."""
    code, taken = history.problem.kinds.code, history.problem.kinds.b
    unknown_takes = (code == DEQUEUE) & (taken == ABSENT)
    ops = history.problem.op[unknown_takes[history.problem.kind]].tolist()
    ops = [op for op in ops if op not in accusation.ops]
    return replace(accusation, ops=(*accusation.ops, *ops[:LOST_SHOWN_MAX]))


LOST_SHOWN_MAX = 20
"""The most indeterminate dequeues that an accusation adds; more would not help either."""


# FIFO queues with unique values: decided by four bad patterns, without a search.
#
# A history is linearizable iff it has none of these: a value taken that was never enqueued, or
# only later (VFresh); a value taken twice (VRepet); two values enqueued one after the other and
# taken in the opposite order, or the first never taken (VOrd); a dequeue that found nothing while
# the queue was certainly not empty (VWit). O(n log n) at any concurrency.
#
# Source: Henzinger, Sezgin & Vafeiadis 2013, theorem 4; written from the definition.

FIFO = "fifo"


def has_peeks(problem: Problem) -> bool:
    """Return whether some operation showed the head and left it there: no pattern covers that."""
    return bool((problem.kinds.code == PEEK).any())


def decide_fifo(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide the history of a FIFO queue that starts empty; None if the patterns do not suffice."""
    if problem.start != ():
        return None
    return decide_queue(FIFO, problem, _accuse_fifo, _fifo_deadlines, limits)


def _accuse_fifo(history: QueueHistory) -> Accusation | None:
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
        return accuse_rows(history, rows, why + "no client had taken that one")
    rows.append(int(history.take[first]))
    return accuse_rows(history, rows, why + "{3} began only afterwards")


def _fifo_deadlines(history: QueueHistory) -> Ints:
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


# Unordered queues with unique values: decided value by value, without a search.
#
# A history is linearizable iff every value that was taken had been enqueued (its enqueue was called
# before its dequeue returned), none was taken twice, and no dequeue found nothing while some value
# was certainly there: the bad patterns of the FIFO queue except the one about order. O(n log n) at
# any concurrency.
#
# Source: as checkers.special.queue_patterns.

BAG = "bag"


def decide_bag(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide the history of an unordered queue that starts empty; None if it takes a search."""
    if problem.start != Bag():
        return None
    return decide_queue(BAG, problem, covered_empty, _bag_deadlines, limits)


def _bag_deadlines(history: QueueHistory) -> Ints:
    """Return by when each value must be taken: the first return of an empty dequeue after it.

    That is one that was called after the value's enqueue had returned.
    """
    calls = history.problem.call_ns[history.empties]
    order = np.argsort(calls, kind="stable")
    ends = history.problem.return_ns[history.empties][order]
    earliest = np.append(np.minimum.accumulate(ends[::-1])[::-1], NEVER)
    return earliest[np.searchsorted(calls[order], history.put_return, side="right")]
