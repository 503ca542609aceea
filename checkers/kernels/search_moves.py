"""Which moves a node has, which of them are worth trying, and in which order."""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    AVAILABLE,
    CALLED,
    CODE,
    CONSUMED,
    CONSUMED_BY,
    DROP,
    FAMILY,
    FILLED,
    FIRST_UNKNOWN,
    GAINLESS,
    IMPOSSIBLE,
    IS_WINDOW,
    KIND,
    KINDS,
    LAST_NEED,
    LAST_REFUSAL,
    MIDWAY,
    MISSING,
    MISSING_COUNT,
    MISSING_MAX,
    NEED_START,
    NEXT,
    OBSERVES,
    OVERWRITERS,
    OVERWRITES,
    PRODUCED,
    PRODUCED_BY,
    PRODUCER,
    RETURNED,
    ROOM_START,
    SLOT,
    SPARED,
    STAMP,
    STOP,
    TICK,
    TOP,
    UNKNOWN_KINDS,
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
    Words,
)
from shaketable.checkers.kernels.search_history import CAS, READ, VALUE, VECTOR, WRITE, consumes
from shaketable.checkers.kernels.search_vectors import is_nearer, mix, vector_step
from shaketable.harness.compiled import bare, compiled, inlined

# Steps of the model: computed for a single value and for vectors, looked up for other states.


@bare
def _known_step(h: History, t: Steps, state: int, kind: int) -> int:
    """Look a step up; note it as missing if it is not known (linear probing)."""
    key = state * h.facts[KINDS] + kind
    last = t.key.size - 1
    x = np.int64(mix(key) & np.uint64(last))
    while t.key[x] != key:
        if t.key[x] < 0:
            n = t.facts[MISSING_COUNT]
            if n < MISSING_MAX:
                t.missing[n, 0] = state
                t.missing[n, 1] = kind
                t.facts[MISSING_COUNT] = n + 1
            return MISSING
        x = (x + 1) & last
    return int(t.after[x])


@inlined
def step(h: History, t: Steps, state: int, kind: int) -> int:
    """Return the state after an operation of that kind, IMPOSSIBLE, or MISSING.

    A missing step is noted in `t`; the caller drops its work and returns to the driver, which
    asks the model.
    """
    if h.facts[FAMILY] == VECTOR:
        return vector_step(h, t, state, kind)
    if h.facts[FAMILY] != VALUE:
        return _known_step(h, t, state, kind)
    code = h.does[kind, CODE]
    if code == WRITE:
        return int(h.does[kind, B])
    matches = h.does[kind, A] == state
    if code == CAS:
        return int(h.does[kind, B]) if matches else IMPOSSIBLE
    return state if matches == (code == READ) else IMPOSSIBLE


@compiled
def add_steps(key: Int64s, after: Int32s, count: Int64s, keys: Int64s, states: Int32s) -> None:
    """Add steps to the table, which must have room for them; known ones stay as they are."""
    last = key.size - 1
    for n in range(keys.size):
        x = np.int64(mix(keys[n]) & np.uint64(last))
        while key[x] >= 0 and key[x] != keys[n]:
            x = (x + 1) & last
        if key[x] < 0:
            key[x] = keys[n]
            after[x] = states[n]
            count[FILLED] += 1


UNLIMITED = 2**40
"""How often a window may use an indeterminate operation of a kind: without limit."""
RANKS = 7
"""Moves are tried by rank: 0 drops an optional operation; 1 passes the return by an operation of
known outcome, 2 does not pass it yet; 3 and 4 are the same by indeterminate operations, which are
scarce; 5 and 6 are as 2 and 4, but lead away from what the return needs."""


@inlined
def has(mask: Words, slot: int) -> bool:
    """True if the slot's bit is set."""
    return bool((mask[slot >> 6] >> np.uint64(slot & 63)) & np.uint64(1))


@inlined
def has_in(mask: Words, start: int, slot: int) -> bool:
    """True if the slot's bit is set in the mask that starts at word `start`."""
    return bool((mask[start + (slot >> 6)] >> np.uint64(slot & 63)) & np.uint64(1))


@inlined
def _is_needed(h: History, state: int, e: int) -> bool:
    """True if an operation that returns at event e or later may need this very state.

    If none does, a state is as good as any other that none needs, so no choice is worth making
    for it.
    """
    if h.facts[FAMILY] != VALUE:
        return True
    return bool(h.value[state, LAST_NEED] >= e or h.facts[LAST_REFUSAL] >= e)


@inlined
def is_useful(h: History, i: int, state: int, e: int) -> bool:
    """True if it may help that the optional operation i, which returns at e, takes effect."""
    if h.facts[FAMILY] != VALUE:
        return True
    after = int(h.does[h.op[i, KIND], B])
    if after == state and not h.does[h.op[i, KIND], OVERWRITES]:
        return False
    return bool(h.value[after, LAST_NEED] > e or h.facts[LAST_REFUSAL] > e)


@inlined
def _unknown_left(h: History, c: Cursor, a: Arena, used: int, k: int) -> bool:
    """True if an indeterminate operation of the kind at place k was called and is not used yet.

    A window does not count them, since it is not known how many were used before it: to take
    them as unlimited is the favourable assumption.
    """
    return bool(c.called_unknown[k] > (0 if a.at[IS_WINDOW] else a.used[used, k]))


@inlined
def _reset_count(c: Cursor, value: int) -> None:
    if c.reach[value, STAMP] != c.place[TICK]:
        c.reach[value, STAMP] = c.place[TICK]
        c.reach[value, AVAILABLE] = 0
        c.reach[value, SPARED] = 0


@inlined
def _count_producers(h: History, c: Cursor, a: Arena, state: int, used: int) -> None:
    """Count how often each value can be produced before anything else is called.

    By open operations that are not done, and by unused indeterminate ones; the state itself
    counts once.
    """
    end = h.op.shape[0]
    c.place[TICK] += 1
    _reset_count(c, state)
    c.reach[state, AVAILABLE] = 1
    i = int(c.open[end, NEXT])
    while i != end:
        k = int(h.op[i, KIND])
        if not h.does[k, OBSERVES] and not has(c.child, int(h.op[i, SLOT])):
            _reset_count(c, int(h.does[k, B]))
            c.reach[h.does[k, B], AVAILABLE] += 1
        i = int(c.open[i, NEXT])
    for k in range(h.facts[UNKNOWN_KINDS]):
        if _unknown_left(h, c, a, used, k):
            left = UNLIMITED if a.at[IS_WINDOW] else int(c.called_unknown[k] - a.used[used, k])
            value = int(h.does[h.unknown_kind[k], B])
            _reset_count(c, value)
            c.reach[value, AVAILABLE] += left


@inlined
def _is_reachable(c: Cursor, value: int) -> bool:
    return bool(c.reach[value, STAMP] == c.place[TICK] and c.reach[value, AVAILABLE] > 0)


@inlined
def _comes_too_late(h: History, a: Arena, i: int, e: int) -> bool:
    """True if no call between event e and i's return produces the value that i needs."""
    return bool(h.op[i, PRODUCER] <= e and h.op[i, RETURNED] < a.at[STOP])


@inlined
def _lacks_producers(h: History, c: Cursor, i: int) -> bool:
    """True if swap i, or one that returns before it, cannot find its value often enough.

    Counting argument: each swap away from a value consumes one production of it, so up to i's
    return the value must be produced as often as it is swapped away.
    """
    v = int(h.does[h.op[i, KIND], A])
    left = c.reach[v, AVAILABLE] + h.op[i, PRODUCED_BY] - c.passed[v, PRODUCED]
    return bool(h.op[i, CONSUMED_BY] - c.passed[v, CONSUMED] - c.reach[v, SPARED] > left)


@inlined
def _will_lack_producers(h: History, c: Cursor, a: Arena, v: int) -> bool:
    """True if by some later time value v is swapped away more often than it can be produced.

    The same counting argument, for all later times at once: `room` less the surplus so far is
    the least surplus of future calls that produce v over future returns that consume it.
    """
    if a.at[IS_WINDOW]:  # it may end before that time
        return False
    produced, consumed = c.passed[v, PRODUCED], c.passed[v, CONSUMED]
    left = consumed - produced
    if c.reach[v, STAMP] == c.place[TICK]:
        left += c.reach[v, AVAILABLE] + c.reach[v, SPARED]
    return bool(left + h.room[h.value[v, ROOM_START] + produced + consumed] < 0)


@bare
def is_doomed(h: History, c: Cursor, a: Arena, e: int, state: int, used: int, was: int) -> bool:
    """True if some operation needs a value that nothing can produce any more (Family.VALUE).

    Such a node has no successful continuation, so pruning it is sound. For each open operation
    the value that it needs must be the state, or can still be produced before its return, as
    often as swaps consume it by then. Of the operations that are called later only those are
    checked that need `was`: the value that the last move overwrote, or that the dropped
    operation would have produced. For other values nothing has changed.
    """
    words = h.facts[WORDS]
    end = h.op.shape[0]
    _count_producers(h, c, a, state, used)
    i = int(c.open[end, NEXT])
    while i != end:
        code, needs, slot = (
            h.does[h.op[i, KIND], CODE],
            int(h.does[h.op[i, KIND], A]),
            int(h.op[i, SLOT]),
        )
        if code in (READ, CAS):
            if has(c.child, slot) or has_in(c.child, words, slot):
                # Done or optional: it needs nothing, but CONSUMED_BY and `passed` count it as a
                # consumer until its return.
                if consumes(h, i):
                    _reset_count(c, needs)
                    c.reach[needs, SPARED] += 1
            elif _comes_too_late(h, a, i, e) and not _is_reachable(c, needs):
                return True
            elif consumes(h, i) and h.op[i, RETURNED] < a.at[STOP]:
                _reset_count(c, needs)
                if _lacks_producers(h, c, i):
                    return True
        i = int(c.open[i, NEXT])
    if _will_lack_producers(h, c, a, state) or _will_lack_producers(h, c, a, was):
        return True
    if was == state or _is_reachable(c, was):
        return False
    # The first operation called after e that needs `was`, by bisection (they are in call order):
    # if `was` is not produced before its return, it can never succeed.
    low, high = h.value[was, NEED_START], h.value[was + 1, NEED_START]
    while low < high:
        middle = (low + high) >> 1
        if h.op[h.need[middle], CALLED] > e:
            high = middle
        else:
            low = middle + 1
    return low < h.value[was + 1, NEED_START] and _comes_too_late(h, a, int(h.need[low]), e)


@inlined
def _passes(h: History, c: Cursor, t: Steps, e: int, before: int, state: int) -> bool:
    """True if the operation that returns at e is an observer that the new state satisfies."""
    k = int(h.op[h.event[e, WHO], KIND])
    return bool(state != before and h.does[k, OBSERVES] and step(h, t, state, k) == state)


@inlined
def _leads_on(h: History, t: Steps, e: int, before: int, after: int, k: int) -> bool:
    """True if a move may help the operation that returns at e; where that is not known, too."""
    return bool(
        h.facts[FAMILY] != VECTOR or is_nearer(h, t, before, after, k, int(h.event[e, WHO]))
    )


@inlined
def _has_absorbable(h: History, c: Cursor, i: int) -> bool:
    """True if an open overwriter other than i is still required."""
    words = h.facts[WORDS]
    for w in range(words):
        rest = c.open_mask[OVERWRITERS, w] & ~c.child[w] & ~c.child[words + w]
        if i >= 0 and h.op[i, SLOT] >> 6 == w:
            rest &= ~(np.uint64(1) << np.uint64(h.op[i, SLOT] & 63))
        if rest:
            return True
    return False


@inlined
def _known_moves(
    h: History, c: Cursor, a: Arena, t: Steps, e: int, node: tuple[int, int, int, int]
) -> int:
    """List the moves by known operations that are open; return how many."""
    _, state, _, flags = node
    words = h.facts[WORDS]
    tick = c.place[TICK]
    end = h.op.shape[0]
    count = 0
    i = int(c.open[end, NEXT])
    while i != end:
        k, slot = int(h.op[i, KIND]), int(h.op[i, SLOT])
        if not h.does[k, OBSERVES] and not has(c.child, slot):
            optional = 1 if has_in(c.child, words, slot) else 0
            # Of two of one kind take the one that returns first (exchange argument: they have
            # the same effect, and the one that remains has the later deadline). The list is in
            # the order of returns. It holds among required ones, among optional ones, and for a
            # required one that returns before an optional one. For an optional one that returns
            # before a required one it holds if they are overwriters: the effect makes the
            # required one optional too.
            is_listed = c.kind_stamp[0, k] == tick or (
                c.kind_stamp[1, k] == tick and (optional or h.does[k, OVERWRITES])
            )
            # No gain: the move that led here could be skipped, and after an overwriter nothing
            # shows that it was not. So this node is dominated by the one without that move.
            if not is_listed and not (h.does[k, OVERWRITES] and flags & GAINLESS):
                after = step(h, t, state, k)
                if after >= 0 and (not optional or _is_worthwhile(h, c, i, e, state, after)):
                    c.kind_stamp[optional, k] = tick
                    passing = h.event[e, WHO] == i or _passes(h, c, t, e, state, after)
                    a.move[count, 0] = i
                    a.move[count, 1] = (
                        1 if passing else 2 if _leads_on(h, t, e, state, after, k) else 5
                    )
                    count += 1
        i = int(c.open[i, NEXT])
    return count


@inlined
def _is_worthwhile(h: History, c: Cursor, i: int, e: int, before: int, after: int) -> bool:
    """True if it may help that an optional or indeterminate operation takes effect.

    It must change the state, or absorb an overwriter that is still required, and lead to a state
    that is needed later.
    """
    k = h.op[i, KIND] if i >= 0 else h.unknown_kind[FIRST_UNKNOWN - i]
    if after == before and not (h.does[k, OVERWRITES] and _has_absorbable(h, c, i)):
        return False
    return _is_needed(h, after, e)


@inlined
def _unknown_moves(
    h: History, c: Cursor, a: Arena, t: Steps, e: int, node: tuple[int, int, int, int], count: int
) -> int:
    """Add the moves by indeterminate operations; return how many moves there are now.

    None is added of a kind of which a known operation is a move. Exchange argument: wherever the
    known one would take effect later, the indeterminate one can, since it never returns.
    """
    _, state, used, flags = node
    tick = c.place[TICK]
    for place in range(h.facts[UNKNOWN_KINDS]):
        k = int(h.unknown_kind[place])
        if (
            not _unknown_left(h, c, a, used, place)
            or c.kind_stamp[0, k] == tick
            or c.kind_stamp[1, k] == tick
            or (h.does[k, OVERWRITES] and flags & GAINLESS)
        ):
            continue
        after = step(h, t, state, k)
        if after < 0 or not _is_worthwhile(h, c, FIRST_UNKNOWN - place, e, state, after):
            continue
        a.move[count, 0] = FIRST_UNKNOWN - place
        passing = _passes(h, c, t, e, state, after)
        a.move[count, 1] = 3 if passing else 4 if _leads_on(h, t, e, state, after, k) else 6
        count += 1
    return count


@bare
def list_moves(
    h: History, c: Cursor, a: Arena, t: Steps, e: int, node: tuple[int, int, int, int]
) -> int:
    """List the moves of the node whose masks are in c.child, and their ranks; return how many.

    The list is not valid if steps are missing.
    """
    words = h.facts[WORDS]
    c.place[TICK] += 1
    count = _known_moves(h, c, a, t, e, node)
    count = _unknown_moves(h, c, a, t, e, node, count)
    if not node[3] & MIDWAY and has_in(c.child, words, int(h.op[h.event[e, WHO], SLOT])):
        # The returning operation is optional: it may never happen. Midway this is no choice:
        # just-in-time, the moves made since would have waited for a later return instead.
        a.move[count, 0] = DROP
        a.move[count, 1] = 0
        count += 1
    return count


@inlined
def push_moves(a: Arena, node: int, count: int) -> None:
    """Push the listed moves, the best rank on top; within a rank the first listed is on top."""
    top = a.at[TOP]
    for rank in range(RANKS - 1, -1, -1):
        for n in range(count - 1, -1, -1):
            if a.move[n, 1] == rank:
                a.stack[top, 0], a.stack[top, 1] = node, a.move[n, 0]
                top += 1
    a.at[TOP] = top
