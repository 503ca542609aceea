"""Stacks decided without a search: with unique values by bottoms, others by words.

Where values are unique, what can have been at the bottom decides. A history is linearizable iff all
values can be taken away, one after the other, each of which can have been at the bottom of what is
left (checkers.kernels.stack_bottoms), and every answer that the stack was empty has a moment at
which no value was certainly inside. O(n log n) at any concurrency.

What is stuck has no order by itself. It is made small: values are left out as long as the rest is
stuck.

Where values are repeated and clients few, the words that a stack allows decide. A *node* is a set
of operations that may have happened by some moment: all that returned before an event, and some of
those that are open there. An edge is one more operation; events are passed as soon as they can be.
With k operations open at a time there are at most n * 2^k nodes. The history is linearizable iff a
path from the first node to one that has passed all returns spells a word of

    word  = level (push-v level-v)*            what is pushed and never popped
    level = balanced (empty balanced)*         on the empty stack; an answer that it was empty
    level-v = balanced (peek-v balanced)*      while v is on top
    balanced = nothing | push-v level-v pop-v balanced

So for each node, the nodes that are reached by a balanced word are found, the last nodes first, as
a set of bits: O(k * n * 2^k) sets are joined for each. An indeterminate pop pops any value;
indeterminate operations stay open until the end, so each of them doubles the nodes after it.

Source: Lee & Mathur 2025 (arXiv 2410.04581), section 5; Abdulla et al. 2025 (arXiv 2509.17795). For
words, Lee & Mathur 2026 (arXiv 2509.05586), section 5, with sets of bits in place of a table of
pairs, and the pushes that are never popped as words of their own in place of a mirrored history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from shaketable.checkers.kernels.stack_bottoms import DONE, FACTS, NONE, Stacked, take_away_all
from shaketable.checkers.models.encoding import ABSENT, NOTHING, StepByKind
from shaketable.checkers.models.stack import Pile
from shaketable.checkers.search.budget import UNLIMITED, Limits
from shaketable.checkers.search.problem import NEVER, Ints, Problem
from shaketable.checkers.special.decision import Accusation, Decision
from shaketable.checkers.special.value_spans import (
    NAMED_MAX,
    NO_ROW,
    Core,
    Roles,
    Spans,
    decide_spans,
    wrong_empty,
)

METHOD = "bottoms"
ROLES = Roles(put=2, take=1, see=0)
"""Places of push, pop and peek among the names in sorted order."""


def decide_by_bottoms(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a stack's history; None if values repeat, or indeterminate pops leave it open.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    return decide_spans(METHOD, problem, ROLES, _conflict, _heights, limits)


def _heights(spans: Spans) -> tuple[Ints, Ints]:
    """Let a value hide those whose pushes were over before its own was called."""
    return spans.put_end, spans.put_call


def _conflict(spans: Spans, limits: Limits) -> Core | None:
    empty = wrong_empty(spans, "in the stack")
    if empty is not None:
        return empty
    limits.check_time()
    values = stuck(spans)
    if not len(values):
        return None
    values = smallest_stuck(spans, values, limits)
    return _explained(spans, values)


def stuck(spans: Spans) -> Ints:
    """Return the values that cannot be taken away; those of any of them alone are stuck as well."""
    # Where all operations of a value have a moment in common, it can be pushed and popped there.
    inside = np.flatnonzero(spans.put_end < spans.take_call)
    if len(inside) < 2:
        return np.empty(0, np.int64)
    stacked = _stacked(spans.of(inside))
    take_away_all(stacked)
    return np.asarray(inside[stacked.left > 0])


def _stacked(spans: Spans) -> Stacked:
    """Return the arrays of the kernel, before anything was done."""
    count = len(spans.put)
    number = np.arange(count)
    value = np.concatenate((number, number, spans.seen.value))
    call = np.concatenate((spans.put_call, spans.take_call, spans.seen.call))
    end = np.concatenate((spans.put_end, spans.take_end, spans.seen.end))
    # Only the cells at which something starts or ends differ from those before them.
    times = np.unique(np.concatenate((call, end)))
    call, end = np.searchsorted(times, call), np.searchsorted(times, end)
    inside = np.stack((end[:count], call[count : 2 * count]), axis=1)
    cells = len(times)
    order = np.argsort(call, kind="stable")
    value, call, end = value[order], call[order], end[order]
    by_value = np.lexsort((call, value))
    place = np.empty(len(order), np.int64)
    place[by_value] = np.arange(len(order))
    leaves = _power_of_two(cells)
    least = _tree_over(np.where(np.arange(leaves) < cells, 0, DONE), np.minimum)
    return Stacked(
        inside=inside.astype(np.int64),
        op=np.stack((value, call, end, place), axis=1).astype(np.int64),
        by_value=by_value.astype(np.int64),
        first_of=np.searchsorted(value[by_value], np.arange(count + 1)).astype(np.int64),
        started=np.searchsorted(call, np.arange(cells), side="right").astype(np.int64),
        least=least,
        added=np.zeros(2 * leaves, np.int64),
        numbers=np.zeros(2 * leaves, np.int64),
        latest=_tree_of_latest(end),
        latest_of=_tree_of_latest(end[by_value]),
        left=np.bincount(value, minlength=count).astype(np.int64),
        cleared=np.empty(count, np.int64),
        alone=np.full(count, NONE, np.int64),
        alone_before=np.full(leaves, NONE, np.int64),
        at=np.zeros(FACTS, np.int64),
    )


def _power_of_two(count: int) -> int:
    return 1 << max(1, (count - 1).bit_length())


def _tree_of_latest(end: Ints) -> Ints:
    leaves = np.full(_power_of_two(len(end)), NONE, np.int64)
    leaves[: len(end)] = end
    return _tree_over(leaves, np.maximum)


def _tree_over(leaves: Ints, join: np.ufunc) -> Ints:
    """Return a tree over a power of two of leaves: the root at 1, leaf n at their number + n."""
    tree = np.empty(2 * len(leaves), np.int64)
    tree[0], tree[len(leaves) :] = NONE, leaves
    level = len(leaves)
    while level > 1:
        below, level = tree[level : 2 * level], level // 2
        tree[level : 2 * level] = join(below[::2], below[1::2])
    return tree


def smallest_stuck(spans: Spans, values: Ints, limits: Limits) -> Ints:
    """Return stuck values of which none can be left out: without any the others are not stuck.

    In the order of their pushes, the first values up to some place are stuck; the one at that
    place is needed. It is kept, and of those before it again the fewest first ones are added.
    """
    here = spans.of(values)
    pool = np.argsort(here.put_call, kind="stable")
    kept = np.empty(0, np.int64)
    while not len(kept) or not len(_stuck_among(here, kept)):
        low, high = 0, len(pool)  # the kept ones and the first `low` are not stuck; `high` are
        while high - low > 1:
            limits.check_time()
            middle = (low + high) // 2
            left = _stuck_among(here, np.concatenate((kept, pool[:middle])))
            if not len(left):
                low = middle
                continue
            # What is stuck is so by itself, so what is not is not needed.
            is_left = np.isin(pool[:middle], left)
            low, pool = int(is_left[:low].sum()), pool[:middle][is_left]
            high = len(pool)
        kept = np.append(kept, pool[high - 1])
        pool = pool[: high - 1]
    return np.asarray(values[np.sort(kept)])


def _stuck_among(spans: Spans, values: Ints) -> Ints:
    some = np.sort(values)
    return np.asarray(some[stuck(spans.of(some))])


def _explained(spans: Spans, values: Ints) -> Core:
    """Say why some values are stuck; the operation that returned last is the first one named."""
    rows = spans.rows(values)
    end = spans.event_of[1]
    rows.sort(key=lambda row: -int(end[row]))
    two = _one_above_another(spans, values)
    if two is not None:
        return two
    known = [row for row in rows if end[row] < spans.cells] or rows
    ordered = [known[0], *[row for row in rows if row != known[0]]]
    listed = ", ".join(f"{{{n}}}" for n in range(1, min(len(ordered), NAMED_MAX)))
    why = (
        f"{{0}} has no place: with {listed} the stack is never empty, and none of these"
        f" {len(values)} values can have been at its bottom all the time"
    )
    return Core(values, tuple(ordered), why)


def _one_above_another(spans: Spans, values: Ints) -> Core | None:
    """Return the plain case: a value was taken while another was certainly on top of it."""
    if len(values) != 2 or np.isin(spans.seen.value, values).any():
        return None
    below, above = values.tolist()
    if spans.put_end[below] > spans.put_call[above]:
        below, above = above, below
    is_plain = (
        spans.put_end[below] <= spans.put_call[above]
        and spans.put_end[above] <= spans.take_call[below]
        and spans.take_end[below] <= spans.take_call[above]
    )
    if not is_plain or NO_ROW in (spans.put[above], spans.take[below]):
        return None
    ops = [int(spans.take[below]), int(spans.put[above])]
    why = "{0} took a value though {1} had put another on top of it"
    if spans.put[below] != NO_ROW:
        why += f", after {{{len(ops)}}} was over"
        ops.append(int(spans.put[below]))
    if spans.take[above] == NO_ROW:
        why += ", and no client had taken that one"
    else:
        why += f", and {{{len(ops)}}} began only afterwards"
        ops.append(int(spans.take[above]))
    return Core(values, tuple(ops), why)


# Repeated values: words.

WORDS_METHOD = "words"
NODES_MAX = 8_000
"""With more nodes the search decides: their sets take a few times this number squared of bits."""
BYTES_MAX = NODES_MAX * NODES_MAX // 2
WORDS_NAMED_MAX = 60
"""The most operations that an accusation names."""
LOOKS = 64
"""So many nodes between two looks at the clock."""
ANY = ABSENT
"""The value that an indeterminate pop pops."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """What an operation is: a push, pop or peek of a value, or an answer of nothing."""

    role: int
    value: int


def decide_by_words(problem: Problem, limits: Limits = UNLIMITED) -> Decision | None:
    """Decide a stack's history; None if there are too many nodes.

    Raises:
        MemorySpentError: it takes more memory than the limits allow.
        TimeSpentError: the time is over.
    """
    limits.require_memory(BYTES_MAX)
    graph = _graph(problem, limits)
    if graph is None:
        return None
    passed = _Words(graph, limits).farthest()
    if passed == len(graph.events):
        return Decision(WORDS_METHOD)
    return Decision(WORDS_METHOD, _accused(problem, graph, passed))


def _accused(problem: Problem, graph: _Graph, passed: int) -> Accusation:
    """Accuse the first return that no word passes."""
    row = graph.events[passed][1]
    end = int(problem.return_ns[row])
    called = np.flatnonzero(problem.call_ns <= end)
    near = called[np.argsort(-problem.call_ns[called], kind="stable")]
    rows = [row, *[each for each in near.tolist() if each != row]]
    ops = tuple(int(problem.op[each]) for each in rows[:WORDS_NAMED_MAX])
    why = "no order of what was called until {0} returned is one of a stack"
    return Accusation(ops, why, closed=len(rows) <= WORDS_NAMED_MAX)


# The nodes.


@dataclass(frozen=True, slots=True)
class _Graph:
    """Nodes by number, each after all those that lead to it.

    `events` are (is it a return, row) in their order; rows before 0 are the first values. `passed`
    is by node how many events it has passed. `pushes` are by node (value, next node), and `others`
    by role and value, then by node, the next nodes.
    """

    events: list[tuple[bool, int]]
    passed: list[int] = field(default_factory=list)
    pushes: list[list[tuple[int, int]]] = field(default_factory=list)
    others: dict[_Operation, dict[int, list[int]]] = field(default_factory=dict)


def _graph(problem: Problem, limits: Limits) -> _Graph | None:
    """Return the nodes of a history; None if there are more than NODES_MAX."""
    first, operations = _operations(problem)
    graph = _Graph(_events(problem, len(first)))
    place = {row: n for n, row in enumerate([*range(-len(first), 0), *range(len(problem.kind))])}
    slots, open_at = _slots(graph.events), _open_at(graph.events)
    start = _advanced(graph.events, slots, 0, 0)
    numbers = {start: 0}
    layer = [start]
    while layer:
        limits.check_time()
        following: list[tuple[int, int]] = []
        for node in layer:
            _add(graph, node[0])
        for node in layer:
            passed, mask = node
            for row in open_at[passed]:
                if mask >> slots[row] & 1:
                    continue
                after = _advanced(graph.events, slots, passed, mask | 1 << slots[row])
                if after not in numbers:
                    numbers[after] = len(numbers)
                    following.append(after)
                _join(graph, numbers[node], operations[place[row]], numbers[after])
        if len(numbers) > NODES_MAX:
            return None
        layer = following
    return graph


def _add(graph: _Graph, passed: int) -> None:
    graph.passed.append(passed)
    graph.pushes.append([])


def _join(graph: _Graph, node: int, operation: _Operation, after: int) -> None:
    if operation.role == ROLES.put:
        edge = (operation.value, after)
        if edge not in graph.pushes[node]:
            graph.pushes[node].append(edge)
        return
    nodes = graph.others.setdefault(operation, {}).setdefault(node, [])
    if after not in nodes:
        nodes.append(after)


def _operations(problem: Problem) -> tuple[list[int], list[_Operation]]:
    """Return the first values, the bottom first, and all operations, first the pushes of these."""
    assert isinstance(problem.step, StepByKind), "a stack's problem is made by its model"
    assert isinstance(problem.start, Pile), "a stack's state is a pile"
    first = [problem.step.number(value) for value in list(problem.start)[::-1]]
    code, a, b = (each.tolist() for each in (problem.kinds.code, problem.kinds.a, problem.kinds.b))
    found = [_Operation(ROLES.put, value) for value in first]
    for kind in problem.kind.tolist():
        value = a[kind] if code[kind] == ROLES.put else b[kind]
        found.append(_Operation(code[kind], value))
    return first, found


def _events(problem: Problem, first: int) -> list[tuple[bool, int]]:
    """Return all calls and known returns in their order; the first values are pushed before."""
    returned = np.flatnonzero(problem.return_ns != NEVER)
    rows = np.concatenate((np.arange(len(problem.kind)), returned))
    times = np.concatenate((problem.call_ns, problem.return_ns[returned]))
    is_return = np.repeat((False, True), (len(problem.kind), len(returned)))
    order = np.lexsort((is_return, times))
    events = [(is_end, row) for row in range(-first, 0) for is_end in (False, True)]
    return [*events, *zip(is_return[order].tolist(), rows[order].tolist(), strict=True)]


def _slots(events: list[tuple[bool, int]]) -> dict[int, int]:
    """Return for each row a bit that no other row has that is open at the same time."""
    free: list[int] = []
    slots: dict[int, int] = {}
    used = 0
    for is_return, row in events:
        if is_return:
            free.append(slots[row])
        elif free:
            slots[row] = free.pop()
        else:
            slots[row] = used
            used += 1
    return slots


def _advanced(
    events: list[tuple[bool, int]], slots: dict[int, int], passed: int, mask: int
) -> tuple[int, int]:
    """Return a node after all events that it can pass; the bits of what returned are cleared."""
    while passed < len(events):
        is_return, row = events[passed]
        if is_return:
            if not mask >> slots[row] & 1:
                break
            mask &= ~(1 << slots[row])
        passed += 1
    return passed, mask


def _open_at(events: list[tuple[bool, int]]) -> list[tuple[int, ...]]:
    """Return, by how many events were passed, the rows that were called and have not returned."""
    open_rows: dict[int, None] = {}
    found: list[tuple[int, ...]] = []
    for is_return, row in events:
        found.append(tuple(open_rows) if is_return else ())  # no node is before a call
        if is_return:
            del open_rows[row]
        else:
            open_rows[row] = None
    return [*found, tuple(open_rows)]


# The words.


class _Words:
    """Finds by which nodes words end."""

    def __init__(self, graph: _Graph, limits: Limits) -> None:
        self._graph, self._limits = graph, limits
        self._balanced: list[int] = [0] * len(graph.passed)
        self._by: dict[_Operation, int] = {
            operation: sum(1 << node for node in nodes) for operation, nodes in graph.others.items()
        }
        self._levels: dict[tuple[int, int], int] = {}

    def farthest(self) -> int:
        """Return the most events that a word passes."""
        for node in range(len(self._graph.passed) - 1, -1, -1):
            if node % LOOKS == 0:
                self._limits.check_time()
            self._balanced[node] = self._balanced_from(node)
        # On the empty stack two operations answer that it was empty.
        empty = [_Operation(role, NOTHING) for role in (ROLES.take, ROLES.see)]
        reached = self._level(0, empty)
        seen: set[tuple[int, int]] = set()
        waiting = [reached]
        most = 0
        while waiting:
            self._limits.check_time()
            for node in _bits(waiting.pop()):
                most = max(most, self._graph.passed[node])
                for value, after in self._graph.pushes[node]:
                    if (value, after) not in seen:
                        seen.add((value, after))
                        waiting.append(self._under(value, after))
        return most

    def _balanced_from(self, node: int) -> int:
        found = 1 << node
        for value, after in self._graph.pushes[node]:
            under = self._under(value, after)
            for pop in (_Operation(ROLES.take, value), _Operation(ROLES.take, ANY)):
                for last in _bits(under & self._by.get(pop, 0)):
                    for popped in self._graph.others[pop][last]:
                        found |= self._balanced[popped]
        return found

    def _under(self, value: int, node: int) -> int:
        """Return where words end that begin at a node with a value on top, and leave it there."""
        key = (value, node)
        if key not in self._levels:
            self._levels[key] = self._level(node, [_Operation(ROLES.see, value)])
        return self._levels[key]

    def _level(self, node: int, looks: list[_Operation]) -> int:
        """Return where balanced words end, with looks between them."""
        found = self._balanced[node]
        for_look = [(look, self._by[look]) for look in looks if look in self._by]
        done = 0
        while for_look:
            fresh, done = found & ~done, found
            for look, nodes in for_look:
                for last in _bits(fresh & nodes):
                    for seen in self._graph.others[look][last]:
                        found |= self._balanced[seen]
            if found == done:
                break
        return found


def _bits(nodes: int) -> Iterator[int]:
    """Yield the places of the bits that are set."""
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low
