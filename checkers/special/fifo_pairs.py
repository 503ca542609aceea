"""FIFO queues with repeated values: decided by a search for an order of (enqueue, dequeue) pairs.

With unique values bad patterns suffice; with repeated ones it is open which enqueue a dequeue
belongs to. The search is checkers.kernels.queue_pairs. It finds an order of all operations, which
is replayed on a queue here, or refutes that there is one. The longest prefix that has an order is
found by searching prefixes.

Source: as checkers.kernels.queue_pairs.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from shaketable.checkers.models.columns import ABSENT, NOTHING
from shaketable.checkers.models.encoding import StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits, TimeSpentError
from shaketable.checkers.search.found import Part
from shaketable.checkers.search.problem import NEVER, Ints, Problem, State
from shaketable.checkers.search.replay import WitnessError
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.order_proof import (
    first_impassable,
    open_part,
    part_until,
    require_times,
)
from shaketable.checkers.special.queue_history import DEQUEUE, ENQUEUE
from shaketable.checkers.special.queue_order import (
    BEFORE_ALL,
    OPERATION_BYTES,
    QueueOrder,
    first_values,
)

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
