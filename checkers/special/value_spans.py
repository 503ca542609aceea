"""Collections with unique values, as spans of time: when each value was certainly inside.

Events are numbered in their order (at equal times calls come before returns), and time is divided
into *cells*: cell n is between the events n and n + 1. An operation covers the cells from its call
to its return. The times of a value are tightened by its other operations: its put is over before
the first of them is, and its take begins after the last of them has. A value that is never taken
is as if taken after the last event. From the end of its put to the start of its take it is
*certainly inside*.

An answer that nothing was there is right iff one of its cells is covered by no such span: it binds
nothing else.

An indeterminate take may have taken any value that no known take took, or nothing. Without them a
history is harder to explain, and with one for each such value, called when the first of them was,
it is easier. If these bounds differ, values are given to them: first those that must have been
taken by some time, the earliest first; then one by one. A set of operations that has no order
without any has none unless one of its own values was taken, so only those are tried.

Source: Lee & Mathur 2025 (arXiv 2410.04581), section 4, corrected: there, what is never taken is
taken after the last operation that has a value, which is too early for a last answer that nothing
was there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from shaketable.checkers.kernels.cells import earliest_ends, least_of_each, paint
from shaketable.checkers.models.encoding import ABSENT, NOTHING, StepByKind
from shaketable.checkers.models.stack import Pile
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Bools, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision

NO_ROW = -1
OPERATION_BYTES = 700
"""What the passes hold at a time for each operation, at the most (measured)."""
NAMED_MAX = 60
"""The most operations of which an accusation claims that they have no order by themselves."""
LINKS_MAX = 6
"""The most values that a message lists one after the other."""
TRIES_MAX, TRIES_MIN, OPERATIONS_TRIED_MAX = 400, 20, 2_000_000
"""How often values are given to indeterminate takes before the special case does not decide: less
often in long histories, so that about so many operations are looked at."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What the operations of a model do, by the codes of its kinds (names in sorted order)."""

    put: int
    take: int
    see: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Operations that showed a value and left it there; arrays with an element for each."""

    row: Ints
    value: Ints  # the number of the value in `Spans`
    call: Ints
    end: Ints

    def of(self, is_kept: Bools) -> Seen:
        """Return those of some values; `is_kept` is by value, which are renumbered."""
        kept = is_kept[self.value]
        number = np.cumsum(is_kept) - 1
        return Seen(self.row[kept], number[self.value[kept]], self.call[kept], self.end[kept])


@dataclass(frozen=True, slots=True)
class Spans:
    """A history of a collection; arrays with an element for each value that was put.

    `put` and `take` are rows of the problem, NO_ROW for the put of a value that was there at
    first, and where no take is known; `number` is the value's number in the problem. The others
    are events. `empties` are rows of the answers that nothing was there, `unknown_takes` those of
    indeterminate takes in the order of their calls, `event_of` the events of all rows: call,
    return.
    """

    problem: Problem
    put: Ints
    take: Ints
    number: Ints
    put_call: Ints
    put_end: Ints
    take_call: Ints
    take_end: Ints
    seen: Seen
    empties: Ints
    unknown_takes: Ints
    event_of: tuple[Ints, Ints]
    cells: int

    def of(self, values: Ints) -> Spans:
        """Return the history of some values alone, given in ascending order."""
        is_kept = np.zeros(len(self.put), np.bool_)
        is_kept[values] = True
        names = ("put", "take", "number", "put_call", "put_end", "take_call", "take_end")
        parts = {name: getattr(self, name)[values] for name in names}
        return replace(self, **parts, seen=self.seen.of(is_kept))

    def rows(self, values: Ints) -> list[int]:
        """Return the rows of all operations on some values, in the order of their calls."""
        seen = self.seen.row[np.isin(self.seen.value, values)]
        rows = np.concatenate((self.put[values], self.take[values], seen))
        rows = rows[rows != NO_ROW]
        return list(rows[np.argsort(self.event_of[0][rows], kind="stable")].tolist())


Conflict = Callable[[Spans, Limits], "Core | None"]
"""Finds operations that have no order as they are, in a history without indeterminate takes.

Raises:
    TimeSpentError: the time is over.
"""


Heights = Callable[[Spans], "tuple[Ints, Ints]"]
"""Returns two heights of each value, neither negative: a value that is inside hides another one if
the height at which it hides is above that at which the other is shown."""


@dataclass(frozen=True, slots=True)
class Core:
    """Operations that have no order by themselves: those of some values, and of the rows `besides`.

    `values` are places in the `Spans`, in ascending order; `why` is as in `Accusation`, with the
    operations in the order of `ops`, rows of the problem.
    """

    values: Ints
    ops: tuple[int, ...]
    why: str


def decide_spans(
    method: str,
    problem: Problem,
    roles: Roles,
    conflict: Conflict,
    heights: Heights,
    limits: Limits,
) -> Decision | None:
    """Decide a history; None if values repeat, or indeterminate takes leave it open.

    Args:
        method: the name of the algorithm.
        problem: the history.
        roles: what its operations do.
        conflict: finds what has no order.
        heights: which values hide which.
        limits: the budget.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    limits.require_memory(OPERATION_BYTES * len(problem.kind))
    spans = load(problem, roles)
    limits.check_time()
    if spans is None:
        return None
    if isinstance(spans, Accusation):
        return Decision(method, spans)
    core = conflict(spans, limits)
    if core is None:
        return Decision(method)
    if not len(spans.unknown_takes):
        return Decision(method, accused(spans, core))
    # As if the first of them had taken each value that is left: if that is invalid, it is invalid.
    left = np.flatnonzero(spans.take == NO_ROW)
    relaxed = conflict(taken(spans, left, int(spans.unknown_takes[0])), limits)
    if relaxed is not None:
        return Decision(method, accused(spans, relaxed))
    matched, used = _matched(spans, heights)
    rest = conflict(matched, limits)
    if rest is None or _Giving(spans, conflict, limits).explains(rest, matched, used):
        return Decision(method)
    giving = _Giving(spans, conflict, limits)
    if giving.explains(core, spans, ()):
        return Decision(method)
    return None if giving.gave_up else Decision(method, giving.accused(core))


def _matched(spans: Spans, heights: Heights) -> tuple[Spans, tuple[int, ...]]:
    """Give values to indeterminate takes by earliest deadline; return also which takes were used.

    A value must be gone by the end of an answer that was called after its put, and showed what it
    would have hidden, or nothing.
    """
    left = np.flatnonzero(spans.take == NO_ROW)
    takes = np.flatnonzero(spans.take != NO_ROW)
    shown_height, hiding_height = heights(spans)
    value = np.concatenate((takes, spans.seen.value, np.full(len(spans.empties), len(spans.put))))
    known = np.stack(
        (
            np.append(shown_height, -1)[value],
            np.concatenate(
                (spans.take_call[takes], spans.seen.call, spans.event_of[0][spans.empties])
            ),
            np.concatenate(
                (spans.take_end[takes], spans.seen.end, spans.event_of[1][spans.empties])
            ),
        ),
        axis=1,
    )
    asked = np.stack((hiding_height[left], spans.put_end[left]), axis=1)
    deadline = np.full(len(left), NEVER, np.int64)
    earliest_ends(
        known, np.argsort(known[:, 0], kind="stable"), asked,
        np.argsort(asked[:, 0], kind="stable"), np.full(spans.cells + 2, NEVER, np.int64), deadline,
    )  # fmt: skip
    return _given_by(spans, left, deadline)


def _given_by(spans: Spans, left: Ints, deadline: Ints) -> tuple[Spans, tuple[int, ...]]:
    """Let the takes called first take the values with the earliest deadlines, where in time."""
    last, take_call = _last_called(spans), spans.take_call.copy()
    calls = spans.event_of[0][spans.unknown_takes]
    used = 0
    for place in np.argsort(deadline, kind="stable").tolist():
        if deadline[place] == NEVER or used == len(calls):
            break
        if calls[used] < deadline[place]:
            take_call[left[place]] = max(calls[used], last[left[place]])
            used += 1
    return replace(spans, take_call=take_call), tuple(range(used))


class _Giving:
    """Gives values to indeterminate takes, so that what has no order without them has one."""

    def __init__(self, spans: Spans, conflict: Conflict, limits: Limits) -> None:
        self._spans, self._conflict, self._limits = spans, conflict, limits
        self._tries = 0
        fitting = OPERATIONS_TRIED_MAX // max(1, len(spans.problem.kind))
        self._tries_max = min(TRIES_MAX, max(TRIES_MIN, fitting))
        self._tried: dict[int, None] = {}
        self.gave_up = False

    def explains(self, core: Core, spans: Spans, used: tuple[int, ...]) -> bool:
        """Return whether some way was found; if not, there is none, unless it gave up.

        In the core one value must have been taken, of those that nothing is known to have taken.
        """
        self._tried |= dict.fromkeys(core.ops)
        is_given = spans.take_call[core.values] != self._spans.take_call[core.values]
        wanted = core.values[(spans.take[core.values] == NO_ROW) & ~is_given]
        for value in wanted.tolist():
            for place, row in enumerate(self._spans.unknown_takes.tolist()):
                if place in used:
                    continue
                self._tries += 1
                if self._tries > self._tries_max:
                    self.gave_up = True
                if self.gave_up:
                    return False
                given = taken(spans, np.array([value]), row)
                left = self._conflict(given, self._limits)
                if left is None or self.explains(left, given, (*used, place)):
                    return True
        return False

    def accused(self, core: Core) -> Accusation:
        """Accuse all that was tried: it has no order, whatever the indeterminate takes took."""
        more = [row for row in self._tried if row not in core.ops]
        why = core.why + "; whatever those without a known answer by then took, no order is left"
        return accused(self._spans, Core(core.values, (*core.ops, *more), why))


def taken(spans: Spans, values: Ints, row: int) -> Spans:
    """Return the history as if an indeterminate take, a row, had taken some values."""
    call = np.maximum(spans.event_of[0][row], _last_called(spans)[values])
    take_call = spans.take_call.copy()
    take_call[values] = np.minimum(take_call[values], call)
    return replace(spans, take_call=take_call)


def _last_called(spans: Spans) -> Ints:
    """Return for each value the last call of its put and of what showed it."""
    last = spans.put_call.copy()
    np.maximum.at(last, spans.seen.value, spans.seen.call)
    return last


def accused(spans: Spans, core: Core) -> Accusation:
    """Return an accusation; indeterminate takes are named with it, since they do not help."""
    problem = spans.problem
    more = [row for row in spans.unknown_takes.tolist() if row not in core.ops]
    rows = [*core.ops, *more[:NAMED_MAX]]
    return Accusation(
        tuple(int(problem.op[row]) for row in rows), core.why, closed=len(core.ops) <= NAMED_MAX
    )


# Loads a problem.


def load(problem: Problem, roles: Roles) -> Spans | Accusation | None:
    """Pair the operations of each value, and tighten their times.

    Returns None if a value was put twice, and an accusation of a take or a look that no collection
    allows: of what was never put, or only later, or taken by another.
    """
    code, put_value, shown = (
        part[problem.kind] for part in (problem.kinds.code, problem.kinds.a, problem.kinds.b)
    )
    puts = np.flatnonzero(code == roles.put)
    shows = code != roles.put
    first = _first_numbers(problem)
    values = 1 + max(put_value.max(initial=0), shown.max(initial=0), first.max(initial=0))
    times_put = np.bincount(np.concatenate((first, put_value[puts])), minlength=values)
    if times_put.max(initial=0) > 1:
        return None
    answered = np.flatnonzero(shows & (shown != ABSENT) & (shown != NOTHING))
    of_take = code[answered] == roles.take
    takes, sees = answered[of_take], answered[~of_take]
    putter = np.full(values, NO_ROW, np.int64)
    putter[put_value[puts]] = puts
    accusation = _accuse(problem, (takes, sees), shown, putter, times_put)
    if accusation is not None:
        return accusation
    taker = np.full(values, NO_ROW, np.int64)
    taker[shown[takes]] = takes
    is_known = times_put > 0
    # A put of unknown outcome whose value was never shown need not have happened.
    unseen = puts[problem.return_ns[puts] == NEVER]
    unseen = unseen[np.bincount(shown[answered], minlength=values)[put_value[unseen]] == 0]
    is_known[put_value[unseen]] = False
    number = np.flatnonzero(is_known)
    unknown = np.flatnonzero((code == roles.take) & (shown == ABSENT))
    unknown = unknown[np.argsort(problem.call_ns[unknown], kind="stable")]
    place = np.full(values, NO_ROW, np.int64)
    place[number] = np.arange(len(number))
    return _tightened(
        problem,
        (putter[number], taker[number], number),
        (sees, place[shown[sees]]),
        (np.flatnonzero(shows & (shown == NOTHING)), unknown),
        first,
    )


def _first_numbers(problem: Problem) -> Ints:
    """Return the numbers of the values that are inside at first, in the order of their puts."""
    assert isinstance(problem.step, StepByKind), "the problem is made by its model"
    if isinstance(problem.start, Pile):
        values = list(problem.start)[::-1]
    else:
        assert isinstance(problem.start, tuple), "a state in the order of its puts"
        values = list(problem.start)
    return np.array([problem.step.number(value) for value in values], np.int64)


def _accuse(
    problem: Problem, shows: tuple[Ints, Ints], shown: Ints, putter: Ints, times_put: Ints
) -> Accusation | None:
    takes, sees = shows
    everything = np.concatenate(shows)

    def accuse(rows: list[int], why: str) -> Accusation:
        return Accusation(tuple(int(problem.op[row]) for row in rows), why)

    nowhere = everything[times_put[shown[everything]] == 0]
    if len(nowhere):
        row = int(nowhere[np.argmin(problem.return_ns[nowhere])])
        return accuse([row], "{0} showed a value that no client ever put in")
    order = takes[np.lexsort((problem.return_ns[takes], shown[takes]))]
    again = np.flatnonzero(shown[order][1:] == shown[order][:-1])
    if len(again):
        one, other = int(order[again[0]]), int(order[again[0] + 1])
        put = int(putter[shown[one]])
        if put == NO_ROW:
            return accuse([other, one], "{0} took what {1} had taken, and it was there only once")
        return accuse([other, one, put], "{0} took what {1} had taken, and {2} put it in only once")
    puts = putter[shown[everything]]
    early = (puts != NO_ROW) & (problem.return_ns[everything] < problem.call_ns[puts])
    if early.any():
        at = int(np.flatnonzero(early)[0])
        rows = [int(everything[at]), int(puts[at])]
        return accuse(rows, "{0} had returned before {1} was called")
    taken_ns = np.full(len(putter), NEVER, np.int64)
    taken_ns[shown[takes]] = problem.return_ns[takes]
    late = sees[problem.call_ns[sees] > taken_ns[shown[sees]]]
    if not len(late):
        return None
    row = int(late[0])
    take = int(takes[np.flatnonzero(shown[takes] == shown[row])[0]])
    rows = [row, take, *([int(putter[shown[row]])] if putter[shown[row]] != NO_ROW else [])]
    again_why = ", and {2} put it in only once" if len(rows) > 2 else ""
    return accuse(rows, "{0} saw what {1} had taken before {0} was called" + again_why)


def _tightened(
    problem: Problem,
    values: tuple[Ints, Ints, Ints],
    sees: tuple[Ints, Ints],
    others: tuple[Ints, Ints],
    first: Ints,
) -> Spans:
    """Number the events, and tighten the times of each value by its own operations."""
    put, take, number = values
    call, end, count = _events(problem, 2 * len(first))
    last = count  # what is never taken is taken after the last event: in the last cell
    is_first = put == NO_ROW
    at_first = np.full(int(number.max(initial=0)) + 1, 0, np.int64)
    at_first[first] = 2 * np.arange(len(first))
    put_call = np.where(is_first, at_first[number], call[put])
    put_end = np.where(is_first, put_call + 1, np.where(end[put] == NEVER, last, end[put]))
    take_call = np.where(take == NO_ROW, last, call[take])
    take_end = np.where(take == NO_ROW, last + 1, end[take])
    see_rows, see_value = sees
    see_call, see_end = call[see_rows], end[see_rows]
    np.minimum.at(put_end, see_value, see_end)
    put_end = np.minimum(put_end, take_end)
    last_call = put_call.copy()
    np.maximum.at(last_call, see_value, see_call)
    take_call = np.maximum(take_call, last_call)
    seen = Seen(
        see_rows,
        see_value,
        np.maximum(see_call, put_call[see_value]),
        np.minimum(see_end, take_end[see_value]),
    )
    empties, unknown = others
    return Spans(
        problem, put, take, number, put_call, put_end, take_call, take_end, seen, empties, unknown,
        (call, end), count + 1,
    )  # fmt: skip


def _events(problem: Problem, first: int) -> tuple[Ints, Ints, int]:
    """Return the events of all calls and returns, NEVER for none, from `first` on, and the next."""
    returned = np.flatnonzero(problem.return_ns != NEVER)
    times = np.concatenate((problem.call_ns, problem.return_ns[returned]))
    is_return = np.repeat((0, 1), (len(problem.call_ns), len(returned)))
    event = np.empty(len(times), np.int64)
    event[np.lexsort((is_return, times))] = first + np.arange(len(times))
    end = np.full(len(problem.call_ns), NEVER, np.int64)
    end[returned] = event[len(problem.call_ns) :]
    return event[: len(problem.call_ns)], end, first + len(times)


# Answers that nothing was there.


def wrong_empty(spans: Spans, what: str) -> Core | None:
    """Find an answer that nothing was there while some value was certainly inside all the time."""
    inside = np.flatnonzero(spans.put_end < spans.take_call)
    if not len(inside) or not len(spans.empties):
        return None
    depth = np.zeros(spans.cells + 1, np.int64)
    np.add.at(depth, spans.put_end[inside], 1)
    np.add.at(depth, spans.take_call[inside], -1)
    free = np.concatenate(([0], np.cumsum(np.cumsum(depth)[:-1] == 0)))
    call, end = spans.event_of[0][spans.empties], spans.event_of[1][spans.empties]
    covered = np.flatnonzero(free[end] == free[call])
    if not len(covered):
        return None
    at = int(covered[np.argmin(end[covered])])
    chain = cover(spans, inside, int(call[at]), int(end[at]))
    why = f"{{0}} found nothing, though something was {what} all the time: "
    return chain_core(spans, int(spans.empties[at]), chain, why)


def cover(spans: Spans, inside: Ints, call: int, end: int) -> list[int]:
    """Return few of the values `inside` whose spans cover all cells from `call` to before `end`."""
    inside = inside[np.argsort(spans.put_end[inside], kind="stable")]
    begins, ends = spans.put_end[inside], spans.take_call[inside]
    is_new = np.ones(len(inside), np.bool_)
    is_new[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
    # Of the spans that have begun by then, the one that ends last.
    best = np.maximum.accumulate(np.where(is_new, np.arange(len(inside)), 0))
    chain: list[int] = []
    at = call
    while at < end:
        value = int(inside[best[np.searchsorted(begins, at, side="right") - 1]])
        chain.append(value)
        at = int(spans.take_call[value])
    return chain


def chain_core(spans: Spans, row: int, chain: list[int], why: str) -> Core:
    """Return the core of an operation, a row, and a chain of values that were inside meanwhile."""
    ops, parts = [row], []
    for value in chain:
        put, take = int(spans.put[value]), int(spans.take[value])
        if put == NO_ROW:
            text = "a first value"
        else:
            text = f"what {{{len(ops)}}} put in"
            ops.append(put)
        if take == NO_ROW:
            parts.append(f"{text}, which no client took out in time")
        else:
            parts.append(f"{text}, until {{{len(ops)}}}")
            ops.append(take)
        for witness in _narrowing(spans, value):
            if witness not in ops:
                ops.append(witness)
    if len(parts) > LINKS_MAX:
        parts = [*parts[:LINKS_MAX], f"{len(parts) - LINKS_MAX} more, one after the other"]
    return Core(np.unique(np.array(chain, np.int64)), tuple(ops), why + "; then ".join(parts))


def _narrowing(spans: Spans, value: int) -> list[int]:
    """Return the rows that showed a value first and last: they bound its span."""
    seen = np.flatnonzero(spans.seen.value == value)
    if not len(seen):
        return []
    first = int(seen[np.argmin(spans.seen.end[seen])])
    last = int(seen[np.argmax(spans.seen.call[seen])])
    return [int(spans.seen.row[first]), int(spans.seen.row[last])]


# Priority queues with unique values: decided by what was certainly inside, without a search.
#
# An answer that showed a value is right iff at some moment of it no value of a higher priority
# was certainly inside: from the end of its insert to the start of its poll. An answer that the
# queue was empty is right iff at some moment no value was. Nothing else is needed. O(n log n) at
# any concurrency.
#
# Source: Lee & Mathur 2025 (arXiv 2410.04581), section 6, as a minimum over intervals in place of
# a sweep.

METHOD = "priorities"
ROLES = Roles(put=0, take=2, see=1)
"""Places of insert, poll and peek among the names in sorted order."""
NOTHING_INSIDE = int(np.iinfo(np.int64).min)


@dataclass(frozen=True, slots=True)
class Order:
    """Decides the histories of one kind of priority queue: the largest or the least value first."""

    largest_first: bool

    def decide(self, problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
        """Decide a history; None if values repeat, or indeterminate polls leave it open.

        Raises:
            MemorySpentError: it takes more memory than the limits allow.
            TimeSpentError: the time is over.
        """
        return decide_spans(METHOD, problem, ROLES, self._conflict, self._heights, limits)

    def _heights(self, spans: Spans) -> tuple[Ints, Ints]:
        """Let a value hide those of a lower priority."""
        rank = self._by_priority(spans)
        return rank, rank

    def _by_priority(self, spans: Spans) -> Ints:
        """Return each value's place from the lowest priority to the highest."""
        rank = _ranks(spans)
        return rank if self.largest_first else len(rank) - 1 - rank

    def _conflict(self, spans: Spans, limits: Limits) -> Core | None:
        empty = wrong_empty(spans, "in the queue")
        limits.check_time()
        return empty if empty is not None else self._overtaken(spans)

    def _overtaken(self, spans: Spans) -> Core | None:
        """Find an answer during which something of a higher priority was always inside."""
        rank = self._by_priority(spans)
        takes = np.flatnonzero(spans.take != NO_ROW)
        value = np.concatenate((takes, spans.seen.value))
        row = np.concatenate((spans.take[takes], spans.seen.row))
        call = np.concatenate((spans.take_call[takes], spans.seen.call))
        end = np.concatenate((spans.take_end[takes], spans.seen.end))
        inside = np.flatnonzero(spans.put_end < spans.take_call)
        if not len(row) or not len(inside):
            return None
        by = np.full(spans.cells, NO_ROW, np.int64)
        order = inside[np.argsort(-rank[inside], kind="stable")]
        paint(spans.put_end, spans.take_call, order, np.arange(spans.cells + 1), by)
        highest = np.where(by == NO_ROW, NOTHING_INSIDE, rank[by])
        least = np.empty(len(row), np.int64)
        least_of_each(highest, call, end, np.empty(2 * spans.cells, np.int64), least)
        wrong = np.flatnonzero(least > rank[value])
        if not len(wrong):
            return None
        at = int(wrong[np.argmin(end[wrong])])
        higher = inside[rank[inside] > rank[value[at]]]
        chain = cover(spans, higher, int(call[at]), int(end[at]))
        why = "{0} came too soon, something of a higher priority was in the queue all the time: "
        core = chain_core(spans, int(row[at]), chain, why)
        own = [each for each in spans.rows(value[at : at + 1]) if each not in core.ops]
        values = np.union1d(core.values, value[at : at + 1])
        return Core(values, (*core.ops, *own), core.why)


def _ranks(spans: Spans) -> Ints:
    """Return each value's place in ascending order: values may be any whole numbers."""
    step = spans.problem.step
    assert isinstance(step, StepByKind), "a priority queue's problem is made by its model"
    values = step.values(spans.number.tolist())
    order = sorted(range(len(values)), key=values.__getitem__)
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    return rank
