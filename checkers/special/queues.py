"""Queues decided without the general search: by bad patterns, or by an order of pairs.

Where values are unique, bad patterns decide. Every value that matters has the interval of its
enqueue, and that of its dequeue. A value that was never taken has a dequeue at "never", after all
returns: as if everything that remains were taken after the history's end.

Indeterminate dequeues may have taken values that no known dequeue took. Without them a history is
harder to explain, and with one for every such value it is easier, so both bounds are checked, and
one matching in between. If none of these proves anything, the special case does not decide.

FIFO queues with repeated values are decided by a search for an order of (enqueue, dequeue) pairs:
it is open which enqueue a dequeue belongs to. The search is checkers.kernels.queue_pairs. It finds
an order of all operations, which is replayed on a queue here, or refutes that there is one. The
longest prefix that has an order is found by searching prefixes.

Source: Henzinger, Sezgin & Vafeiadis 2013, Aspect-oriented linearizability proofs; for pairs, as
checkers.kernels.queue_pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shaketable.checkers.kernels import queue_pairs
from shaketable.checkers.kernels.order_search import AT_DEPTH, STALLED
from shaketable.checkers.kernels.queue_pairs import Pairs, run, set_price
from shaketable.checkers.models.encoding import ABSENT, NOTHING, StepByKind
from shaketable.checkers.models.queue_models import Bag
from shaketable.checkers.search.budget import UNLIMITED, Limits, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Ints, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import (
    VISITS_MAX,
    Accusation,
    Decision,
    OrderSearch,
    first_impassable,
    open_part,
    part_until,
    require_times,
    search_arrays,
)

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
# Source: as checkers.special.queues.

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


# Repeated values: an order of pairs.

PAIRS_METHOD = "pairs"
SHOWN_MAX = 200
"""The most dequeues that an accusation names."""


def decide_by_pairs(problem: Problem, limits: Limits = UNLIMITED) -> Decision:
    """Decide a FIFO queue's history.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time was over before the search started.
        WitnessError: the order that was found is no linearization: a bug in the search.
    """
    limits.require_memory(PAIRED_OPERATION_BYTES * len(problem.kind))
    accusation = _taken_too_often(problem)
    if accusation is not None:
        return Decision(PAIRS_METHOD, accusation)
    queue = QueueOrder(problem, NEVER)
    try:
        is_explained = queue.explains(limits)
    except TimeSpentError:
        return Decision(
            PAIRS_METHOD, part=open_part(problem, queue.reached, PAIRS_METHOD), why="time"
        )
    if is_explained:
        _replay(problem, queue.order())
        return Decision(PAIRS_METHOD)
    return Decision(PAIRS_METHOD, part=_part(problem, queue.reached, limits))


def _taken_too_often(problem: Problem) -> Accusation | None:
    """Accuse a dequeue by whose return its value had been taken more often than enqueued.

    This needs no search, at any concurrency: it counts the enqueues of the value that were
    called by then, and the dequeues of it that had returned.
    """
    code = problem.kinds.code[problem.kind]
    taken = problem.kinds.b[problem.kind]
    takes = np.flatnonzero((code == DEQUEUE) & (taken != ABSENT) & (taken != NOTHING))
    puts = np.flatnonzero(code == ENQUEUE)
    first = first_values(problem)
    put_value = np.concatenate((first, problem.kinds.a[problem.kind[puts]]))
    put_call = np.concatenate((np.full(len(first), BEFORE_ALL), problem.call_ns[puts]))
    times = np.unique(np.concatenate((put_call, problem.return_ns[takes])))
    put_key = put_value * len(times) + np.searchsorted(times, put_call)
    return_key = np.searchsorted(times, problem.return_ns[takes])
    take_key = taken[takes] * len(times) + return_key
    order = np.argsort(take_key, kind="stable")
    takes, value = takes[order], taken[takes[order]]
    in_time = np.searchsorted(np.sort(put_key), take_key[order], side="right")
    in_time -= np.searchsorted(np.sort(put_value), value, side="left")
    before = np.arange(len(takes)) - np.searchsorted(value, value, side="left")
    early = np.flatnonzero(in_time <= before)
    if not len(early):
        return None
    at = int(early[np.argmin(problem.return_ns[takes[early]])])
    others = takes[at - before[at] : at][-SHOWN_MAX:]
    often = f"{before[at] + 1} times" if before[at] else "once"
    called = f"{in_time[at]} enqueues of it" if in_time[at] != 1 else "1 enqueue of it"
    why = (
        f"when {{0}} returned, its value had been taken {often}, but only {called} had been called"
    )
    if len(first):
        why += ", first values among them"
    return Accusation(tuple(problem.op[[takes[at], *others]].tolist()), why, closed=False)


def _replay(problem: Problem, order: Ints) -> None:
    """Verify an order on a queue, and by the times of its operations.

    Raises:
        WitnessError: it is no linearization of the history.
    """
    require_times(problem, order)
    _state_after(problem, order)


def _state_after(problem: Problem, order: Ints) -> deque[int]:
    """Return the contents of the queue after operations, by number.

    Raises:
        WitnessError: one of them is not possible at its place.
    """
    kind = problem.kind[order]
    held = deque(first_values(problem).tolist())
    for code, put, taken in zip(
        problem.kinds.code[kind].tolist(),
        problem.kinds.a[kind].tolist(),
        problem.kinds.b[kind].tolist(),
        strict=True,
    ):
        if code == ENQUEUE:
            held.append(put)
        elif taken == NOTHING:
            if held:
                raise WitnessError("a dequeue finds nothing in a queue that holds something")
        elif not held or (taken not in (ABSENT, held[0])):
            raise WitnessError("a dequeue takes what is not at the queue's head")
        else:
            held.popleft()
    return held


def _part(problem: Problem, reached: int, limits: Limits) -> Part:
    """Return the part up to the first return that cannot be passed, with an order before it."""

    def order_until(until: int) -> Ints | None:
        queue = QueueOrder(problem, until)
        return queue.order() if queue.explains(limits) else None

    def state_after(order: Ints) -> State:
        assert isinstance(problem.step, StepByKind), "a queue's problem is made by its model"
        step = problem.step
        return tuple(step.value(number) for number in _state_after(problem, order))

    end, order = first_impassable(problem, reached, order_until)
    return part_until(problem, end, order, PAIRS_METHOD, state_after)


# Searches by the kernels for an order of a FIFO queue's pairs; makes it an order of operations.

PRICES = (8, 32, 128, 2)
"""By how many pairs an order must be longer to make up for one choice that was not the best: a high
price corrects mistakes farther back. A search that stalls continues with the next price."""
STALL = 1_500
"""The search stalls after so many orders without progress; the limit doubles after all prices."""
PAIRED_OPERATION_BYTES = 300
"""Peak memory for each operation until the search starts."""
BEFORE_ALL = -(2**62)
"""The time at which the first values of a queue were enqueued."""


class QueueOrder(OrderSearch):
    """A search for an order of a queue's pairs."""

    def __init__(self, problem: Problem, until: int) -> None:
        code = problem.kinds.code[problem.kind]
        taken = problem.kinds.b[problem.kind]
        called = problem.call_ns <= until
        self._returned = np.where(problem.return_ns <= until, problem.return_ns, NEVER)
        self._problem = problem
        puts = np.flatnonzero((code == ENQUEUE) & called)
        is_empty = (code == DEQUEUE) & (taken == NOTHING)
        takes = np.flatnonzero((code == DEQUEUE) & ~is_empty & called)
        empties = np.flatnonzero(is_empty & called & (self._returned != NEVER))
        self.puts, self.takes, self.empties = (
            rows[np.argsort(problem.call_ns[rows], kind="stable")]
            for rows in (puts, takes, empties)
        )
        self._first = first_values(problem)
        self.arrays = self._pairs(problem.kinds.a[problem.kind], taken)
        self._stalls = 0
        set_price(self.arrays, PRICES[0])

    def _pairs(self, put_value: Ints, taken: Ints) -> Pairs:
        first = self._first
        earlier = BEFORE_ALL + np.arange(len(first))
        puts = np.concatenate(
            (
                np.stack((earlier, earlier, first), axis=1),
                self._rows(self.puts, put_value[self.puts]),
            )
        )
        value = taken[self.takes]
        takes = self._rows(self.takes, np.where(value == ABSENT, queue_pairs.ANY, value))
        values = 1 + int(max(puts[:, 2].max(initial=0), takes[:, 2].max(initial=0)))
        spare_put = np.flatnonzero(puts[:, 1] == NEVER)
        spare_put = spare_put[np.argsort(puts[spare_put, 2], kind="stable")]
        spare = np.zeros((values + 1, 2), np.int32)
        spare[:, 0] = np.searchsorted(puts[spare_put, 2], np.arange(values + 1))
        empties = np.full((len(self.empties) + 1, 2), NEVER, np.int64)
        empties[:-1] = self._rows(self.empties, self.empties)[:, :2]
        empties[:, 1] = np.minimum.accumulate(empties[::-1, 1])[::-1]
        places = min(len(puts), len(takes))
        common = search_arrays(places, queue_pairs.AT_FACTS, BEFORE_ALL, 2 * (values + 1))
        common["at"][queue_pairs.TAKES_LEFT] = (takes[:, 1] != NEVER).sum()
        return Pairs(
            puts=puts,
            takes=takes,
            put_links=_linked(puts, with_unknown=False),
            take_links=_linked(takes, with_unknown=True),
            spare=spare,
            spare_put=spare_put.astype(np.int32),
            wild=np.flatnonzero(takes[:, 2] == queue_pairs.ANY).astype(np.int32),
            empties=empties,
            best=np.zeros((values, 4), np.int32),
            order=np.empty((places, 2), np.int32),
            empties_before=np.empty(places, np.int32),
            take_called=np.full(places + 1, BEFORE_ALL, np.int64),
            move=np.empty((values, 2), np.int32),
            **common,
        )

    def _rows(self, rows: Ints, value: Ints) -> Ints:
        return np.stack((self._problem.call_ns[rows], self._returned[rows], value), axis=1)

    def run(self) -> int:
        """Search for up to VISITS_MAX orders; a search that stalls goes on with the next price."""
        status = run(self.arrays, VISITS_MAX, STALL << (self._stalls // len(PRICES)))
        if status == STALLED:
            self._stalls += 1
            set_price(self.arrays, PRICES[self._stalls % len(PRICES)])
        return status

    def order(self) -> Ints:
        """Return the rows of the problem in the order that was found."""
        p = self.arrays
        placed = int(p.at[AT_DEPTH])
        put, take = p.order[:placed, 0].astype(np.int64), p.order[:placed, 1].astype(np.int64)
        is_left = p.puts[:, 1] != NEVER
        is_left[put] = False
        left = np.flatnonzero(is_left)
        put = np.concatenate((put, left))
        # Each operation takes effect as early as what precedes it allows: at the latest call of
        # all that must come before it.
        called = np.maximum.accumulate(p.puts[put, 0])
        taken = np.maximum.accumulate(p.takes[take, 0])
        at_take = np.maximum(taken, called[:placed])
        between = p.empties_before[:placed]
        empties = len(self.empties)
        number = np.searchsorted(between, np.arange(empties), side="right")
        before = np.concatenate(([BEFORE_ALL], np.maximum(at_take, called[:placed])))[number]
        at_empty = np.maximum.accumulate(np.maximum(before, p.empties[:-1, 0]))
        # Enqueues after an empty dequeue take effect after it.
        latest = np.concatenate(([BEFORE_ALL], at_empty))
        put_behind = np.concatenate((between, np.full(len(left), empties)))
        at_put = np.maximum.accumulate(np.maximum(called, latest[put_behind]))
        at_take = np.maximum.accumulate(np.maximum(at_take, at_put[:placed]))
        return self._sorted((put, at_put), (take, at_take), (number, at_empty), placed)

    def _sorted(
        self, puts: tuple[Ints, Ints], takes: tuple[Ints, Ints], empties: tuple[Ints, Ints],
        placed: int,
    ) -> Ints:  # fmt: skip
        """Sort everything by its time of effect; at equal times pair by pair."""
        first = len(self._first)
        rows = np.concatenate(
            (
                np.where(puts[0] >= first, self.puts[np.maximum(puts[0] - first, 0)], -1)
                if len(self.puts)
                else np.full(len(puts[0]), -1),
                self.takes[takes[0]],
                self.empties,
            )
        )
        when = np.concatenate((puts[1], takes[1], empties[1]))
        pair = np.concatenate((np.arange(len(puts[0])), np.arange(placed), empties[0] - 1))
        what = np.repeat((0, 1, 2), (len(puts[0]), placed, len(self.empties)))
        rows = rows[np.lexsort((what, pair, when))]
        return np.asarray(rows[rows >= 0])


def first_values(problem: Problem) -> Ints:
    """Return the numbers of the values that are in the queue at the start."""
    assert isinstance(problem.step, StepByKind), "a queue's problem is made by its model"
    assert isinstance(problem.start, tuple), "a FIFO queue's state is a tuple"
    return np.array([problem.step.number(value) for value in problem.start], np.int64)


def _linked(operations: Ints, *, with_unknown: bool) -> Any:
    links = np.zeros((len(operations) + 1, 4), np.int32)
    by_return = np.argsort(operations[:, 1], kind="stable")
    queue_pairs.link(operations, by_return, links, with_unknown)
    return links
