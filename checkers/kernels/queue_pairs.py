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

from shaketable.checkers.kernels.queue_arrays import (
    AFTER,
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
    NODE,
    NODE_PUT,
    NODE_TAKE,
    NODES,
    PARENT,
    PLACED,
    PROGRESS,
    REACHED,
    REFUTED,
    RETURNED,
    SEEN,
    SLICE_OVER,
    STALLED,
    TAKES_LEFT,
    THROUGH,
    TOP,
    Pairs,
)
from shaketable.checkers.kernels.queue_moves import push_moves, resume
from shaketable.checkers.kernels.queue_places import (
    displace,
    first_return,
    is_new,
    place,
    place_empties,
)
from shaketable.harness.compiled import bare, compiled, inlined


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
