"""Objects decided by counting, without a search: semaphores, unordered queues of repeated values.

Of semaphores, releases bind nothing, so each takes effect at its call, and each acquire as late as
it can, at its return. The history is linearizable iff then no acquire returns before a permit is
free for it. What was refused needs a moment at which none is free: without it a history is easier,
so what is wrong without it is wrong; what is right is searched, where only the free permits are the
state.

Of unordered queues in which values repeat, and none was found empty, a value binds no other one,
and an enqueue only helps, so it takes effect at its call, and a dequeue at its return. A history is
linearizable iff whenever a dequeue of a value returns, no fewer enqueues of it had been called than
dequeues returned. An indeterminate dequeue need not happen. Where the queue was found empty a
history is harder: what is wrong without that is wrong, and what is right is left to the search.

Source: earliest deadline first (Jackson 1955).
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.models.encoding import ABSENT, NOTHING, StepByKind
from shaketable.checkers.models.locks import Permits
from shaketable.checkers.models.queue_models import Bag
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision

PERMITS_METHOD = "permits"
ACQUIRE, RELEASE = 0, 1
"""Codes of the kinds: the places of the names in sorted order."""
PERMIT_OPERATION_BYTES = 150
"""What the passes hold at a time for each operation, at the most (measured)."""
NAMED_MAX = 200


def decide_semaphore(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a semaphore's history; None if something was refused, or the permits are limited.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.start, Permits), "a semaphore's state are its permits"
    if problem.start.most is not None:
        return None
    limits.require_memory(PERMIT_OPERATION_BYTES * len(problem.kind))
    code = problem.kinds.code[problem.kind]
    refused = problem.kinds.observes[problem.kind]
    if (refused & (code == RELEASE)).any():
        row = int(np.flatnonzero(refused & (code == RELEASE))[0])
        why = "{0} was refused, and there is no limit to the permits"
        return Decision(PERMITS_METHOD, Accusation((int(problem.op[row]),), why))
    limits.check_time()
    releases = np.flatnonzero(code == RELEASE)
    releases = releases[np.argsort(problem.call_ns[releases], kind="stable")]
    acquires = np.flatnonzero((code == ACQUIRE) & ~refused & (problem.return_ns != NEVER))
    acquires = acquires[np.argsort(problem.return_ns[acquires], kind="stable")]
    limits.check_time()
    ends = problem.return_ns[acquires]
    free = problem.start.free
    there = free + np.searchsorted(problem.call_ns[releases], ends, side="right")
    early = np.flatnonzero(np.arange(1, len(acquires) + 1) > there)
    if len(early):
        at = int(early[0])
        called = int(there[at]) - free
        rows = [int(acquires[at]), *acquires[:at].tolist(), *releases[:called].tolist()]
        why = (
            f"when {{0}} returned, {at + 1} permits had been acquired: more than the {free} that"
            f" were free at first and the {called} that had been released"
        )
        ops = tuple(int(problem.op[row]) for row in rows[:NAMED_MAX])
        return Decision(PERMITS_METHOD, Accusation(ops, why, closed=len(rows) <= NAMED_MAX))
    return None if refused.any() else Decision(PERMITS_METHOD)


# Unordered queues.

COUNTS_METHOD = "counts"
DEQUEUE, ENQUEUE = 0, 1
"""Codes of the kinds: the places of the names in sorted order."""
COUNTED_OPERATION_BYTES = 200
"""What the passes hold at a time for each operation, at the most."""


def decide_bag(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide an unordered queue's history; None if the queue was found empty, and that decides.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    assert isinstance(problem.start, Bag), "an unordered queue's state is a bag"
    assert isinstance(problem.step, StepByKind), "a queue's problem is made by its model"
    limits.require_memory(COUNTED_OPERATION_BYTES * len(problem.kind))
    code, taken = problem.kinds.code[problem.kind], problem.kinds.b[problem.kind]
    puts = np.flatnonzero(code == ENQUEUE)
    takes = np.flatnonzero((code == DEQUEUE) & (taken != ABSENT) & (taken != NOTHING))
    put_value, take_value = problem.kinds.a[problem.kind[puts]], taken[takes]
    first = {problem.step.number(value): count for value, count in problem.start.held}
    puts = puts[np.lexsort((problem.call_ns[puts], put_value))]
    takes = takes[np.lexsort((problem.return_ns[takes], take_value))]
    put_value, take_value = np.sort(put_value), np.sort(take_value)
    limits.check_time()
    # The nth dequeue of a value to return needs the nth enqueue of it to have been called.
    nth = np.arange(len(takes)) - np.searchsorted(take_value, take_value)
    nth -= np.array([first.get(value, 0) for value in take_value.tolist()], np.int64)
    start, stop = (np.searchsorted(put_value, take_value, side=side) for side in ("left", "right"))
    needed = start + nth
    is_short = needed >= stop
    needed = np.where(is_short | (nth < 0), 0, needed)
    call = problem.call_ns[puts][needed] if len(puts) else np.zeros(len(takes), np.int64)
    late = np.flatnonzero(is_short | ((nth >= 0) & (call > problem.return_ns[takes])))
    if len(late):
        earliest = int(late[np.argmin(problem.return_ns[takes[late]])])
        return Decision(COUNTS_METHOD, _accuse(problem, puts[put_value == take_value[earliest]],
                                        takes[take_value == take_value[earliest]],
                                        int(takes[earliest])))  # fmt: skip
    is_found_empty = (code == DEQUEUE) & (taken == NOTHING)
    return None if is_found_empty.any() else Decision(COUNTS_METHOD)


def _accuse(problem: Problem, puts: Ints, takes: Ints, row: int) -> Accusation:
    """Accuse a dequeue that took a value more often than it had been put in."""
    end = problem.return_ns[row]
    before = takes[(problem.return_ns[takes] <= end) & (takes != row)]
    called = puts[problem.call_ns[puts] <= end]
    rows = [row, *before.tolist(), *called.tolist()]
    why = (
        f"when {{0}} returned, its value had been taken {len(before) + 1} times, and its enqueue"
        f" called {len(called)} times"
    )
    ops = tuple(int(problem.op[each]) for each in rows[:NAMED_MAX])
    return Accusation(ops, why, closed=len(rows) <= NAMED_MAX)
