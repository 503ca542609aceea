"""Gives pairs of a FIFO queue their places, takes them back, and remembers which were looked at."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.queue_arrays import (
    ANY,
    CALLED,
    EMPTIES_PLACED,
    NEVER,
    NEXT_RETURN,
    PLACED,
    RETURNED,
    SEEN,
    SPARE_USED,
    TAKES_LEFT,
    VALUE,
    WILD_USED,
    Int32s,
    Int64s,
    Pairs,
)
from shaketable.checkers.kernels.search_steps import mix
from shaketable.harness.compiled import inlined


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
