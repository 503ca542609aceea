"""Makes of a problem the arrays that the kernels search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.search_arrays import (
    CODE,
    DOES_COLUMNS,
    EVENT_COLUMNS,
    EVENTS,
    FACTS,
    FAMILY,
    FIRST_MADE,
    KIND,
    KINDS,
    LOOSE,
    OBSERVES,
    OP_COLUMNS,
    OPEN_MAX,
    OVERWRITES,
    PRODUCER,
    REACH_COLUMNS,
    UNKNOWN_KINDS,
    UNSEEN,
    VALUE_COLUMNS,
    VALUES,
    WORDS,
    A,
    B,
    Cursor,
    History,
)
from shaketable.checkers.kernels.search_history import NO_EVENT, build, sort_out
from shaketable.checkers.search.budget import Memory
from shaketable.checkers.search.problem import NEVER, Family, Ints, Problem

COUNTED_KINDS_MAX = 40
"""With more kinds of unknown outcome than that, one that is alone of its kind is not counted but
stands among the known operations, optional from its call on."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """A problem in order.

    Attributes:
        history: what the kernels search.
        cursor: a place in it.
        operation: for each of the history's operations its place in the problem.
        unknown: places in the problem of those counted by kind.
    """

    history: History
    cursor: Cursor
    operation: Ints
    unknown: Ints


def arrange(problem: Problem, memory: Memory) -> Arranged:
    """Put the problem's operations in order of time.

    Raises:
        MemorySpentError: the arrays do not fit the budget.
    """
    kinds = problem.kinds
    values = problem.values if problem.family is Family.VALUE else 0
    # Sorting holds the times, the order, and as much again inside, before the rest is made.
    sorting = 64 * problem.kind.size
    memory.take(sorting)
    known, returned_ns, loose, counted, unknown_kind, unknown_place = sort_out(
        problem.kind, problem.call_ns, problem.return_ns, kinds.code, (kinds.a, kinds.b),
        values, COUNTED_KINDS_MAX,
    )  # fmt: skip
    times = (problem.call_ns[known], returned_ns, problem.call_ns[counted])
    call_order, return_order, unknown_order = (np.argsort(t, kind="stable") for t in times)
    if loose:
        return_order = return_order[: return_order.size - int((returned_ns == NEVER).sum())]
    events = call_order.size + return_order.size + unknown_order.size
    history = _history(problem, known, events, counted.size, unknown_kind)
    history.op[known.size - loose :, LOOSE] = UNSEEN
    build(history, call_order, return_order, unknown_order, unknown_place, times)
    memory.take(-sorting)
    history.facts[WORDS] = max(1, -(-int(history.facts[OPEN_MAX]) // 64))
    cursor = _cursor(history)
    memory.take_all(history)
    memory.take_all(cursor)
    return Arranged(history, cursor, known, counted)


def _history(
    problem: Problem, known: Ints, events: int, counted: int, unknown_kind: npt.NDArray[np.int32]
) -> History:
    """Allocate a history, and fill in what does not follow from its order."""
    n = known.size
    kinds = problem.kinds
    of_values = problem.values if problem.family is Family.VALUE else 0
    facts = np.zeros(FACTS, np.int64)
    facts[FAMILY] = problem.family
    facts[UNKNOWN_KINDS] = unknown_kind.size
    facts[VALUES] = of_values
    facts[EVENTS] = events
    facts[KINDS] = kinds.code.size
    op = np.zeros((n, OP_COLUMNS), np.int32)
    op[:, KIND] = problem.kind[known]
    op[:, PRODUCER] = -1
    value = np.full((of_values + 1, VALUE_COLUMNS), -1, np.int32)
    value[:, FIRST_MADE] = NO_EVENT
    if of_values:
        value[problem.initial, FIRST_MADE] = -1
    does = np.empty((kinds.code.size, DOES_COLUMNS), np.int32)
    does[:, CODE], does[:, A], does[:, B] = kinds.code, kinds.a, kinds.b
    does[:, OBSERVES], does[:, OVERWRITES] = kinds.observes, kinds.overwrites
    return History(
        event=np.empty((events, EVENT_COLUMNS), np.int32),
        op=op,
        does=does,
        unknown_kind=unknown_kind,
        unknown_begin=np.empty(unknown_kind.size + 1, np.int64),
        unknown_member=np.empty(counted, np.int64),
        value=value,
        need=np.empty(n if of_values else 0, np.int32),
        # Each call may leave a value, and each return end its stay; one more for each value.
        room=np.empty(events + of_values if of_values else 0, np.int32),
        facts=facts,
    )


def _cursor(h: History) -> Cursor:
    n, words = h.op.shape[0], int(h.facts[WORDS])
    return Cursor(
        holder=np.zeros(max(1, int(h.facts[OPEN_MAX])), np.int32),
        open=np.full((n + 1, 2), n, np.int32),
        open_mask=np.zeros((3, words), np.uint64),
        called_unknown=np.zeros(max(1, h.unknown_kind.size), np.int32),
        place=np.zeros(2, np.int64),
        kind_stamp=np.zeros((2, h.does.shape[0]), np.int64),
        reach=np.zeros((max(1, int(h.facts[VALUES])), REACH_COLUMNS), np.int64),
        passed=np.zeros((max(1, int(h.facts[VALUES])), 2), np.int32),
        child=np.zeros(2 * words, np.uint64),
    )
