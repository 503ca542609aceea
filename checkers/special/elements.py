"""Sets whose operations name one element each: decided element by element.

Linearizability is local, and what happens to one element binds no other. An element that was added
once and removed once at the most is decided by two numbers: it was inside at the latest from the
earliest return of an answer that shows it, and at the earliest until the latest call of one. All
others are searched, each by itself, where there are only two states (of a multiset: how often it
is there).

Source: Herlihy & Wing 1990 (locality); Abdulla et al. 2025 (arXiv 2509.17795) for sets and
multisets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shaketable.checkers.models.encoding import ABSENT, StepByKind
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import NEVER, Bools, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.order_proof import memory_of
from shaketable.harness.contracts.verdict import Outcome

METHOD = "elements"
OPERATION_BYTES = 200
"""What the passes hold at a time for each operation, at the most (measured)."""
NAMED_MAX = 200
"""The most operations of an element that an accusation names."""
BEFORE_ALL = -NEVER


@dataclass(frozen=True, slots=True)
class Codes:
    """The codes of the operations: the places of their names in sorted order."""

    add: int
    contains: int
    remove: int
    read: int
    count: int | None = None


SET = Codes(add=0, contains=1, read=2, remove=3)
MULTISET = Codes(add=0, contains=1, count=2, read=3, remove=4)


def decide_set(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a set with answers; None if all elements are read at once, or a budget is used up.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    return _decide(problem, SET, limits)


def decide_multiset(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a multiset likewise."""
    return _decide(problem, MULTISET, limits)


def _decide(problem: Problem, codes: Codes, limits: Limits) -> Decision | None:
    if (problem.kinds.code == codes.read).any():
        return None
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    element = problem.kinds.a[problem.kind]
    plain = _plain_elements(problem, element, codes)
    rows = np.flatnonzero(~plain[element])
    rows = rows[np.argsort(element[rows], kind="stable")]
    bounds = np.flatnonzero(np.diff(element[rows], prepend=-1, append=-1))
    for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        limits.check_time()
        mine = np.sort(rows[start:stop])
        found = search(
            _only(problem, mine), is_over=limits.is_over, memory_bytes_max=memory_of(limits)
        )
        if found.outcome is Outcome.UNKNOWN:
            return None
        if found.outcome is Outcome.INVALID:
            assert found.part is not None, "what is refuted has a part that cannot be passed"
            return Decision(METHOD, _accused(problem, mine, found.part.stuck))
    return Decision(METHOD)


def _plain_elements(problem: Problem, element: Ints, codes: Codes) -> Bools:
    """Return by number which elements were added once, removed once at most, and are right."""
    assert isinstance(problem.step, StepByKind), "a set's problem is made by its model"
    values = 1 + int(element.max(initial=0))
    answer = _answers(problem)[problem.kind]
    code = problem.kinds.code[problem.kind]
    adds = (code == codes.add) & ((answer == 1) | (codes.count is not None))
    removes = (code == codes.remove) & (answer == 1)
    there = (answer == 1) | (adds & (problem.return_ns != NEVER))
    there |= (code == codes.add) & (answer == 0)
    absent = (answer == 0) & (code != codes.add)
    is_open = (problem.return_ns == NEVER) | ~(there | absent)
    plain = np.bincount(element[adds], minlength=values) == 1
    plain &= np.bincount(element[removes], minlength=values) <= 1
    plain &= np.bincount(element[is_open], minlength=values) == 0
    first = [problem.step.number(value) for value in _elements_at_first(problem)]
    plain[[number for number in first if number < values]] = False
    inside = np.full(values, NEVER, np.int64)
    until = np.full(values, BEFORE_ALL, np.int64)
    np.minimum.at(inside, element[there], problem.return_ns[there])
    np.maximum.at(until, element[there], problem.call_ns[there])
    until[element[removes]] = np.maximum(until[element[removes]], problem.call_ns[removes])
    is_wrong = np.zeros(len(element), np.bool_)
    is_wrong |= adds & (problem.call_ns > inside[element])
    is_wrong |= removes & (problem.return_ns < until[element])
    is_removed = np.bincount(element[removes], minlength=values) > 0
    until[~is_removed] = NEVER
    is_wrong |= absent & (inside[element] < problem.call_ns) & (problem.return_ns < until[element])
    plain[element[is_wrong]] = False
    return np.asarray(plain)


def _answers(problem: Problem) -> Ints:
    """Return by kind what was answered: 1 or 0, more for other counts, ABSENT for no answer."""
    assert isinstance(problem.step, StepByKind), "a set's problem is made by its model"
    found = np.full(len(problem.kinds.b), ABSENT, np.int64)
    for kind, value in enumerate(problem.step.values(problem.kinds.b.tolist())):
        if isinstance(value, int):
            found[kind] = int(value)
    return found


def _elements_at_first(problem: Problem) -> list[object]:
    assert isinstance(problem.start, frozenset), "a set's state is a set"
    return [each[0] if isinstance(each, tuple) else each for each in problem.start]


def _only(problem: Problem, rows: Ints) -> Problem:
    """Return the problem of some operations alone, with the kinds that they have."""
    used, kind = np.unique(problem.kind[rows], return_inverse=True)
    kinds = replace(
        problem.kinds,
        **{
            name: getattr(problem.kinds, name)[used]
            for name in ("code", "a", "b", "observes", "overwrites")
        },
    )
    assert isinstance(problem.step, StepByKind), "a set's problem is made by its model"
    return replace(
        problem,
        kind=kind.astype(np.int32),
        kinds=kinds,
        step=problem.step.only(used.astype(np.int64)),
        call_ns=problem.call_ns[rows],
        return_ns=problem.return_ns[rows],
        op=problem.op[rows],
    )


def _accused(problem: Problem, rows: Ints, stuck: int) -> Accusation:
    """Accuse the operations on one element, that one first which cannot take place."""
    ops = [stuck, *[op for op in problem.op[rows].tolist() if op != stuck]]
    why = "{0} has no place among the operations on its element"
    return Accusation(tuple(ops[:NAMED_MAX]), why, closed=len(ops) <= NAMED_MAX)
