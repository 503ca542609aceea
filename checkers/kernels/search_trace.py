"""Turns a path of nodes into the order of operations that it stands for."""

from __future__ import annotations

import numpy as np

from checkers.kernels.compiled import compiled, inlined
from checkers.kernels.search_arrays import (
    AT,
    CALL,
    DROP,
    EVENT,
    FIRST_UNKNOWN,
    FLAGS,
    IS_WINDOW,
    MIDWAY,
    MOVE,
    PARENT,
    START,
    STATE,
    UNSEEN,
    Arena,
    Cursor,
    Flags,
    History,
    Int32s,
    Steps,
)
from checkers.kernels.search_cursor import move_to, step_forward
from checkers.kernels.search_steps import step

NOT_ABSORBED = -1
NEVER_NAMED = -2
"""Optional from the start: it may never have happened, or before a window's begin."""


@inlined
def _walk(
    h: History, c: Cursor, t: Steps, until: int, state: int, count: int, order: Int32s, done: Flags
) -> int:
    """Pass the events before `until`; observers take effect at their calls where they can."""
    while c.place[AT] < until:
        at = c.place[AT]
        i = h.event[at]
        watches = h.what[at] == CALL and h.observes[h.kind[i]] and h.loose[i] != UNSEEN
        if watches and step(h, t, state, h.kind[i]) == state:
            order[count] = i
            done[i] = 1
            count += 1
        step_forward(h, c)
    return count


@compiled
def _path_to(a: Arena, last: int) -> Int32s:
    length = 0
    y = last
    while y >= 0:
        length += 1
        y = a.node[y, PARENT]
    path = np.empty(length, np.int32)
    y = last
    while y >= 0:
        length -= 1
        path[length] = y
        y = a.node[y, PARENT]
    return path


@inlined
def _absorb(h: History, c: Cursor, at: int, done: Flags, absorbed: Int32s) -> None:
    """Note that each open unused overwriter may stand right before place `at` of the order."""
    end = h.kind.size
    i = c.next_open[end]
    while i != end:
        if not done[i] and h.overwrites[h.kind[i]] and absorbed[i] == NOT_ABSORBED:
            absorbed[i] = at
        i = c.next_open[i]


@inlined
def _observe(
    h: History, c: Cursor, t: Steps, state: int, count: int, order: Int32s, done: Flags
) -> int:
    """Name the open observers that a new state satisfies."""
    end = h.kind.size
    i = c.next_open[end]
    while i != end:
        watches = not done[i] and h.observes[h.kind[i]]
        if watches and step(h, t, state, h.kind[i]) == state:
            order[count] = i
            done[i] = 1
            count += 1
        i = c.next_open[i]
    return count


@compiled
def trace(h: History, c: Cursor, a: Arena, t: Steps, last: int, order: Int32s) -> int:
    """Write the order that leads to node `last`; return its length.

    Args:
        h: the problem.
        c: stands anywhere.
        a: holds the path.
        t: the steps of Family.TABLE that are known.
        last: the node at the path's end.
        order: written: operations, or FIRST_UNKNOWN - k for one of unknown outcome; room for
            all of them.
    """
    path = _path_to(a, last)
    operations = h.kind.size
    done = np.zeros(operations, np.uint8)
    absorbed = np.full(operations, NOT_ABSORBED, np.int32)
    absorbed[h.loose == UNSEEN] = NEVER_NAMED
    raw = np.empty(order.size, np.int32)
    move_to(h, c, a.at[START])
    if a.at[IS_WINDOW]:
        i = c.next_open[operations]
        while i != operations:
            absorbed[i] = NEVER_NAMED
            done[i] = h.observes[h.kind[i]]
            i = c.next_open[i]
    count = _walk(h, c, t, a.node[path[0], EVENT], a.node[path[0], STATE], 0, raw, done)
    for n in range(1, path.size):
        y, parent = path[n], path[n - 1]
        before, state = a.node[parent, STATE], a.node[y, STATE]
        if a.node[y, MOVE] != DROP:
            move = a.node[y, MOVE]
            raw[count] = move
            if move >= 0:
                done[move] = 1
            k = h.kind[move] if move >= 0 else h.unknown_kind[FIRST_UNKNOWN - move]
            if h.overwrites[k]:
                _absorb(h, c, count, done, absorbed)
            count += 1
            if state != before:
                count = _observe(h, c, t, state, count, raw, done)
        if not a.node[y, FLAGS] & MIDWAY:
            count = _walk(h, c, t, a.node[y, EVENT], state, count, raw, done)
    return _put_absorbed(raw, count, done, absorbed, order)


@compiled
def _put_absorbed(raw: Int32s, count: int, done: Flags, absorbed: Int32s, order: Int32s) -> int:
    """Put each absorbed operation that never took effect later right before what absorbed it."""
    first = np.full(count + 1, -1, np.int32)
    following = np.empty(done.size, np.int32)
    for i in range(done.size):
        if not done[i] and absorbed[i] >= 0:
            following[i] = first[absorbed[i]]
            first[absorbed[i]] = i
    total = 0
    for at in range(count):
        i = first[at]
        while i >= 0:
            order[total] = i
            total += 1
            i = following[i]
        order[total] = raw[at]
        total += 1
    return total
