"""Steps through states that are vectors of whole numbers, each vector held once (Family.VECTOR).

A vector is a binary tree whose leaves are its entries. A tree is a pair of halves, and equal pairs
have one number, so vectors are equal if and only if their numbers are; no hash stands for them. A
change makes one new pair a level. Entries are 0 by default, and so is every tree of zeros: what
nothing ever touched takes no memory.

Source: Ershov 1958 (hash consing); Driscoll et al. 1989 (path copying).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    CALL,
    DEPTH,
    FILLED,
    IMPOSSIBLE,
    KIND,
    MISSING,
    MISSING_COUNT,
    NEXT,
    OBSERVES,
    PATH_LEVELS,
    RETURN,
    RETURNED,
    SLOT,
    STATES,
    UNKNOWN_KINDS,
    WHAT,
    WHO,
    WORDS,
    A,
    Arena,
    B,
    Cursor,
    History,
    Int32s,
    Int64s,
    Steps,
)
from shaketable.harness.compiled import bare, compiled, inlined

EXPECT, AT_LEAST, SET, ADD, LOWER, WHOLE, DRAIN, NEVER = range(8)
"""The codes of problem.Does."""
HALF = np.int64(32)
LOW = np.int64(0xFFFFFFFF)


@inlined
def mix(x: Any) -> Any:
    """Spread the bits of a number (the finalizer of splitmix64)."""
    y = np.uint64(x)
    y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return y ^ (y >> np.uint64(31))


@bare
def _paired(t: Steps, left: int, right: int) -> int:
    """Return the number of a pair, a new one if it has none; MISSING without room for one."""
    pair = (np.int64(left) << HALF) | np.int64(right)
    last = t.key.size - 1
    x = np.int64(mix(pair) & np.uint64(last))
    while t.key[x] != pair:
        if t.key[x] < 0:
            number = t.facts[STATES]
            if number == t.pair.size or 2 * (t.facts[FILLED] + 1) > t.key.size:
                t.facts[MISSING_COUNT] += 1
                return MISSING
            t.key[x] = pair
            t.after[x] = number
            t.pair[number] = pair
            t.facts[STATES] = number + 1
            t.facts[FILLED] += 1
            return int(number)
        x = (x + 1) & last
    return int(t.after[x])


@bare
def _entry(t: Steps, depth: int, state: int, entry: int) -> int:
    """Return one entry of a vector."""
    node = np.int64(state)
    for level in range(depth - 1, -1, -1):
        pair = t.pair[node]
        node = pair & LOW if (entry >> level) & 1 else pair >> HALF
    return int(node)


@bare
def _with_entry(t: Steps, depth: int, state: int, entry: int, value: int) -> int:
    """Return the number of the vector with another value in one entry; MISSING without room."""
    node = np.int64(state)
    for level in range(depth - 1, -1, -1):
        t.path[level] = node
        pair = t.pair[node]
        node = pair & LOW if (entry >> level) & 1 else pair >> HALF
    if node == value:
        return state
    node = np.int64(value)
    for level in range(depth):
        pair = t.pair[t.path[level]]
        if (entry >> level) & 1:
            node = np.int64(_paired(t, int(pair >> HALF), int(node)))
        else:
            node = np.int64(_paired(t, int(node), int(pair & LOW)))
        if node < 0:
            return MISSING
    return int(node)


@inlined
def _forbids(does: int, held: int, value: int) -> bool:
    """True if a change is not possible where its entry is `held`."""
    return bool(
        does == NEVER or (does == EXPECT and held != value) or (does == AT_LEAST and held < value)
    )


@bare
def vector_step(h: History, t: Steps, state: int, kind: int) -> int:
    """Return the vector after an operation of that kind, IMPOSSIBLE, or MISSING without room."""
    depth = int(h.facts[DEPTH])
    if state < 0:  # a step before was missing
        return MISSING
    for n in range(h.does[kind, A], h.does[kind, B]):
        does, entry, value = int(h.change[n, 0]), int(h.change[n, 1]), int(h.change[n, 2])
        if does == WHOLE:
            if state != value:
                return IMPOSSIBLE
            continue
        held = _entry(t, depth, state, entry)
        if does == DRAIN:
            # `value` is the entry with the sum of all others, `entry` what may be gone of it.
            value = held - _entry(t, depth, state, value)
            state = 0
        elif does == ADD:
            value += held
        elif does == LOWER:
            value = max(0, held - value)
        elif does != SET:
            if _forbids(does, held, value):
                return IMPOSSIBLE
            continue
        if value < 0:
            return IMPOSSIBLE
        state = _with_entry(t, depth, state, entry, value)
        if state < 0:
            return MISSING
    return state


LEAST, MOST, WANTED = range(3)
EVENTS_AHEAD_MAX = 256
"""So many events ahead calls are looked for that may bring about what an operation needs."""


@inlined
def _is_set_by(h: History, kind: int, times: int, entry: int, bounds: Int64s) -> bool:
    """True if an operation can set an entry to what is wanted; else widen what it can become.

    `bounds` are the least and the most that additions can make of it, and the wanted value; the
    operation may happen so many `times`.
    """
    for n in range(h.does[kind, A], h.does[kind, B]):
        does, value = h.change[n, 0], np.int64(h.change[n, 2])
        if does == DRAIN and bounds[WANTED] == 0:
            return True
        if h.change[n, 1] != entry:
            continue
        if does == SET and value == bounds[WANTED]:
            return True
        if does == LOWER:
            value = -value
        if does in (ADD, LOWER):
            bounds[LEAST if value < 0 else MOST] += times * value
    return False


@bare
def _is_out_of_reach(
    h: History, c: Cursor, a: Arena, t: Steps, node: tuple[int, int, int, int], i: int, entry: int,
    wanted: int,
) -> bool:  # fmt: skip
    """True if an entry cannot become what operation i needs, by anything called before i returns.

    It has to be set by an operation that is not done, or be within what these can add to it and
    take from it. The node's masks are in c.child.
    """
    e, state, used, _ = node
    if h.op[i, RETURNED] > e + EVENTS_AHEAD_MAX:
        return False
    bounds = t.path[PATH_LEVELS : PATH_LEVELS + 3]
    held = _entry(t, int(h.facts[DEPTH]), state, entry)
    bounds[LEAST], bounds[MOST], bounds[WANTED] = held, held, wanted
    end = h.op.shape[0]
    other = int(c.open[end, NEXT])
    while other != end:
        slot = h.op[other, SLOT]
        is_done = (c.child[slot >> 6] >> np.uint64(slot & 63)) & np.uint64(1)
        if other != i and not is_done and _is_set_by(h, int(h.op[other, KIND]), 1, entry, bounds):
            return False
        other = int(c.open[other, NEXT])
    for place in range(h.facts[UNKNOWN_KINDS]):
        left = int(c.called_unknown[place] - a.used[used, place])
        if left > 0 and _is_set_by(h, int(h.unknown_kind[place]), left, entry, bounds):
            return False
    for at in range(e + 1, int(h.op[i, RETURNED])):
        who, what = h.event[at, WHO], h.event[at, WHAT]
        if what != RETURN:
            kind = int(h.op[who, KIND] if what == CALL else h.unknown_kind[who])
            if _is_set_by(h, kind, 1, entry, bounds):
                return False
    return bool(wanted < bounds[LEAST] or wanted > bounds[MOST])


@bare
def _differs_for_good(
    h: History, c: Cursor, a: Arena, t: Steps, node: tuple[int, int, int, int], i: int, wanted: int
) -> bool:
    """True if some entry of the state cannot become that of a vector that operation i saw.

    Halves of them that are the same have one number, and are not looked into.
    """
    waiting = t.path[PATH_LEVELS + 3 :]
    waiting[0], waiting[1], waiting[2], waiting[3] = node[1], wanted, h.facts[DEPTH], 0
    filled = 4
    while filled:
        filled -= 4
        x, y = waiting[filled], waiting[filled + 1]
        level, entry = waiting[filled + 2], waiting[filled + 3]
        if x == y:
            continue
        if level == 0:
            if _is_out_of_reach(h, c, a, t, node, i, int(entry), int(y)):
                return True
            continue
        for side in range(2):
            shift = np.int64(0) if side else HALF
            waiting[filled] = (t.pair[x] >> shift) & LOW
            waiting[filled + 1] = (t.pair[y] >> shift) & LOW
            waiting[filled + 2], waiting[filled + 3] = level - 1, 2 * entry + side
            filled += 4
    return False


ALL = -1
"""In place of an entry."""


@bare
def _lacks(
    h: History, c: Cursor, a: Arena, t: Steps, node: tuple[int, int, int, int], i: int, about: int
) -> bool:
    """True if operation i needs of the entry `about`, or of any, what it cannot become any more."""
    kind, depth, state = int(h.op[i, KIND]), int(h.facts[DEPTH]), node[1]
    for n in range(h.does[kind, A], h.does[kind, B]):
        does, entry, value = h.change[n, 0], int(h.change[n, 1]), int(h.change[n, 2])
        if does == NEVER:
            return True
        if does == WHOLE:
            if about == ALL:
                if _differs_for_good(h, c, a, t, node, i, value):
                    return True
                continue
            entry, value = about, _entry(t, depth, value, about)
        elif does == DRAIN:
            if not h.does[kind, OBSERVES]:  # what may be gone can grow as well
                continue
            entry, value = value, _entry(t, depth, state, entry)
        elif does == ADD and value < 0:
            value = -value
        elif does not in (EXPECT, AT_LEAST):
            continue
        if about != ALL and about != entry:  # noqa: PLR1714 - numba tests no tuple of two types
            continue
        held = _entry(t, depth, state, entry)
        is_fit = held == value or (
            held < value if does == DRAIN else held > value and does in (ADD, AT_LEAST)
        )
        if not is_fit and _is_out_of_reach(h, c, a, t, node, i, entry, value):
            return True
    return False


@bare
def is_hindered(
    h: History, c: Cursor, a: Arena, t: Steps, node: tuple[int, int, int, int], moved: int
) -> bool:
    """True if some open operation needs what nothing can bring about any more (Family.VECTOR).

    Such a node has no successful continuation, so pruning it is sound. Each entry is looked at by
    itself: of the operation that returns next all that it needs, of others those that were just
    changed by an operation of kind `moved`, -1 for none. For all others nothing has changed.
    """
    words = int(h.facts[WORDS])
    forcing = int(h.event[node[0], WHO])
    end = h.op.shape[0]
    i = int(c.open[end, NEXT])
    while i != end:
        word, bit = h.op[i, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
        if not (c.child[word] | c.child[words + word]) & bit:  # neither done nor optional
            if i == forcing:
                if _lacks(h, c, a, t, node, i, ALL):
                    return True
            elif moved >= 0:
                for n in range(h.does[moved, A], h.does[moved, B]):
                    is_change = h.change[n, 0] in (SET, ADD, LOWER)
                    if is_change and _lacks(h, c, a, t, node, i, int(h.change[n, 1])):
                        return True
        i = int(c.open[i, NEXT])
    return False


@bare
def is_nearer(h: History, t: Steps, before: int, after: int, kind: int, forcing: int) -> bool:
    """True if an operation of that kind brings some entry nearer to what `forcing` needs of it.

    No answer depends on it: such moves are tried first.
    """
    depth, needs = int(h.facts[DEPTH]), int(h.op[forcing, KIND])
    for n in range(h.does[kind, A], h.does[kind, B]):
        entry = int(h.change[n, 1])
        if h.change[n, 0] not in (SET, ADD, LOWER):
            continue
        was, is_now = _entry(t, depth, before, entry), _entry(t, depth, after, entry)
        for m in range(h.does[needs, A], h.does[needs, B]):
            does, value = h.change[m, 0], int(h.change[m, 2])
            if does == WHOLE:
                wanted = _entry(t, depth, value, entry)
            elif does == DRAIN and value == entry:
                wanted = 0
            elif h.change[m, 1] != entry:
                continue
            elif does == EXPECT:
                wanted = value
            elif does == AT_LEAST or (does == ADD and value < 0):
                wanted = max(was, abs(value))
            else:
                continue
            if abs(is_now - wanted) < abs(was - wanted):
                return True
    return False


@compiled
def number_vectors(t: Steps, depth: int, start: Int64s, rows: Int32s, numbers: Int64s) -> bool:
    """Number vectors; False without room: make some, and call it again.

    Args:
        t: the known vectors.
        depth: how many levels their trees have.
        start: where the rows of each vector start, and the end.
        rows: (entry, value) of what is not 0, by ascending entry.
        numbers: written where it is negative.
    """
    most = 0
    for n in range(numbers.size):
        most = max(most, start[n + 1] - start[n])
    at, node = np.empty(most, np.int64), np.empty(most, np.int64)
    for n in range(numbers.size):
        if numbers[n] >= 0:
            continue
        count = start[n + 1] - start[n]
        for k in range(count):
            at[k], node[k] = rows[start[n] + k, 0], rows[start[n] + k, 1]
        for _ in range(depth):
            filled, k = 0, 0
            while k < count:
                place = at[k] >> 1
                left = node[k] if at[k] & 1 == 0 else 0
                right = node[k] if at[k] & 1 else 0
                k += 1
                if k < count and at[k] >> 1 == place:
                    right = node[k]
                    k += 1
                number = _paired(t, int(left), int(right))
                if number < 0:
                    return False
                at[filled], node[filled] = place, number
                filled += 1
            count = filled
        numbers[n] = node[0] if count else 0
    return True


@compiled
def follow_changes(
    change: Int32s, first: Int64s, seen_start: Int64s, seen: Int32s, kinds: Int64s, held: Int64s
) -> int:
    """Make the changes of operations in an array, one after the other, in place.

    Shares nothing with the trees: a vector is an array here.

    Args:
        change: the changes of all kinds; of WHOLE the value is a place in `seen_start`.
        first: where those of each kind start, and the end.
        seen_start: where the rows of each vector that was seen start, and the end.
        seen: (entry, value) of what is not 0 in them.
        kinds: of the operations, in their order.
        held: the vector; it is changed.

    Returns:
        the place of the first operation that cannot happen, -1 if all can.
    """
    filled = 0
    for entry in range(held.size):
        filled += held[entry] != 0
    for at in range(kinds.size):
        for n in range(first[kinds[at]], first[kinds[at] + 1]):
            does, entry, value = change[n, 0], change[n, 1], np.int64(change[n, 2])
            if does == WHOLE:
                is_same = filled == seen_start[value + 1] - seen_start[value]
                for k in range(seen_start[value], seen_start[value + 1]):
                    is_same = is_same and held[seen[k, 0]] == seen[k, 1]
                if not is_same:
                    return at
                continue
            before = held[entry]
            if (
                does == NEVER
                or (does == EXPECT and before != value)
                or (does == AT_LEAST and before < value)
                or (does == DRAIN and held[value] > before)
                or (does == ADD and before + value < 0)
            ):
                return at
            if does == DRAIN:
                left = before - held[value]
                held[:] = 0
                held[entry], filled = left, int(left != 0)
            elif does in (SET, ADD, LOWER):
                if does == ADD:
                    value += before
                elif does == LOWER:
                    value = max(np.int64(0), before - value)
                filled += int(value != 0) - int(before != 0)
                held[entry] = value
    return -1
