"""Puts the values of a FIFO queue in order, pair by pair: who put a value in and who took it.

Of every history that a FIFO queue explains, enqueues and dequeues stand in one order: the n-th
dequeue takes what the n-th enqueue put in, and what nobody took is behind all that was taken. So
the search lets one *pair* after the other take its place, an enqueue and the dequeue of the same
value, and never asks how many of the queue's values waited at what time. A dequeue that found
nothing stands between two pairs.

Let an order be given, and call every operation that has no place yet *left*. The order can be
carried out in time iff none of these was called later than one returned that must come after it:
of an enqueue, all that is left; of a dequeue, the dequeues that are left, and from the next empty
dequeue on all that is left; of an empty dequeue, all that is left. (Give each operation the latest
call of all that must come before it.) So:

- what may come next was called before the earliest of those returns: the search needs no times
  but these calls and returns;
- of several enqueues of one value that may come next the one that returns first can be taken, and
  of dequeues as well: in any order that takes another, the two can change their places;
- an empty dequeue takes its place as soon as it can, since that hinders nothing; how many have one
  belongs to what was looked at;
- of unknown outcome the one that was called first is taken, after all others of the value; a
  pair of two whose outcome is unknown helps nobody.

What may come next is tried in the order of its returns, and a wrong choice shows at once or a few
pairs later. So one order is followed as far as it goes; of all other choices that order goes on
which is the longest, less a price for each time that it did not take the best one. A set of pairs
is looked at once, whatever order led to it: sets are told apart by 128 bits of hashes.

Source: written from the definition; Harvey & Ginsberg 1995, Limited discrepancy search. The
reductions are fuzzed against brute force.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.heap import MERIT, drop_first, rise, swap
from shaketable.checkers.kernels.queue_arrays import (
    AFTER,
    ANY,
    CALLED,
    COST,
    DEEPEST,
    DEPTH,
    EMPTIES_PLACED,
    LATER,
    LOOKED,
    MOVE_COST,
    MOVE_PUT,
    MOVE_TAKE,
    NEEDS_LATER,
    NEEDS_NODES,
    NEEDS_SEEN,
    NEEDS_STACK,
    NEVER,
    NEXT_CALL,
    NEXT_RETURN,
    NODE,
    NODE_PUT,
    NODE_TAKE,
    NODES,
    PARENT,
    PLACED,
    PRICE,
    PROGRESS,
    PUT,
    REACHED,
    REFUTED,
    RETURNED,
    SEEN,
    SLICE_OVER,
    SPARE_BEGIN,
    SPARE_USED,
    STALLED,
    STAMP_PUT,
    STAMP_TAKE,
    TAKE,
    TAKES_LEFT,
    THROUGH,
    TICK,
    TOP,
    VALUE,
    WILD_USED,
    Int32s,
    Int64s,
    Pairs,
)
from shaketable.checkers.kernels.search_moves import mix
from shaketable.harness.compiled import bare, compiled, inlined

# Which pairs may come next in the order of a FIFO queue, and which of them goes first.


@inlined
def _find_best(
    operations: Int64s, links: Int32s, until: int, best: Int32s, stamp: int, tick: int
) -> None:
    """Find of each value who may come next and returns first."""
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
def _put_off(p: Pairs, put: int, take: int, cost: int) -> None:
    """Keep a move for later: one that is not the best, but the `cost`-th behind it."""
    n = p.at[LATER]
    p.at[LATER] = n + 1
    node = p.at[NODE]
    p.later[n, AFTER] = node
    p.later[n, MOVE_PUT] = put
    p.later[n, MOVE_TAKE] = take
    p.later[n, MOVE_COST] = p.node[node, COST] + cost
    p.later[n, MERIT] = p.node[node, DEPTH] - p.at[PRICE] * p.later[n, MOVE_COST]
    rise(p.later, int(n))


@inlined
def resume(p: Pairs) -> None:
    """Move the best move from `later` to the stack."""
    top = p.at[TOP]
    for column in range(4):
        p.stack[top, column] = p.later[0, column]
    p.at[TOP] = top + 1
    drop_first(p.later, int(p.at[LATER]))
    p.at[LATER] -= 1


@compiled
def set_price(p: Pairs, price: int) -> None:
    """Let an order that once took what is not the best go first if it is longer by `price` pairs.

    From now on, and for all that was put off. Its progress counts anew.
    """
    p.at[PRICE] = price
    p.at[PROGRESS] = p.at[LOOKED]
    count = p.at[LATER]
    for n in range(count):
        depth = p.node[p.later[n, AFTER], DEPTH]
        p.later[n, MERIT] = depth - price * p.later[n, MOVE_COST]
        rise(p.later, n)


@inlined
def _spare_of(p: Pairs, value: int, until: int) -> int:
    """Return an enqueue of unknown outcome of that value which may come next, -1 if none."""
    n = p.spare[value, SPARE_BEGIN] + p.spare[value, SPARE_USED]
    if n == p.spare[value + 1, SPARE_BEGIN]:
        return -1
    put = p.spare_put[n]
    return int(put) if p.puts[put, CALLED] <= until else -1


@bare
def push_moves(p: Pairs, all_until: int, takes_until: int) -> None:
    """Push the pairs that may come next; those to try first are on top."""
    p.at[TICK] += 1
    tick = p.at[TICK]
    _find_best(p.puts, p.put_links, all_until, p.best, STAMP_PUT, tick)
    _find_best(p.takes, p.take_links, takes_until, p.best, STAMP_TAKE, tick)
    head = p.takes.shape[0]
    wild = p.wild[p.at[WILD_USED]] if p.at[WILD_USED] < p.wild.size else -1
    if wild >= 0 and p.takes[wild, CALLED] <= takes_until:
        i = p.put_links[p.puts.shape[0], NEXT_CALL]
        while i != p.puts.shape[0] and p.puts[i, CALLED] <= all_until:
            v = p.puts[i, VALUE]
            if p.best[v, PUT] == i and p.best[v, STAMP_TAKE] != tick:
                _put_off(p, i, wild, 1)
            i = p.put_links[i, NEXT_CALL]
    begin = p.at[TOP]
    i = p.take_links[head, NEXT_CALL]
    while i != head and p.takes[i, CALLED] <= takes_until:
        v = p.takes[i, VALUE]
        if p.best[v, TAKE] == i:
            if p.best[v, STAMP_PUT] == tick:
                _push(p, int(p.best[v, PUT]), i)
            elif p.takes[i, RETURNED] != NEVER:
                put = _spare_of(p, int(v), all_until)
                if put >= 0:
                    _put_off(p, put, i, 1)
        i = p.take_links[i, NEXT_CALL]
    _sort(p, begin)
    top = p.at[TOP]
    if top > begin + 1:
        for n in range(begin, top - 1):
            put, take = int(p.stack[n, MOVE_PUT]), int(p.stack[n, MOVE_TAKE])
            _put_off(p, put, take, top - 1 - n)
        for column in range(4):
            p.stack[begin, column] = p.stack[top - 1, column]
        p.at[TOP] = begin + 1


@inlined
def _urgency(p: Pairs, n: int) -> int:
    put, take = p.stack[n, MOVE_PUT], p.stack[n, MOVE_TAKE]
    return int(p.puts[put, RETURNED] // 2 + p.takes[take, RETURNED] // 2)


@inlined
def _sort(p: Pairs, begin: int) -> None:
    """Let what returns first be on top of the moves from `begin` on."""
    for n in range(begin + 1, p.at[TOP]):
        k = n
        while k > begin and _urgency(p, k - 1) < _urgency(p, k):
            swap(p.stack, k - 1, k)
            k -= 1


@inlined
def _until(p: Pairs) -> int:
    """Return the earliest return of the enqueues and dequeues that are left."""
    return min(first_return(p.puts, p.put_links), first_return(p.takes, p.take_links))


@inlined
def _go_to(p: Pairs, node: int) -> None:
    """Let the pairs of that node have places, and no others."""
    count = 0
    # Nodes of one depth are told apart by what `order` holds there.
    while p.node[node, DEPTH] > p.at[PLACED] or p.path[p.node[node, DEPTH]] != node:
        p.way[count] = node
        count += 1
        node = p.node[node, PARENT]
    while p.at[PLACED] > p.node[node, DEPTH]:
        displace(p)
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
def _look(p: Pairs) -> bool:
    """Look at what has a place now; push what may come next. True if nothing is missing."""
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
    """Return what must grow before the next move, THROUGH if nothing."""
    if p.at[TOP] + p.spare.shape[0] > p.stack.shape[0]:
        return NEEDS_STACK
    if p.at[LATER] + 2 * p.spare.shape[0] > p.later.shape[0]:
        return NEEDS_LATER
    if p.at[NODES] == p.node.shape[0]:
        return NEEDS_NODES
    if 2 * (p.at[SEEN] + 1) > p.seen.shape[0]:
        return NEEDS_SEEN
    return THROUGH


@compiled
def run(p: Pairs, looks_max: int, stall: int) -> int:
    """Search on; return THROUGH, REFUTED, SLICE_OVER, STALLED, or what must grow before it goes on.

    STALLED comes after `stall` orders of which none was longer than all before.
    """
    for _ in range(looks_max):
        if p.at[LOOKED] - p.at[PROGRESS] > stall:
            return STALLED
        if p.at[LOOKED] == 0:
            p.at[LOOKED] = p.at[NODES] = 1
            if _look(p):
                return THROUGH
        lack = _lacks(p)
        if lack != THROUGH:
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
        p.at[LOOKED] += 1
        if p.at[PLACED] > p.at[DEEPEST]:
            p.at[DEEPEST] = p.at[PLACED]
            p.at[PROGRESS] = p.at[LOOKED]
        if _look(p):
            return THROUGH
    return SLICE_OVER


# Gives pairs of a FIFO queue their places, takes them back, and remembers which were looked at.


@inlined
def _take_out(links: Int32s, i: int) -> None:
    for column in range(0, 4, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def _put_back(links: Int32s, i: int) -> None:
    for column in range(2, -2, -2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def first_return(operations: Int64s, links: Int32s) -> int:
    """Return the earliest return of what is left of one kind."""
    head = operations.shape[0]
    first = links[head, NEXT_RETURN]
    return int(operations[first, RETURNED]) if first != head else NEVER


@inlined
def _hash(p: Pairs, put: int, take: int) -> None:
    """Let the hashes tell that these two have changed sides."""
    even, odd = np.uint64(2 * put), np.uint64(2 * take + 1)
    p.hashed[0] ^= mix(even + np.uint64(1 << 40)) ^ mix(odd)
    p.hashed[1] ^= mix(even + np.uint64(3 << 40)) ^ mix(odd + np.uint64(5 << 40))


@inlined
def place(p: Pairs, put: int, take: int) -> None:
    """Let a pair have the next place."""
    placed = p.at[PLACED]
    p.order[placed, 0] = put
    p.order[placed, 1] = take
    p.empties_before[placed] = p.at[EMPTIES_PLACED]
    p.take_called[placed + 1] = max(p.take_called[placed], p.takes[take, CALLED])
    p.at[PLACED] = placed + 1
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] += 1
    else:
        _take_out(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] += 1
    else:
        _take_out(p.take_links, take)
        p.at[TAKES_LEFT] -= p.takes[take, RETURNED] != NEVER
    _hash(p, put, take)


@inlined
def displace(p: Pairs) -> None:
    """Take the last pair's place back."""
    placed = p.at[PLACED] - 1
    put, take = p.order[placed, 0], p.order[placed, 1]
    p.at[PLACED] = placed
    p.at[EMPTIES_PLACED] = p.empties_before[placed]
    if p.puts[put, RETURNED] == NEVER:
        p.spare[p.puts[put, VALUE], SPARE_USED] -= 1
    else:
        _put_back(p.put_links, put)
    if p.takes[take, VALUE] == ANY:
        p.at[WILD_USED] -= 1
    else:
        _put_back(p.take_links, take)
        p.at[TAKES_LEFT] += p.takes[take, RETURNED] != NEVER
    _hash(p, put, take)


@inlined
def is_new(p: Pairs) -> bool:
    """Note down what has a place; False if it was looked at before."""
    last = np.uint64(p.seen.shape[0] - 1)
    empties = np.uint64(p.at[EMPTIES_PLACED])
    one = p.hashed[0] ^ mix(empties << np.uint64(42))
    other = p.hashed[1] ^ mix(empties << np.uint64(45))
    x = np.int64(one & last)
    # The hash of nothing is 0, and so is an empty row; nothing is looked at once only.
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
    """Let empty dequeues take their places; return the earliest return of all that is left."""
    n = p.at[EMPTIES_PLACED]
    first = min(until, p.empties[n, RETURNED])
    if p.take_called[p.at[PLACED]] > until:
        return int(first)
    while p.empties[n, CALLED] <= first and n < p.empties.shape[0] - 1:
        n += 1
        first = min(until, p.empties[n, RETURNED])
    p.at[EMPTIES_PLACED] = n
    return int(first)
