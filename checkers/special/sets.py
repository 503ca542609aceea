"""Sets decided without a search: those that only grow by levels, others element by element.

If a set only grows, the sets that reads saw must form a chain by inclusion: its *levels*. That
fixes an order of groups: the reads of the first level, the elements that the second level adds, the
reads of the second level, and so on; elements that no read saw come last. Within a group any order
will do. So a history is linearizable iff each operation returned only after every operation of an
earlier group had been called. An element that was added several times was added by the first of
these to take effect: it has the earliest of their calls, and the earliest of their returns.

O(n log n) in the operations and the elements that reads returned.

Where operations name one element each, each element is decided by itself. Linearizability is local,
and what happens to one element binds no other. An element that was added once and removed once at
the most is decided by two numbers: it was inside at the latest from the earliest return of an
answer that shows it, and at the earliest until the latest call of one. All others are searched,
each by itself, where there are only two states (of a multiset: how often it is there).

Source: CHECKERS.md section 3; Jepsen's set-full for what is checked. Herlihy & Wing 1990
(locality); Abdulla et al. 2025 (arXiv 2509.17795) for sets and multisets.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shaketable.checkers.models.encoding import ABSENT, StepByKind, format_values
from shaketable.checkers.models.sets import elements_of
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.driver import search
from shaketable.checkers.search.problem import NEVER, Bools, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision, memory_of
from shaketable.harness.contracts.verdict import Outcome

METHOD = "set-levels"
ADD, READ, REMOVE = 0, 1, 2
"""Codes of the kinds: the places of the names in sorted order."""
NO_ROW = -1
OPERATION_BYTES = 300
"""What the passes hold at a time for each operation, at the most (measured)."""
SEEN_BYTES = 70
"""Memory for each element that a read saw, in sets of two or more sizes (measured)."""

Elements = frozenset[Any]


@dataclass(frozen=True, slots=True)
class _Items:
    """Reads and elements in the order of their groups: arrays with an element for each.

    `group` is 2n for elements that level n saw first, 2n + 1 for reads of level n. `call` and
    `end` bound when it took effect, set by the rows `called` and `ended` of the problem.
    """

    group: Ints
    call: Ints
    end: Ints
    called: Ints
    ended: Ints


def decide(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a set's history; None if an element is removed.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    code = problem.kinds.code
    used = np.unique(problem.kind)  # the numbering may be shared with other keys
    step, initial = problem.step, problem.start
    if (code[used] == REMOVE).any() or not isinstance(step, StepByKind):
        return None
    assert isinstance(initial, frozenset)
    read_kinds = used[code[used] == READ].tolist()
    seen = _levels_seen(step, read_kinds, OPERATION_BYTES * len(problem.kind), limits)
    # In the order of the kinds, which is the same in every process; that of sets is not.
    levels = sorted(dict.fromkeys(seen.values()), key=len)
    accusation = _accuse_chain(problem, [initial, *levels], seen)
    if accusation is not None:
        return Decision(METHOD, accusation)
    limits.check_time()
    adds = np.flatnonzero(code[problem.kind] == ADD)
    put = np.unique(problem.kinds.a[used[code[used] == ADD]])
    number_of = {step.value(n): n for n in put.tolist()}
    level_of = np.full(max(number_of.values(), default=0) + 1, len(levels), dtype=np.int64)
    for level, (before, here) in enumerate(zip([initial, *levels], levels, strict=False)):
        limits.check_time()
        strange = [element for element in here - before if element not in number_of]
        if strange:
            why = f"{{0}} saw {format_values(strange)}, which no client ever added"
            return Decision(METHOD, _accuse(problem, [_row_of(problem, seen, here)], why))
        level_of[[number_of[element] for element in here - before]] = level
    level_of[[number_of[element] for element in initial if element in number_of]] = NO_ROW
    elements = _elements(problem, adds, level_of)
    items = _joined(elements, _reads(problem, seen, levels))
    return Decision(METHOD, _accuse_order(problem, items, len(levels)))


def _levels_seen(
    step: StepByKind, kinds: list[int], memory_bytes: int, limits: Limits
) -> dict[int, Elements]:
    """Return the set that each kind of read saw; `memory_bytes` is for all other passes."""
    seen: dict[int, Elements] = {}
    limits.require_memory(memory_bytes)
    for kind in kinds:
        output = step.call(kind).output
        memory_bytes += SEEN_BYTES * len(output or ())
        limits.require_memory(memory_bytes)
        seen[kind] = elements_of(output)
    return seen


def _accuse_chain(
    problem: Problem, levels: list[Elements], seen: dict[int, Elements]
) -> Accusation | None:
    """Accuse two reads that each saw what the other did not, or a read without a first element."""
    for place, (less, more) in enumerate(itertools.pairwise(levels)):
        if less <= more:
            continue
        row = _row_of(problem, seen, more)
        if not place:
            why = (
                f"{{0}} did not see {format_values(less - more)},"
                " which was there from the beginning"
            )
            return _accuse(problem, [row], why)
        why = (
            f"{{0}} saw {format_values(more - less)} and not {format_values(less - more)},"
            " {1} the other way round, and nothing was ever removed"
        )
        return _accuse(problem, [row, _row_of(problem, seen, less)], why)
    return None


def _elements(problem: Problem, adds: Ints, level_of: Ints) -> _Items:
    """Return the elements that matter, by number, with the bounds of their effects."""
    number = problem.kinds.a[problem.kind[adds]]
    keep = level_of[number] != NO_ROW
    adds, number = adds[keep], number[keep]
    calls, ends = problem.call_ns[adds], problem.return_ns[adds]
    by_call, by_end = np.lexsort((calls, number)), np.lexsort((ends, number))
    numbers, first = np.unique(number[by_call], return_index=True)
    called, ended = adds[by_call[first]], adds[by_end[first]]
    group = 2 * level_of[numbers]
    call, end = problem.call_ns[called], problem.return_ns[ended]
    return _Items(group, call, end, called, ended)


def _reads(problem: Problem, seen: dict[int, Elements], levels: list[Elements]) -> _Items:
    place = {level: n for n, level in enumerate(levels)}
    level_of_kind = np.full(len(problem.kinds.code), NO_ROW, dtype=np.int64)
    for kind, elements in seen.items():
        level_of_kind[kind] = place[elements]
    rows = np.flatnonzero(level_of_kind[problem.kind] != NO_ROW)
    group = 2 * level_of_kind[problem.kind[rows]] + 1
    return _Items(group, problem.call_ns[rows], problem.return_ns[rows], rows, rows)


def _joined(one: _Items, other: _Items) -> _Items:
    group = np.concatenate((one.group, other.group))
    order = np.argsort(group, kind="stable")

    def both(name: str) -> Ints:
        joined: Ints = np.concatenate((getattr(one, name), getattr(other, name)))[order]
        return joined

    return _Items(group[order], both("call"), both("end"), both("called"), both("ended"))


def _accuse_order(problem: Problem, items: _Items, levels: int) -> Accusation | None:
    """Accuse an item that returned before one of an earlier group was called."""
    if not len(items.group):
        return None
    latest = np.maximum.accumulate(items.call)
    before = np.searchsorted(items.group, items.group, side="left")  # items of earlier groups
    is_bad = (before > 0) & (items.end < latest[np.maximum(before - 1, 0)])
    is_bad &= items.end != NEVER
    if not is_bad.any():
        return None
    early = int(np.flatnonzero(is_bad)[0])
    late = int(np.argmax(items.call[: before[early]]))
    rows = [int(items.ended[early]), int(items.called[late])]
    early_is_read, late_is_read = bool(items.group[early] % 2), bool(items.group[late] % 2)
    over = "{0} was over before {1} began"
    if early_is_read and late_is_read:
        return _accuse(problem, rows, f"{over}, and had seen more")
    if early_is_read:
        return _accuse(problem, rows, f"{over}, and had seen its element")
    if late_is_read:
        return _accuse(problem, rows[::-1], "{0} did not see what {1} had added before it began")
    witness = int(np.flatnonzero(items.group == items.group[late] + 1)[0])
    rows.append(int(items.called[witness]))
    return _accuse(
        problem, rows, f"{over}, yet {{2}} saw the element of {{1}} without that of {{0}}"
    )


def _row_of(problem: Problem, seen: dict[int, Elements], elements: Elements) -> int:
    """Return the first read that saw just these elements."""
    kinds = [kind for kind, those in seen.items() if those == elements]
    return int(np.flatnonzero(np.isin(problem.kind, kinds))[0])


def _accuse(problem: Problem, rows: Iterable[int], why: str) -> Accusation:
    """Accuse rows; not closed, since a proof also needs the adds of all that the reads saw."""
    return Accusation(tuple(int(problem.op[row]) for row in rows), why, closed=False)


# Element by element.

ELEMENTS_METHOD = "elements"
ELEMENT_OPERATION_BYTES = 200
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
    limits.require_memory(ELEMENT_OPERATION_BYTES * len(problem.kind))
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
            return Decision(ELEMENTS_METHOD, _accused(problem, mine, found.part.stuck))
    return Decision(ELEMENTS_METHOD)


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
