"""Which pairs may come next in the order of a FIFO queue, and which of them goes first."""

from __future__ import annotations

from shaketable.checkers.kernels.heap import MERIT, drop_first, rise, swap
from shaketable.checkers.kernels.queue_arrays import (
    AFTER,
    CALLED,
    COST,
    DEPTH,
    LATER,
    LOOKED,
    MOVE_COST,
    MOVE_PUT,
    MOVE_TAKE,
    NEVER,
    NEXT_CALL,
    NODE,
    PRICE,
    PROGRESS,
    PUT,
    RETURNED,
    SPARE_BEGIN,
    SPARE_USED,
    STAMP_PUT,
    STAMP_TAKE,
    TAKE,
    TICK,
    TOP,
    VALUE,
    WILD_USED,
    Int32s,
    Int64s,
    Pairs,
)
from shaketable.harness.compiled import bare, compiled, inlined


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
