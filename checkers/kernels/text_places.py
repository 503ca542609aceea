"""Gives gets, puts and appends of one text their places, and takes them back."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_steps import mix
from shaketable.checkers.kernels.text_arrays import (
    ANYTHING,
    APPENDS,
    AT_DEPTH,
    CALLED,
    CHANGES,
    GETS,
    KIND,
    LINKS,
    NEVER,
    NEXT_CALL,
    NEXT_RETURN,
    NOBODY,
    PATH_NODE,
    PATH_PLACED,
    PATH_STATE,
    PLACED,
    RETURNED,
    RETURNS,
    SEEN,
    SHOWN,
    SPARE_USED,
    STATE,
    Int32s,
    Texts,
)
from shaketable.harness.compiled import bare, inlined


@inlined
def junk_of(p: Texts) -> int:
    """Return the state that stands for every text that no get shows."""
    return int(p.first.size - 1)


@inlined
def first_return(p: Texts) -> int:
    """Return the earliest return of what is left; what may come next was called by then."""
    head = p.operations.shape[0] + RETURNS
    first = p.links[head, NEXT_RETURN]
    return int(p.operations[first, RETURNED]) if first != head else NEVER


@inlined
def _take_out(links: Int32s, i: int) -> None:
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = after
        links[after, column + 1] = before


@inlined
def _put_back(links: Int32s, i: int) -> None:
    for column in range(0, LINKS, 2):
        before, after = links[i, column + 1], links[i, column]
        links[before, column] = i
        links[after, column + 1] = i


@inlined
def _hash(p: Texts, i: int) -> None:
    """Let the hashes tell that this one has changed sides."""
    p.hashed[0] ^= mix(np.uint64(i) + np.uint64(1 << 40))
    p.hashed[1] ^= mix(np.uint64(i) + np.uint64(3 << 40))


@inlined
def _place(p: Texts, i: int) -> None:
    p.trail[p.at[PLACED]] = i
    p.at[PLACED] += 1
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] += 1
    else:
        _take_out(p.links, i)
    _hash(p, i)


@inlined
def _displace(p: Texts) -> None:
    p.at[PLACED] -= 1
    i = int(p.trail[p.at[PLACED]])
    if p.operations[i, RETURNED] == NEVER:
        p.spare[p.operations[i, KIND], SPARE_USED] -= 1
    else:
        _put_back(p.links, i)
    _hash(p, i)


@bare
def _place_gets(p: Texts, until: int) -> None:
    """Let the gets that may come next and show the present text have their places."""
    head = p.operations.shape[0] + GETS
    state = p.at[STATE]
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        after = p.links[i, NEXT_CALL]
        shown = p.operations[i, SHOWN]
        if shown in (state, ANYTHING):
            _place(p, int(i))
        i = after


@bare
def _place_lost(p: Texts, until: int, but: int) -> None:
    """Let what may come next, and no get left can show, have its place."""
    head = p.operations.shape[0] + CHANGES
    i = p.links[head, NEXT_CALL]
    while i != head and p.operations[i, CALLED] <= until:
        after = p.links[i, NEXT_CALL]
        if i != but and p.kind_seen[p.operations[i, KIND]] < until:
            _place(p, int(i))
        i = after


@bare
def settle(p: Texts) -> None:
    """Place all that has its place here for certain, until nothing is left of that."""
    junk = junk_of(p)
    before = -1
    while before != p.at[PLACED]:
        before = p.at[PLACED]
        until = first_return(p)
        if p.state_seen[p.at[STATE]] < until:
            p.at[STATE] = junk
        _place_gets(p, until)
        if p.at[STATE] == junk:
            _place_lost(p, until, NOBODY)


@bare
def enter(p: Texts, node: int, op: int, state: int) -> None:
    """Let an operation that leads to that state have the next place, and what comes with it."""
    depth = p.at[AT_DEPTH] + 1
    p.at[AT_DEPTH] = depth
    p.path[depth, PATH_NODE] = node
    p.path[depth, PATH_PLACED] = p.at[PLACED]
    p.path[depth, PATH_STATE] = p.at[STATE]
    if p.kind_to[p.operations[op, KIND]] != APPENDS:
        before = -1
        while before != p.at[PLACED]:
            before = p.at[PLACED]
            _place_lost(p, first_return(p), op)
    _place(p, op)
    p.at[STATE] = state
    settle(p)


@bare
def leave(p: Texts) -> None:
    """Take back the last operation that was entered, and what came with it."""
    depth = p.at[AT_DEPTH]
    while p.at[PLACED] > p.path[depth, PATH_PLACED]:
        _displace(p)
    p.at[STATE] = p.path[depth, PATH_STATE]
    p.at[AT_DEPTH] = depth - 1


@inlined
def is_new(p: Texts) -> bool:
    """Note down what has a place, and the text; False if it was looked at before."""
    last = np.uint64(p.seen.shape[0] - 1)
    state = np.uint64(p.at[STATE])
    one = p.hashed[0] ^ mix(state + np.uint64(5 << 40))
    other = p.hashed[1] ^ mix(state + np.uint64(7 << 40))
    x = np.int64(one & last)
    while p.seen[x, 0] or p.seen[x, 1]:
        if p.seen[x, 0] == one and p.seen[x, 1] == other:
            return False
        x = np.int64(np.uint64(x + 1) & last)
    p.seen[x, 0] = one
    p.seen[x, 1] = other
    p.at[SEEN] += 1
    return True
