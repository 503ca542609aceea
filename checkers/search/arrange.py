"""Makes of a problem the arrays that the kernels search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checkers.kernels.search_arrays import (
    EVENTS,
    FACTS,
    FAMILY,
    KINDS,
    OPEN_MAX,
    UNKNOWN_KINDS,
    UNSEEN,
    VALUES,
    WORDS,
    Cursor,
    History,
)
from checkers.kernels.search_history import NO_EVENT, build
from checkers.search.budget import Memory
from checkers.search.problem import NEVER, Access, Family, Ints, Problem

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
        unknown: places in the problem of those counted by kind, by kind, then by call.
        unknown_begin: where each kind's begin in `unknown`.
    """

    history: History
    cursor: Cursor
    operation: Ints
    unknown: Ints
    unknown_begin: Ints


def arrange(problem: Problem, memory: Memory) -> Arranged:
    """Put the problem's operations in order of time.

    Raises:
        MemorySpentError: the arrays do not fit the budget.
    """
    is_known = problem.return_ns != NEVER
    known = np.flatnonzero(is_known)
    returned_ns = problem.return_ns[known]
    loose, counted, loose_return_ns = _split_unknown(problem, known, np.flatnonzero(~is_known))
    loose_from = known.size
    if loose.size:
        known = np.concatenate((known, loose))
        returned_ns = np.concatenate((returned_ns, loose_return_ns))
    # Sorting holds the times twice, the order, and as much again inside, before the rest is made.
    sorting = 40 * (2 * known.size + counted.size)
    memory.take(sorting)
    unknown_kind, unknown_place = np.unique(problem.kind[counted], return_inverse=True)
    order = _order(problem.call_ns[known], returned_ns, problem.call_ns[counted])
    memory.take(-sorting)
    history = _history(problem, known, order.size, unknown_kind.astype(np.int32))
    history.loose[loose_from:] = UNSEEN
    build(history, order, unknown_place.astype(np.int32))
    history.facts[WORDS] = max(1, -(-int(history.facts[OPEN_MAX]) // 64))
    cursor = _cursor(history)
    memory.take_all((*history, *cursor))
    by_kind = np.lexsort((problem.call_ns[counted], unknown_place))
    begin = np.searchsorted(unknown_place[by_kind], np.arange(unknown_kind.size + 1))
    return Arranged(history, cursor, known, counted[by_kind], begin)


def _order(call_ns: Ints, return_ns: Ints, unknown_call_ns: Ints) -> Ints:
    """Sort calls, returns and unknown calls by time; at equal times calls come first."""
    n = call_ns.size
    times = np.concatenate((call_ns, return_ns, unknown_call_ns))
    if times.size:
        times -= times.min()
    times *= 2
    times[n : 2 * n] += 1
    never = return_ns == NEVER
    if never.any():
        times[n : 2 * n][never] = NEVER
    order = np.argsort(times, kind="stable")
    return order[: order.size - int(never.sum())]


def _history(
    problem: Problem, known: Ints, events: int, unknown_kind: npt.NDArray[np.int32]
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
    first_made = np.full(of_values, events, np.int32)
    if of_values:
        first_made[problem.initial] = -1
    return History(
        event=np.empty(events, np.int32),
        what=np.empty(events, np.uint8),
        kind=problem.kind[known],
        slot=np.empty(n, np.int32),
        called=np.empty(n, np.int32),
        returned=np.empty(n, np.int32),
        behind=np.empty(n, np.int32),
        loose=np.zeros(n, np.uint8),
        code=kinds.code.astype(np.int32),
        a=kinds.a.astype(np.int64),
        b=kinds.b.astype(np.int64),
        observes=kinds.observes.astype(np.uint8),
        overwrites=kinds.overwrites.astype(np.uint8),
        unknown_kind=unknown_kind,
        producer=np.full(n if of_values else 0, -1, np.int32),
        first_made=first_made,
        last_need=np.full(of_values, -1, np.int32),
        need_begin=np.empty(of_values + 1, np.int32),
        need=np.empty(n if of_values else 0, np.int32),
        facts=facts,
    )


def _cursor(h: History) -> Cursor:
    n, words = h.kind.size, int(h.facts[WORDS])
    ends = np.full(n + 1, n, np.int32)
    return Cursor(
        holder=np.zeros(max(1, int(h.facts[OPEN_MAX])), np.int32),
        next_open=ends,
        previous_open=ends.copy(),
        open_mask=np.zeros((3, words), np.uint64),
        called_unknown=np.zeros(max(1, h.unknown_kind.size), np.int32),
        place=np.zeros(2, np.int64),
        kind_stamp=np.zeros((2, h.code.size), np.int64),
        value_stamp=np.zeros(max(1, int(h.facts[VALUES])), np.int64),
        value_left=np.zeros(max(1, int(h.facts[VALUES])), np.int64),
        child=np.zeros(2 * words, np.uint64),
    )


def _split_unknown(problem: Problem, known: Ints, unknown: Ints) -> tuple[Ints, Ints, Ints]:
    """Say which of unknown outcome stand alone and which are counted; drop those without effect.

    Returns (alone, counted, until when one alone can matter).
    """
    if not unknown.size:
        return unknown, unknown, unknown
    until_ns = np.full(unknown.size, NEVER)
    if problem.family is Family.VALUE:
        until_ns = _needed_until_ns(problem, known, unknown)
        matters = until_ns >= problem.call_ns[unknown]
        unknown, until_ns = unknown[matters], until_ns[matters]
    kinds, place, count = np.unique(problem.kind[unknown], return_inverse=True, return_counts=True)
    if kinds.size <= COUNTED_KINDS_MAX:
        return unknown[:0], unknown, unknown[:0]
    alone = count[place] == 1
    return unknown[alone], unknown[~alone], until_ns[alone]


def _needed_until_ns(problem: Problem, known: Ints, unknown: Ints) -> Ints:
    """For each of unknown outcome: until when the value that it leaves may be needed."""
    code, a = problem.kinds.code[problem.kind], problem.kinds.a[problem.kind]
    returned = problem.return_ns[known]
    needs = (code[known] == Access.READ) | (code[known] == Access.CAS)
    last = np.full(problem.values, np.iinfo(np.int64).min)
    np.maximum.at(last, a[known][needs], returned[needs])
    last[a[unknown][code[unknown] == Access.CAS]] = NEVER
    refused = returned[code[known] == Access.NOT]
    if refused.size:
        last = np.maximum(last, refused.max())
    return last[problem.kinds.b[problem.kind[unknown]]]


__all__ = ["NO_EVENT", "Arranged", "arrange"]
