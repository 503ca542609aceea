"""Searches for an order of a FIFO queue's values, pair by pair: an enqueue and its dequeue.

In every linearization of a FIFO queue, enqueues and dequeues have the same order: the n-th
dequeue takes what the n-th enqueue put in, and values that are never taken come last. So the
search gives a place to one *pair* after the other, an enqueue and the dequeue of the same value,
and the contents of the queue are no part of its state. A dequeue that found nothing (an *empty*)
has its place between two pairs.

Given such an order, call every operation that has no place yet *left*. The order agrees with real
time iff no operation was called after the return of one that must come after it. After an enqueue
come all that are left; after a dequeue the dequeues that are left, and, once the next empty has
its place, all that is left; after an empty all that is left. (Proof: give each operation as its
time the latest call of all that must come before it.) So:

- What may come next was called by the earliest of those returns. No other times matter.
- Of several enqueues of one value that may come next, take the one that returns first; of
  dequeues likewise. (Exchange argument: in an order that takes another one, the two can change
  places, and what remains has the later deadline.)
- An empty takes its place as soon as it can, since that removes an obligation and hinders
  nothing. How many have one is part of the state that is memoised.
- Of indeterminate operations of a value take the one that was called first, and after all known
  ones. A pair of two indeterminate operations explains nothing, and is never formed.

Of what may come next, the pair that returns first is the best move; the others are deferred. The
search itself, and its memo of sets of operations, is order_search.

Source: written from the definition. The reductions are fuzzed against brute force.
"""

from __future__ import annotations

from typing import NamedTuple

from shaketable.checkers.kernels.order_search import (
    AFTER,
    AT_DEPTH,
    CALLED,
    COST,
    DEPTH,
    LATER,
    LATER_COST,
    LINEARIZED,
    MERIT,
    NEVER,
    NEXT_CALL,
    NEXT_FIRST,
    NODE,
    NODE_FIRST,
    NODE_SECOND,
    NONE,
    REACHED,
    REFUTED,
    RETURNED,
    SEARCH_FACTS,
    SLICE_OVER,
    STALLED,
    TICK,
    VISITED,
    Int32s,
    Int64s,
    Words,
    choose,
    defer,
    find_way,
    first_return,
    is_new,
    lacks,
    next_node,
    relink,
    sift_up,
    swap,
    toggle,
    unlink,
)
from shaketable.harness.compiled import bare, compiled, inlined

ANY = -1
"""The value of an indeterminate dequeue: it may have taken whatever was at the head."""

# ---- columns of `puts` and `takes` after those of all operations
VALUE = 2
# ---- columns of `spare`, by value: indeterminate enqueues in the order of their calls
SPARE_START = 0
SPARE_USED = 1
# ---- columns of `best`, by value: which operation may come next, and the tick of that
STAMP_PUT = 0
PUT = 1
STAMP_TAKE = 2
TAKE = 3
# ---- columns of `move`
MOVE_PUT = 0
MOVE_TAKE = 1
# ---- `at`: scalars after those of all searches
EMPTIES_PLACED = SEARCH_FACTS
TAKES_LEFT = SEARCH_FACTS + 1
WILD_USED = SEARCH_FACTS + 2
PRICE = SEARCH_FACTS + 3
DEEPEST = SEARCH_FACTS + 4
PROGRESS = SEARCH_FACTS + 5
AT_FACTS = SEARCH_FACTS + 6


class Pairs(NamedTuple):
    """A queue's history, and the state of its search. *Left* are operations without a place.

    The fields of `order_search.SearchArrays` are described there; a move is a pair, as rows of
    `puts` and `takes`.

    Attributes:
        puts: call, return and value of each enqueue, in the order of calls; the queue's first
            values were enqueued before all else.
        takes: the same of each dequeue that took a value, and of each indeterminate one.
        put_links: lists of the enqueues that returned and are left, by calls and by returns; the
            last row is the head of both.
        take_links: the same of the dequeues that are left and have a value.
        spare: for each value, and one more row, where its indeterminate enqueues start in
            `spare_put`, and how many of them are used.
        spare_put: rows of `puts` by value, then by call.
        wild: rows of `takes` with the value ANY, in the order of calls.
        empties: calls and returns of dequeues that found nothing, in the order of calls, and a
            last row. A return is the earliest of all from its row on.
        best: for each value which operations may come next.
        order: the pairs that have a place: rows of `puts` and `takes`.
        empties_before: how many empty dequeues have a place before each of these pairs.
        take_called: by number of pairs, the latest call of their dequeues.
        move: the pairs that may come next.
    """

    puts: Int64s
    takes: Int64s
    put_links: Int32s
    take_links: Int32s
    spare: Int32s
    spare_put: Int32s
    wild: Int32s
    empties: Int64s
    best: Int32s
    order: Int32s
    empties_before: Int32s
    take_called: Int64s
    path: Int32s
    way: Int32s
    node: Int32s
    move: Int32s
    later: Int32s
    seen: Words
    hashed: Words
    at: Int64s


@compiled
def link(operations: Int64s, by_return: Int64s, links: Int32s, with_unknown: bool) -> None:
    """Link operations in a list by calls, which is their order, and in one by returns.

    `by_return` sorts them by their returns. Indeterminate ones are left out; with
    `with_unknown` only those without a value are.
    """
    head = operations.shape[0]
    for column in range(2):
        last = head
        for n in range(head):
            i = by_return[n] if column else n
            unknown = operations[i, RETURNED] == NEVER
            if unknown and (not with_unknown or operations[i, VALUE] == ANY):
                continue
            links[last, 2 * column] = i
            links[i, 2 * column + 1] = last
            last = i
        links[last, 2 * column] = head
        links[head, 2 * column + 1] = last


# Moves: which pairs may come next, and which of them is tried first.


@inlined
def _find_best(
    operations: Int64s, links: Int32s, until: int, best: Int32s, stamp: int, tick: int
) -> None:
    """Find for each value the operation that may come next and returns first."""
    head = operations.shape[0]
    i = links[head, NEXT_CALL]
    while i != head and operations[i, CALLED] <= until:
        v = operations[i, VALUE]
        is_known = best[v, stamp] == tick
        if not is_known or operations[best[v, stamp + 1], RETURNED] > operations[i, RETURNED]:
            best[v, stamp] = tick
            best[v, stamp + 1] = i
        i = links[i, NEXT_CALL]


@inlined
def _defer(p: Pairs, put: int, take: int, rank: int) -> None:
    """Defer a pair that `rank` others precede as a choice."""
    node = p.at[NODE]
    cost = p.node[node, COST] + rank
    defer(p, put, take, int(cost), int(p.node[node, DEPTH] - p.at[PRICE] * cost))


@compiled
def set_price(p: Pairs, price: int) -> None:
    """Set by how many pairs an order must be longer to make up for one choice not the best.

    It applies from now on and to all deferred moves, whose heap is built anew. The count of
    orders without progress starts again.
    """
    p.at[PRICE] = price
    p.at[PROGRESS] = p.at[VISITED]
    count = p.at[LATER]
    for n in range(count):
        depth = p.node[p.later[n, AFTER], DEPTH]
        p.later[n, MERIT] = depth - price * p.later[n, LATER_COST]
        sift_up(p.later, n)


@inlined
def _spare_of(p: Pairs, value: int, until: int) -> int:
    """Return an indeterminate enqueue of that value which may come next, -1 if none."""
    n = p.spare[value, SPARE_START] + p.spare[value, SPARE_USED]
    if n == p.spare[value + 1, SPARE_START]:
        return -1
    put = p.spare_put[n]
    return int(put) if p.puts[put, CALLED] <= until else -1


@bare
def find_moves(p: Pairs, all_until: int, takes_until: int) -> None:
    """Choose the best pair that may come next, and defer the others."""
    p.at[TICK] += 1
    tick = p.at[TICK]
    _find_best(p.puts, p.put_links, all_until, p.best, STAMP_PUT, tick)
    _find_best(p.takes, p.take_links, takes_until, p.best, STAMP_TAKE, tick)
    head = p.takes.shape[0]
    # An indeterminate dequeue may have taken any value. It pairs with a known enqueue only if no
    # known dequeue of that value may come next, which would be taken before it.
    wild = p.wild[p.at[WILD_USED]] if p.at[WILD_USED] < p.wild.size else -1
    if wild >= 0 and p.takes[wild, CALLED] <= takes_until:
        i = p.put_links[p.puts.shape[0], NEXT_CALL]
        while i != p.puts.shape[0] and p.puts[i, CALLED] <= all_until:
            v = p.puts[i, VALUE]
            if p.best[v, PUT] == i and p.best[v, STAMP_TAKE] != tick:
                _defer(p, i, wild, 1)
            i = p.put_links[i, NEXT_CALL]
    # A known dequeue pairs with a known enqueue of its value, or else with a spare one, unless
    # both are indeterminate.
    count = 0
    i = p.take_links[head, NEXT_CALL]
    while i != head and p.takes[i, CALLED] <= takes_until:
        v = p.takes[i, VALUE]
        if p.best[v, TAKE] == i:
            if p.best[v, STAMP_PUT] == tick:
                count = _add(p, count, int(p.best[v, PUT]), i)
            elif p.takes[i, RETURNED] != NEVER:
                put = _spare_of(p, int(v), all_until)
                if put >= 0:
                    _defer(p, put, i, 1)
        i = p.take_links[i, NEXT_CALL]
    for n in range(count - 1, 0, -1):
        _defer(p, int(p.move[n, MOVE_PUT]), int(p.move[n, MOVE_TAKE]), n)
    if count:
        choose(p, int(p.move[0, MOVE_PUT]), int(p.move[0, MOVE_TAKE]))


@inlined
def _urgency(p: Pairs, n: int) -> int:
    put, take = p.move[n, MOVE_PUT], p.move[n, MOVE_TAKE]
    return int(p.puts[put, RETURNED] // 2 + p.takes[take, RETURNED] // 2)


@inlined
def _add(p: Pairs, count: int, put: int, take: int) -> int:
    """Insert a pair in the order of returns; return how many there are now."""
    p.move[count, MOVE_PUT] = put
    p.move[count, MOVE_TAKE] = take
    n = count
    while n and _urgency(p, n - 1) >= _urgency(p, n):
        swap(p.move, n, n - 1)
        n -= 1
    return count + 1


@inlined
def _until(p: Pairs) -> int:
    """Return the earliest return of the enqueues and dequeues that are left."""
    return min(first_return(p.puts, p.put_links), first_return(p.takes, p.take_links))


@inlined
def _go_to(p: Pairs, node: int) -> None:
    """Give places to the pairs of that node, and to no others."""
    count = find_way(p, node)
    depth = p.node[node, DEPTH] - count
    while p.at[AT_DEPTH] > depth:
        unplace(p)
    while count:
        count -= 1
        _enter(p, p.way[count])


@inlined
def _enter(p: Pairs, node: int) -> None:
    place(p, int(p.node[node, NODE_FIRST]), int(p.node[node, NODE_SECOND]))
    p.path[p.at[AT_DEPTH]] = node
    place_empties(p, _until(p))


@bare
def _visit(p: Pairs) -> bool:
    """Visit the current order, and choose what comes next. Return True if it is complete.

    It is complete when all dequeues that returned and all empties have places: enqueues that are
    left follow, in the order of calls.
    """
    p.at[VISITED] += 1
    p.at[NEXT_FIRST] = NONE
    until = _until(p)
    all_until = place_empties(p, until)
    p.at[REACHED] = max(p.at[REACHED], all_until)
    if p.at[TAKES_LEFT] == 0 and p.at[EMPTIES_PLACED] == p.empties.shape[0] - 1:
        return True
    if is_new(p, int(p.at[EMPTIES_PLACED])):
        empties_until = p.empties[p.at[EMPTIES_PLACED], RETURNED]
        takes_until = min(first_return(p.takes, p.take_links), empties_until)
        find_moves(p, all_until, takes_until)
    return False


@compiled
def run(p: Pairs, visits_max: int, stall: int) -> int:
    """Continue the search; return LINEARIZED, REFUTED, SLICE_OVER, STALLED, or one of the NEEDS.

    STALLED means that after `stall` orders none was longer than all before.
    """
    for _ in range(visits_max):
        if p.at[VISITED] - p.at[PROGRESS] > stall:
            return STALLED
        lack = lacks(p, 2 * p.spare.shape[0])
        if lack != LINEARIZED:
            return lack
        node = next_node(p)
        if node == NONE:
            return REFUTED
        _go_to(p, node)
        p.at[NODE] = node
        if p.at[AT_DEPTH] > p.at[DEEPEST]:
            p.at[DEEPEST] = p.at[AT_DEPTH]
            p.at[PROGRESS] = p.at[VISITED]
        if _visit(p):
            return LINEARIZED
    return SLICE_OVER


# Gives pairs their places, and takes them back.


@inlined
def place(p: Pairs, put: int, take: int) -> None:
    """Give a pair the next place."""
    placed = p.at[AT_DEPTH]
    p.order[placed, 0] = put
    p.order[placed, 1] = take
    p.empties_before[placed] = p.at[EMPTIES_PLACED]
    p.take_called[placed + 1] = max(p.take_called[placed], p.takes[take, CALLED])
    p.at[AT_DEPTH] = placed + 1
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] += 1
    else:
        unlink(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] += 1
    else:
        unlink(p.take_links, take)
        p.at[TAKES_LEFT] -= p.takes[take, RETURNED] != NEVER
    toggle(p.hashed, 2 * put)
    toggle(p.hashed, 2 * take + 1)


@inlined
def unplace(p: Pairs) -> None:
    """Undo `place` for the last pair."""
    placed = p.at[AT_DEPTH] - 1
    put, take = p.order[placed, 0], p.order[placed, 1]
    p.at[AT_DEPTH] = placed
    p.at[EMPTIES_PLACED] = p.empties_before[placed]
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] -= 1
    else:
        relink(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] -= 1
    else:
        relink(p.take_links, take)
        p.at[TAKES_LEFT] += p.takes[take, RETURNED] != NEVER
    toggle(p.hashed, 2 * put)
    toggle(p.hashed, 2 * take + 1)


@inlined
def place_empties(p: Pairs, until: int) -> int:
    """Give places to the empties that may come next; return the earliest return of what is left.

    All that is left comes after an empty, so the dequeues before it must have been called by
    `until`, the earliest return of the pairs that are left.
    """
    n = p.at[EMPTIES_PLACED]
    first = min(until, p.empties[n, RETURNED])
    if p.take_called[p.at[AT_DEPTH]] > until:
        return int(first)
    while p.empties[n, CALLED] <= first and n < p.empties.shape[0] - 1:
        n += 1
        first = min(until, p.empties[n, RETURNED])
    p.at[EMPTIES_PLACED] = n
    return int(first)
