"""FIFO queues with repeated values: decided by a search for an order of (enqueue, dequeue) pairs.

With unique values bad patterns suffice; with repeated ones it is open which enqueue a dequeue
belongs to. The search is checkers.kernels.queue_pairs. It finds an order of all operations, which
is replayed on a queue here, or refutes that there is one. The longest prefix that has an order is
found by searching prefixes.

Source: as checkers.kernels.queue_pairs.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from shaketable.checkers.kernels import queue_pairs
from shaketable.checkers.kernels.order_search import AT_DEPTH, STALLED
from shaketable.checkers.kernels.queue_pairs import Pairs, run, set_price
from shaketable.checkers.models.encoding import ABSENT, NOTHING, StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits, TimeSpentError
from shaketable.checkers.search.problem import NEVER, Ints, Part, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.order_proof import (
    VISITS_MAX,
    OrderSearch,
    first_impassable,
    open_part,
    part_until,
    require_times,
    search_arrays,
)
from shaketable.checkers.special.queue_patterns import DEQUEUE, ENQUEUE

METHOD = "pairs"
SHOWN_MAX = 200
"""The most dequeues that an accusation names."""


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision:
    """Decide a FIFO queue's history.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time was over before the search started.
        WitnessError: the order that was found is no linearization: a bug in the search.
    """
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    accusation = _taken_too_often(problem)
    if accusation is not None:
        return Decision(METHOD, accusation)
    queue = QueueOrder(problem, NEVER)
    try:
        is_explained = queue.explains(limits)
    except TimeSpentError:
        return Decision(METHOD, part=open_part(problem, queue.reached, METHOD), why="time")
    if is_explained:
        _replay(problem, queue.order())
        return Decision(METHOD)
    return Decision(METHOD, part=_part(problem, queue.reached, limits))


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
    return part_until(problem, end, order, METHOD, state_after)


# Searches by the kernels for an order of a FIFO queue's pairs; makes it an order of operations.

PRICES = (8, 32, 128, 2)
"""By how many pairs an order must be longer to make up for one choice that was not the best: a high
price corrects mistakes farther back. A search that stalls continues with the next price."""
STALL = 1_500
"""The search stalls after so many orders without progress; the limit doubles after all prices."""
OPERATION_BYTES = 300
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
