"""The search itself: just-in-time linearization, depth first, over return events.

A *node* stands right before the return of an operation that has not taken effect yet. It is:
that event, the object's state, which open operations are done, which are *optional* (they may
take effect or not), and how many of unknown outcome were used, by kind. A *move* lets one open
operation take effect. Every reduction says why it is sound; each of them was fuzzed.

Source: Lowe 2017, Testing for linearizability, section 4.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    AT,
    BEST,
    CALL,
    COVERED,
    DEEPEST,
    DROP,
    EVENT,
    FAMILY,
    FIRST_UNKNOWN,
    FLAGS,
    GAINLESS,
    IS_WINDOW,
    KIND,
    LAST,
    LOOKED,
    LOOSE,
    MIDWAY,
    MISSING,
    MISSING_COUNT,
    MUTATORS,
    NEEDS_NODES,
    NEEDS_STACK,
    NEEDS_STEPS,
    NEEDS_USED,
    NEXT,
    NODES,
    OBSERVERS,
    OBSERVES,
    OVERWRITERS,
    OVERWRITES,
    PROGRESS,
    REFUTED,
    RETURN,
    RETURNED,
    SLICE_OVER,
    SLOT,
    STALLED,
    START,
    STATE,
    STOP,
    THROUGH,
    TOP,
    USED,
    USED_COUNT,
    WHAT,
    WHO,
    WORDS,
    Arena,
    B,
    Cursor,
    History,
    Steps,
)
from shaketable.checkers.kernels.search_cursor import move_to, step_forward
from shaketable.checkers.kernels.search_history import VALUE
from shaketable.checkers.kernels.search_memo import add_node, is_covered, spend
from shaketable.checkers.kernels.search_moves import (
    has,
    is_doomed,
    is_useful,
    list_moves,
    push_moves,
    step,
)
from shaketable.harness.compiled import bare, compiled, inlined


@inlined
def _advance(h: History, c: Cursor, a: Arena, t: Steps, state: int) -> int:
    """Go on to the next return that forces a move; return its event.

    An operation that changes nothing takes effect as soon as it can: that only removes an
    obligation. What returns and is done, or optional without use any more, is passed.
    """
    words = h.facts[WORDS]
    e = int(c.place[AT])
    while e < a.at[STOP]:
        i = int(h.event[e, WHO])
        if h.event[e, WHAT] == CALL:
            k = int(h.op[i, KIND])
            word, bit = h.op[i, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
            if h.op[i, LOOSE]:
                c.child[words + word] |= bit
            elif h.does[k, OVERWRITES]:
                _carry(h, c, i)
            elif h.does[k, OBSERVES]:
                after = step(h, t, state, k)
                if after == MISSING:
                    break
                if after == state:
                    c.child[word] |= bit
        elif h.event[e, WHAT] == RETURN:
            word, bit = h.op[i, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
            if c.child[word] & bit:
                c.child[word] ^= bit
            elif c.child[words + word] & bit and not is_useful(h, i, state, e):
                c.child[words + word] ^= bit
            else:
                break
        step_forward(h, c)
        e += 1
    return int(e)


@inlined
def _carry(h: History, c: Cursor, i: int) -> None:
    """Of the open overwriters that must happen let only the one that returns first be required.

    By its return it or another one takes effect, and the others can stand right before that.
    Operation i is one that is called now.
    """
    words = h.facts[WORDS]
    for w in range(words):
        rest = c.open_mask[OVERWRITERS, w] & ~c.child[w] & ~c.child[words + w]
        if rest:
            slot = w * 64
            while rest & np.uint64(1) == 0:
                rest >>= np.uint64(1)
                slot += 1
            if h.op[c.holder[slot], RETURNED] < h.op[i, RETURNED]:
                slot = h.op[i, SLOT]
            c.child[words + (slot >> 6)] |= np.uint64(1) << np.uint64(slot & 63)
            return


@inlined
def _observe(h: History, c: Cursor, t: Steps, state: int) -> bool:
    """Let every open observer that is possible in this new state take effect; True if any did."""
    waiting = np.uint64(0)
    for w in range(h.facts[WORDS]):
        waiting |= c.open_mask[OBSERVERS, w] & ~c.child[w]
    if waiting == 0:
        return False
    gain = False
    end = h.op.shape[0]
    i = int(c.open[end, NEXT])
    while i != end:
        if h.does[h.op[i, KIND], OBSERVES] and not has(c.child, h.op[i, SLOT]):
            after = step(h, t, state, int(h.op[i, KIND]))
            if after == state:
                c.child[h.op[i, SLOT] >> 6] |= np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
                gain = True
        i = int(c.open[i, NEXT])
    return gain


@inlined
def _root(h: History, c: Cursor, a: Arena) -> None:
    """Fill in the masks of a search's first node.

    A window starts from what covers every configuration that could be reached: observers
    done (nothing is left to do for them), everything else optional (it may be done, or not).
    """
    words = h.facts[WORDS]
    move_to(h, c, a.at[START])
    for w in range(words):
        c.child[w] = c.open_mask[OBSERVERS, w] if a.at[IS_WINDOW] else np.uint64(0)
        c.child[words + w] = c.open_mask[MUTATORS, w] if a.at[IS_WINDOW] else np.uint64(0)


@bare
def _make_child(
    h: History, c: Cursor, a: Arena, t: Steps, parent: int, move: int
) -> tuple[int, int, int, int]:
    """Carry out a move; return the event, state, used row and flags; the masks are in c.child."""
    if parent < 0:
        _root(h, c, a)
        return _advance(h, c, a, t, move), move, 0, 0
    words = h.facts[WORDS]
    # One integer type throughout: each further one would compile the parts below once more.
    e, before = int(a.node[parent, EVENT]), int(a.node[parent, STATE])
    used = int(a.node[parent, USED])
    move_to(h, c, e)
    for w in range(2 * words):
        c.child[w] = a.mask[parent, w]
    forcing = h.op[h.event[e, WHO], SLOT]
    forcing_bit = np.uint64(1) << np.uint64(forcing & 63)
    if move == DROP:
        c.child[words + (forcing >> 6)] &= ~forcing_bit
        step_forward(h, c)
        return _advance(h, c, a, t, before), before, used, 0
    skippable = True
    if move >= 0:
        k = int(h.op[move, KIND])
        word, bit = h.op[move, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[move, SLOT] & 63)
        skippable = c.child[words + word] & bit != 0 or h.does[k, OVERWRITES] != 0
        c.child[word] |= bit
        c.child[words + word] &= ~bit
    else:
        k = int(h.unknown_kind[FIRST_UNKNOWN - move])
        if not a.at[IS_WINDOW]:
            used = spend(a, used, FIRST_UNKNOWN - move)
    state = step(h, t, before, k)
    if h.does[k, OVERWRITES]:
        # Absorption: each open overwriter that is not used could have stood right before this
        # one, so it has become optional. Overwriters only: others compete for a state.
        for w in range(words):
            c.child[words + w] |= c.open_mask[OVERWRITERS, w] & ~c.child[w]
    gain = state != before and _observe(h, c, t, state)
    if c.child[forcing >> 6] & forcing_bit:
        c.child[forcing >> 6] ^= forcing_bit
        step_forward(h, c)
        return _advance(h, c, a, t, state), state, used, 0
    return e, state, used, MIDWAY | (GAINLESS if skippable and not gain else 0)


@inlined
def _lacks(h: History, a: Arena) -> int:
    """Return what must grow before the next move, THROUGH if nothing."""
    if a.at[NODES] == a.node.shape[0]:
        return NEEDS_NODES
    if a.at[TOP] + a.move.shape[0] > a.stack.shape[0]:
        return NEEDS_STACK
    if a.at[USED_COUNT] == a.used.shape[0]:
        return NEEDS_USED
    return THROUGH


@inlined
def _given_up(h: History, a: Arena, parent: int, move: int) -> int:
    """The value that a move overwrites, or the one that what it drops would have left."""
    if move == DROP:
        return int(h.does[h.op[h.event[a.node[parent, EVENT], WHO], KIND], B])
    return int(a.node[parent, STATE])


@inlined
def _look(h: History, c: Cursor, a: Arena, t: Steps, chain_max: int) -> int:
    """Try the uppermost move: look at the node that it leads to.

    Returns THROUGH, NEEDS_STEPS (the move stays on the stack then) or SLICE_OVER.
    """
    top = a.at[TOP] - 1
    parent, move = int(a.stack[top, 0]), int(a.stack[top, 1])
    if parent >= 0 and a.node[parent, FLAGS] & COVERED:
        a.at[TOP] = top
        return SLICE_OVER
    t.facts[MISSING_COUNT] = 0
    e, state, used, flags = _make_child(h, c, a, t, parent, move)
    if t.facts[MISSING_COUNT]:
        return NEEDS_STEPS
    node = (e, state, used, flags)
    was = state if parent < 0 else _given_up(h, a, parent, move)
    if e < a.at[STOP]:
        hopeless = h.facts[FAMILY] == VALUE and is_doomed(h, c, a, e, state, used, was)
        hopeless = hopeless or is_covered(h, c, a, node, chain_max)
        count = 0 if hopeless else list_moves(h, c, a, t, e, node)
        if t.facts[MISSING_COUNT]:
            return NEEDS_STEPS
        a.at[LOOKED] += 1
        a.at[TOP] = top
        if e > a.at[DEEPEST]:
            a.at[DEEPEST] = e
            a.at[PROGRESS] = a.at[LOOKED]
        if not hopeless:
            push_moves(a, a.at[NODES], count)
            y = add_node(h, c, a, node, parent, move)
            if a.at[BEST] < 0 or e > a.node[a.at[BEST], EVENT]:
                a.at[BEST] = y
        return SLICE_OVER
    a.at[LAST] = add_node(h, c, a, node, parent, move)
    return THROUGH


@bare
def run_on(
    h: History, c: Cursor, a: Arena, t: Steps, looks_max: int, stall: int, chain_max: int
) -> int:
    """Search on; what `run` does, for kernels."""
    for _ in range(looks_max):
        if a.at[TOP] == 0:
            return REFUTED
        if a.at[LOOKED] - a.at[PROGRESS] > stall:
            return STALLED
        status = _lacks(h, a)
        if status == THROUGH:
            status = _look(h, c, a, t, chain_max)
        if status != SLICE_OVER:
            return status
    return SLICE_OVER


@compiled
def run(
    h: History, c: Cursor, a: Arena, t: Steps, looks_max: int, stall: int, chain_max: int
) -> int:
    """Search on until there is an answer or something to see to; return which.

    Args:
        h: the problem.
        c: stands anywhere.
        a: what was found out so far; its stack holds what is still to try.
        t: the steps of Family.TABLE that are known.
        looks_max: after so many nodes SLICE_OVER.
        stall: after so many nodes without getting further STALLED.
        chain_max: how many nodes of one event and state are compared with a new one.

    Returns:
        THROUGH, REFUTED, STALLED, SLICE_OVER, or one of the NEEDS: nothing is lost then, and a
        further call goes on.
    """
    return run_on(h, c, a, t, looks_max, stall, chain_max)
