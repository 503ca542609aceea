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

What may come next is tried in the order of returns. A wrong choice mostly shows after a few
pairs, so one order is followed to its end (depth first), and all other choices are deferred.
Then the deferred order that is the longest continues, less a price for each choice in it that was
not the best (limited discrepancy search, as best-first search). The state after a set of pairs
does not depend on their order, so each set is visited once; sets are compared by 128-bit hashes.

Source: written from the definition; Harvey & Ginsberg 1995, Limited discrepancy search. The
reductions are fuzzed against brute force.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.checkers.kernels.heap import MERIT, pop_first, sift_up, swap
from shaketable.checkers.kernels.search_moves import mix
from shaketable.harness.compiled import bare, compiled, inlined

# The arrays of the search.

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Words = npt.NDArray[np.uint64]

NEVER = 2**63 - 1
"""The return of an indeterminate operation."""
ANY = -1
"""The value of an indeterminate dequeue: it may have taken whatever was at the head."""

# ---- columns of `puts` and `takes`
CALLED = 0
RETURNED = 1
VALUE = 2
# ---- columns of links: a list by calls, one by returns; the last row is its head
NEXT_CALL = 0
PREVIOUS_CALL = 1
NEXT_RETURN = 2
PREVIOUS_RETURN = 3
# ---- columns of `spare`, by value: indeterminate enqueues in the order of their calls
SPARE_START = 0
SPARE_USED = 1
# ---- columns of `best`, by value: which operation may come next, and the tick of that
STAMP_PUT = 0
PUT = 1
STAMP_TAKE = 2
TAKE = 3
# ---- columns of `node`: a pair, the node before it, what the choices that led there cost
PARENT = 0
NODE_PUT = 1
NODE_TAKE = 2
DEPTH = 3
COST = 4
# ---- columns of `stack` and `later`: a node, and the pair that may come next
AFTER = 0
MOVE_PUT = 1
MOVE_TAKE = 2
MOVE_COST = 3
# ---- `at`: the search's scalars
PLACED = 0
TOP = 1
EMPTIES_PLACED = 2
TAKES_LEFT = 3
WILD_USED = 4
TICK = 5
SEEN = 6
VISITED = 7
NODES = 8
NODE = 9
LATER = 10
PRICE = 11
DEEPEST = 12
PROGRESS = 13
REACHED = 14
AT_FACTS = 15

# ---- what the search returns
REFUTED = 0
LINEARIZED = 1
SLICE_OVER = 2
NEEDS_STACK = 3
NEEDS_SEEN = 4
NEEDS_NODES = 5
NEEDS_LATER = 6
STALLED = 7


class Pairs(NamedTuple):
    """A queue's history, and the state of its search. *Left* are operations without a place.

    Attributes:
        puts: call, return and value of each enqueue, in the order of calls; the queue's first
            values were enqueued before all else.
        takes: the same of each dequeue that took a value, and of each indeterminate one.
        put_links: lists of the enqueues that returned and are left.
        take_links: lists of the dequeues that are left and have a value.
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
        path: by number of pairs, the node.
        way: nodes on the way to where the search continues.
        node: the orders that were visited, as a tree; the root has no pair.
        stack: moves to try, the next one on top.
        later: deferred moves, as a heap by merit: they are tried when the stack is empty.
        seen: a hash set of the sets of operations that were visited, by 128-bit hashes.
        hashed: the hash of what has a place now, in two halves.
        at: scalars, see above.
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
    stack: Int32s
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


@compiled
def keep_seen(old: Words, seen: Words) -> None:
    """Rehash the set of visited states into a larger one."""
    last = np.uint64(seen.shape[0] - 1)
    for n in range(old.shape[0]):
        if old[n, 0] or old[n, 1]:
            x = np.int64(old[n, 0] & last)
            while seen[x, 0] or seen[x, 1]:
                x = np.int64(np.uint64(x + 1) & last)
            seen[x, 0] = old[n, 0]
            seen[x, 1] = old[n, 1]


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
def _push(p: Pairs, put: int, take: int) -> None:
    top = p.at[TOP]
    node = p.at[NODE]
    p.stack[top, AFTER] = node
    p.stack[top, MOVE_PUT] = put
    p.stack[top, MOVE_TAKE] = take
    p.stack[top, MOVE_COST] = p.node[node, COST]
    p.at[TOP] = top + 1


@inlined
def _defer(p: Pairs, put: int, take: int, cost: int) -> None:
    """Defer a move: one that is not the best, but `cost` ranks after it."""
    n = p.at[LATER]
    p.at[LATER] = n + 1
    node = p.at[NODE]
    p.later[n, AFTER] = node
    p.later[n, MOVE_PUT] = put
    p.later[n, MOVE_TAKE] = take
    p.later[n, MOVE_COST] = p.node[node, COST] + cost
    p.later[n, MERIT] = p.node[node, DEPTH] - p.at[PRICE] * p.later[n, MOVE_COST]
    sift_up(p.later, int(n))


@inlined
def resume(p: Pairs) -> None:
    """Move the deferred move of greatest merit to the stack."""
    top = p.at[TOP]
    for column in range(4):
        p.stack[top, column] = p.later[0, column]
    p.at[TOP] = top + 1
    pop_first(p.later, int(p.at[LATER]))
    p.at[LATER] -= 1


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
        p.later[n, MERIT] = depth - price * p.later[n, MOVE_COST]
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
def push_moves(p: Pairs, all_until: int, takes_until: int) -> None:
    """Push the best pair that may come next on the stack, and defer the others."""
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
    start = p.at[TOP]
    i = p.take_links[head, NEXT_CALL]
    while i != head and p.takes[i, CALLED] <= takes_until:
        v = p.takes[i, VALUE]
        if p.best[v, TAKE] == i:
            if p.best[v, STAMP_PUT] == tick:
                _push(p, int(p.best[v, PUT]), i)
            elif p.takes[i, RETURNED] != NEVER:
                put = _spare_of(p, int(v), all_until)
                if put >= 0:
                    _defer(p, put, i, 1)
        i = p.take_links[i, NEXT_CALL]
    _sort(p, start)
    top = p.at[TOP]
    if top > start + 1:  # only the best stays on the stack
        for n in range(start, top - 1):
            put, take = int(p.stack[n, MOVE_PUT]), int(p.stack[n, MOVE_TAKE])
            _defer(p, put, take, top - 1 - n)
        for column in range(4):
            p.stack[start, column] = p.stack[top - 1, column]
        p.at[TOP] = start + 1


@inlined
def _urgency(p: Pairs, n: int) -> int:
    put, take = p.stack[n, MOVE_PUT], p.stack[n, MOVE_TAKE]
    return int(p.puts[put, RETURNED] // 2 + p.takes[take, RETURNED] // 2)


@inlined
def _sort(p: Pairs, start: int) -> None:
    """Sort the moves from `start` on: the pair that returns first is on top."""
    for n in range(start + 1, p.at[TOP]):
        k = n
        while k > start and _urgency(p, k - 1) < _urgency(p, k):
            swap(p.stack, k - 1, k)
            k -= 1


@inlined
def _until(p: Pairs) -> int:
    """Return the earliest return of the enqueues and dequeues that are left."""
    return min(first_return(p.puts, p.put_links), first_return(p.takes, p.take_links))


@inlined
def _go_to(p: Pairs, node: int) -> None:
    """Give places to the pairs of that node, and to no others.

    Backtrack to the last node that its path and the current one share, then go forward.
    """
    count = 0
    # Nodes of one depth are told apart by what `path` holds there.
    while p.node[node, DEPTH] > p.at[PLACED] or p.path[p.node[node, DEPTH]] != node:
        p.way[count] = node
        count += 1
        node = p.node[node, PARENT]
    while p.at[PLACED] > p.node[node, DEPTH]:
        unplace(p)
    while count:
        count -= 1
        _enter(p, p.way[count])


@inlined
def _enter(p: Pairs, node: int) -> None:
    place(p, int(p.node[node, NODE_PUT]), int(p.node[node, NODE_TAKE]))
    p.path[p.at[PLACED]] = node
    place_empties(p, _until(p))


@inlined
def _add_node(p: Pairs, after: int, put: int, take: int, cost: int) -> int:
    y = p.at[NODES]
    p.at[NODES] = y + 1
    p.node[y, PARENT] = after
    p.node[y, NODE_PUT] = put
    p.node[y, NODE_TAKE] = take
    p.node[y, DEPTH] = p.node[after, DEPTH] + 1
    p.node[y, COST] = cost
    return int(y)


@bare
def _visit(p: Pairs) -> bool:
    """Visit the current order; push what may come next. Return True if it is complete.

    It is complete when all dequeues that returned and all empties have places: enqueues that are
    left follow, in the order of calls.
    """
    until = _until(p)
    all_until = place_empties(p, until)
    p.at[REACHED] = max(p.at[REACHED], all_until)
    if p.at[TAKES_LEFT] == 0 and p.at[EMPTIES_PLACED] == p.empties.shape[0] - 1:
        return True
    if is_new(p):
        empties_until = p.empties[p.at[EMPTIES_PLACED], RETURNED]
        takes_until = min(first_return(p.takes, p.take_links), empties_until)
        push_moves(p, all_until, takes_until)
    return False


@inlined
def _lacks(p: Pairs) -> int:
    """Return which array must grow before the next move, LINEARIZED if none."""
    if p.at[TOP] + p.spare.shape[0] > p.stack.shape[0]:
        return NEEDS_STACK
    if p.at[LATER] + 2 * p.spare.shape[0] > p.later.shape[0]:
        return NEEDS_LATER
    if p.at[NODES] == p.node.shape[0]:
        return NEEDS_NODES
    if 2 * (p.at[SEEN] + 1) > p.seen.shape[0]:
        return NEEDS_SEEN
    return LINEARIZED


@compiled
def run(p: Pairs, visits_max: int, stall: int) -> int:
    """Continue the search; return LINEARIZED, REFUTED, SLICE_OVER, STALLED, or one of the NEEDS.

    STALLED means that after `stall` orders none was longer than all before.
    """
    for _ in range(visits_max):
        if p.at[VISITED] - p.at[PROGRESS] > stall:
            return STALLED
        if p.at[VISITED] == 0:
            p.at[VISITED] = p.at[NODES] = 1
            if _visit(p):
                return LINEARIZED
        lack = _lacks(p)
        if lack != LINEARIZED:
            return lack
        if p.at[TOP] == 0:
            if p.at[LATER] == 0:
                return REFUTED
            resume(p)
        top = p.at[TOP] - 1
        p.at[TOP] = top
        after = int(p.stack[top, AFTER])
        put, take = int(p.stack[top, MOVE_PUT]), int(p.stack[top, MOVE_TAKE])
        node = _add_node(p, after, put, take, int(p.stack[top, MOVE_COST]))
        _go_to(p, node)
        p.at[NODE] = node
        p.at[VISITED] += 1
        if p.at[PLACED] > p.at[DEEPEST]:
            p.at[DEEPEST] = p.at[PLACED]
            p.at[PROGRESS] = p.at[VISITED]
        if _visit(p):
            return LINEARIZED
    return SLICE_OVER


# Gives pairs their places, takes them back, and memoises the sets that were visited.


@inlined
def _unlink(links: Int32s, i: int) -> None:
    """Remove an operation from both lists; its own links stay (dancing links)."""
    for column in range(0, 4, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def _relink(links: Int32s, i: int) -> None:
    """Undo `_unlink`; it must be undone in reverse order."""
    for column in range(2, -2, -2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def first_return(operations: Int64s, links: Int32s) -> int:
    """Return the earliest return of what is left of enqueues, or of dequeues."""
    head = operations.shape[0]
    first = links[head, NEXT_RETURN]
    return int(operations[first, RETURNED]) if first != head else NEVER


@inlined
def _hash(p: Pairs, put: int, take: int) -> None:
    """Toggle two operations in the hash of what has a place (Zobrist hashing)."""
    even, odd = np.uint64(2 * put), np.uint64(2 * take + 1)
    p.hashed[0] ^= mix(even + np.uint64(1 << 40)) ^ mix(odd)
    p.hashed[1] ^= mix(even + np.uint64(3 << 40)) ^ mix(odd + np.uint64(5 << 40))


@inlined
def place(p: Pairs, put: int, take: int) -> None:
    """Give a pair the next place."""
    placed = p.at[PLACED]
    p.order[placed, 0] = put
    p.order[placed, 1] = take
    p.empties_before[placed] = p.at[EMPTIES_PLACED]
    p.take_called[placed + 1] = max(p.take_called[placed], p.takes[take, CALLED])
    p.at[PLACED] = placed + 1
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] += 1
    else:
        _unlink(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] += 1
    else:
        _unlink(p.take_links, take)
        p.at[TAKES_LEFT] -= p.takes[take, RETURNED] != NEVER
    _hash(p, put, take)


@inlined
def unplace(p: Pairs) -> None:
    """Undo `place` for the last pair."""
    placed = p.at[PLACED] - 1
    put, take = p.order[placed, 0], p.order[placed, 1]
    p.at[PLACED] = placed
    p.at[EMPTIES_PLACED] = p.empties_before[placed]
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] -= 1
    else:
        _relink(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] -= 1
    else:
        _relink(p.take_links, take)
        p.at[TAKES_LEFT] += p.takes[take, RETURNED] != NEVER
    _hash(p, put, take)


@inlined
def is_new(p: Pairs) -> bool:
    """Memoise the set of operations that have places; False if it was visited before."""
    last = np.uint64(p.seen.shape[0] - 1)
    empties = np.uint64(p.at[EMPTIES_PLACED])
    one = p.hashed[0] ^ mix(empties << np.uint64(42))
    other = p.hashed[1] ^ mix(empties << np.uint64(45))
    x = np.int64(one & last)
    # An empty row is 0, and so is the hash of the empty set, which is visited only once.
    while p.seen[x, 0] or p.seen[x, 1]:
        if p.seen[x, 0] == one and p.seen[x, 1] == other:
            return False
        x = np.int64(np.uint64(x + 1) & last)
    p.seen[x, 0] = one
    p.seen[x, 1] = other
    p.at[SEEN] += 1
    return True


@inlined
def place_empties(p: Pairs, until: int) -> int:
    """Give places to the empties that may come next; return the earliest return of what is left.

    All that is left comes after an empty, so the dequeues before it must have been called by
    `until`, the earliest return of the pairs that are left.
    """
    n = p.at[EMPTIES_PLACED]
    first = min(until, p.empties[n, RETURNED])
    if p.take_called[p.at[PLACED]] > until:
        return int(first)
    while p.empties[n, CALLED] <= first and n < p.empties.shape[0] - 1:
        n += 1
        first = min(until, p.empties[n, RETURNED])
    p.at[EMPTIES_PLACED] = n
    return int(first)
