"""Reconstructs a witness: the order of operations that a path of nodes represents."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    AT,
    CALL,
    DROP,
    EVENT,
    FIRST_UNKNOWN,
    FLAGS,
    INDETERMINATE,
    IS_WINDOW,
    KIND,
    MIDWAY,
    MOVE,
    NEXT,
    OBSERVES,
    OPTIONAL,
    OVERWRITES,
    PARENT,
    START,
    STATE,
    WHAT,
    WHO,
    Arena,
    Cursor,
    Flags,
    History,
    Int32s,
    Int64s,
    Steps,
)
from shaketable.checkers.kernels.search_history import move_to, step_forward
from shaketable.checkers.kernels.search_moves import step
from shaketable.checkers.kernels.search_vectors import mix
from shaketable.harness.compiled import bare, compiled, inlined

NOT_ABSORBED = -1
NEVER_NAMED = -2
"""Optional from the start: it may never have happened, or before the window starts."""
ABSORBED = -1
"""In place of the state after an absorbed operation."""


@inlined
def _walk(
    h: History, c: Cursor, t: Steps, until: int, state: int, count: int, order: Int32s, done: Flags
) -> int:
    """Pass the events before `until`; name observers that take effect at their calls."""
    while c.place[AT] < until:
        at = c.place[AT]
        i = int(h.event[at, WHO])
        watches = (
            h.event[at, WHAT] == CALL
            and h.does[h.op[i, KIND], OBSERVES]
            and h.op[i, OPTIONAL] != INDETERMINATE
        )
        if watches and step(h, t, state, int(h.op[i, KIND])) == state:
            order[0, count] = i
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
    """Note that each open overwriter that is not done may be right before place `at`."""
    end = h.op.shape[0]
    i = int(c.open[end, NEXT])
    while i != end:
        if not done[i] and h.does[h.op[i, KIND], OVERWRITES] and absorbed[i] == NOT_ABSORBED:
            absorbed[i] = at
        i = int(c.open[i, NEXT])


@inlined
def _observe(
    h: History, c: Cursor, t: Steps, state: int, count: int, order: Int32s, done: Flags
) -> int:
    """Name the open observers that a new state satisfies."""
    end = h.op.shape[0]
    i = int(c.open[end, NEXT])
    while i != end:
        watches = not done[i] and h.does[h.op[i, KIND], OBSERVES]
        if watches and step(h, t, state, int(h.op[i, KIND])) == state:
            order[0, count] = i
            done[i] = 1
            count += 1
        i = int(c.open[i, NEXT])
    return count


@inlined
def _init_path(h: History, c: Cursor, a: Arena, done: Flags, absorbed: Int32s) -> None:
    """Mark what counts as done at a path's start, and what is never named."""
    operations = h.op.shape[0]
    for i in range(operations):
        absorbed[i] = NEVER_NAMED if h.op[i, OPTIONAL] == INDETERMINATE else NOT_ABSORBED
    move_to(h, c, int(a.at[START]))
    if a.at[IS_WINDOW]:
        i = c.open[operations, NEXT]
        while i != operations:
            absorbed[i] = NEVER_NAMED
            done[i] = h.does[h.op[i, KIND], OBSERVES]
            i = int(c.open[i, NEXT])


@compiled
def trace(h: History, c: Cursor, a: Arena, t: Steps, last: int, order: Int32s) -> tuple[int, int]:
    """Write the order that leads to node `last`; return the first state and the order's length.

    Nodes hold moves only. Observers that took effect greedily, and overwriters that were
    absorbed, are found by walking the path once more.

    Args:
        h: the problem.
        c: at any place.
        a: holds the path.
        t: the known steps of Family.TABLE.
        last: the node at the path's end.
        order: written, shape (2, all operations): operations, or FIRST_UNKNOWN - k for an
            indeterminate one; and the state after each, ABSORBED for absorbed ones, which
            `name_operations` sets.
    """
    path = _path_to(a, last)
    done = np.zeros(h.op.shape[0], np.uint8)
    absorbed = np.empty(h.op.shape[0], np.int32)
    raw = np.empty(order.shape, np.int32)
    count = _follow(h, c, a, t, path, raw, done, absorbed)
    return int(a.node[path[0], STATE]), _put_absorbed(raw, count, done, absorbed, order)


@bare
def _follow(
    h: History, c: Cursor, a: Arena, t: Steps, path: Int32s, raw: Int32s, done: Flags,
    absorbed: Int32s,
) -> int:  # fmt: skip
    """Write the operations along a path, and the states after them; return how many."""
    _init_path(h, c, a, done, absorbed)
    state = int(a.node[path[0], STATE])
    count = _walk(h, c, t, int(a.node[path[0], EVENT]), state, 0, raw, done)
    for at in range(count):
        raw[1, at] = state
    for n in range(1, path.size):
        y = path[n]
        before, state = int(a.node[path[n - 1], STATE]), int(a.node[y, STATE])
        from_count = count
        if a.node[y, MOVE] != DROP:
            move = a.node[y, MOVE]
            raw[0, count] = move
            if move >= 0:
                done[move] = 1
            k = h.op[move, KIND] if move >= 0 else h.unknown_kind[FIRST_UNKNOWN - move]
            if h.does[k, OVERWRITES]:
                _absorb(h, c, count, done, absorbed)
            count += 1
            if state != before:
                count = _observe(h, c, t, state, count, raw, done)
        if not a.node[y, FLAGS] & MIDWAY:
            count = _walk(h, c, t, int(a.node[y, EVENT]), state, count, raw, done)
        for at in range(from_count, count):
            raw[1, at] = state
    return count


@compiled
def _put_absorbed(raw: Int32s, count: int, done: Flags, absorbed: Int32s, order: Int32s) -> int:
    """Insert each absorbed operation that did not take effect later before what absorbed it."""
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
            order[0, total] = i
            order[1, total] = ABSORBED
            total += 1
            i = following[i]
        order[0, total], order[1, total] = raw[0, at], raw[1, at]
        total += 1
    return total


@compiled
def name_operations(
    h: History, t: Steps, first: int, order: Int32s, operation: Int64s, unknown: Int64s,
    place: Int64s,
) -> bool:  # fmt: skip
    """Name the operations of an order by their places in the problem; False if steps are missing.

    Args:
        h: the problem.
        t: the known steps of Family.TABLE.
        first: the first state.
        order: what `trace` wrote. The states of absorbed operations are set.
        operation: each operation's place.
        unknown: the places of the indeterminate ones. Of a kind the first called is used first;
            where a window uses more than there are, the last one is named.
        place: written.
    """
    used = np.zeros(h.unknown_kind.size, np.int64)
    for at in range(place.size):
        i = order[0, at]
        if i >= 0:
            place[at] = operation[i]
        else:
            k = FIRST_UNKNOWN - i
            nth = min(h.unknown_start[k] + used[k], h.unknown_start[k + 1] - 1)
            place[at] = unknown[h.unknown_member[nth]]
            used[k] += 1
        if order[1, at] == ABSORBED:
            # An overwriter leads to the same state from all.
            after = step(h, t, first, int(h.op[i, KIND]))
            if after < 0:
                return False
            order[1, at] = after
    return True


@compiled
def distinct_steps(
    kind: Int32s, place: Int64s, state: Int32s, first: int, kinds: int, found: Int64s
) -> int:
    """List the distinct steps of a run, in the order of their first occurrence.

    Args:
        kind: each operation's kind.
        place: the operations of the run.
        state: the state after each.
        first: the state before all of them.
        kinds: how many kinds there are.
        found: written, shape (operations of the run, 3): state, kind, state after.

    Returns:
        how many; -1 if in the run one step leads to different states.
    """
    size = 64
    while size < 2 * place.size:
        size *= 2
    key = np.full(size, -1, np.int64)
    after = np.empty(size, np.int32)
    count = 0
    before = np.int64(first)
    for at in range(place.size):
        k = kind[place[at]]
        wanted = before * kinds + k
        x = np.int64(mix(wanted) & np.uint64(size - 1))
        while key[x] != wanted and key[x] >= 0:
            x = (x + 1) & (size - 1)
        if key[x] < 0:
            key[x] = wanted
            after[x] = state[at]
            found[count, 0], found[count, 1], found[count, 2] = before, k, state[at]
            count += 1
        elif after[x] != state[at]:
            return -1
        before = np.int64(state[at])
    return count
