"""The search itself: just-in-time linearization, depth first, over return events.

This is Wing and Gong's search for a linearization with Lowe's two improvements: configurations
are memoised, and an operation takes effect only when a return forces it. The second loses
nothing, since in any linearization the effects between two returns can be delayed to the later
one.

A *node* is a configuration right before the return of an operation that has not taken effect
yet: that event, the object's state, which open operations are done, which are *optional* (they
may take effect or not), and how many indeterminate operations were used, by kind. A *move* lets
one open operation take effect. Every reduction says why it is sound; each of them was fuzzed.

Source: Wing & Gong 1993; Lowe 2017, Testing for linearizability, section 4.
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
    LINEARIZED,
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
    OPTIONAL,
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
    TOP,
    USED,
    USED_COUNT,
    VISITED,
    WHAT,
    WHO,
    WORDS,
    Arena,
    B,
    Cursor,
    History,
    Steps,
)
from shaketable.checkers.kernels.search_history import VALUE, VECTOR, move_to, step_forward
from shaketable.checkers.kernels.search_memo import add_node, is_covered, spend
from shaketable.checkers.kernels.search_moves import (
    has,
    is_doomed,
    is_useful,
    list_moves,
    push_moves,
    step,
)
from shaketable.checkers.kernels.search_vectors import is_hindered
from shaketable.harness.compiled import bare, compiled, inlined


@inlined
def _advance(h: History, c: Cursor, a: Arena, t: Steps, state: int) -> int:
    """Advance to the next return that forces a move; return its event.

    Returns of operations that are done, and of optional ones that are no longer useful, are
    passed. `c.child` holds the masks, and is updated.
    """
    words = h.facts[WORDS]
    e = int(c.place[AT])
    while e < a.at[STOP]:
        i = int(h.event[e, WHO])
        if h.event[e, WHAT] == CALL:
            k = int(h.op[i, KIND])
            word, bit = h.op[i, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
            if h.op[i, OPTIONAL]:
                c.child[words + word] |= bit
            elif h.does[k, OVERWRITES]:
                _carry(h, c, i)
            elif h.does[k, OBSERVES]:
                # Greedy reads: an observer changes no state, so an effect as early as possible
                # only removes an obligation.
                after = step(h, t, state, k)
                if after == MISSING:
                    break
                if after == state:
                    c.child[word] |= bit
        elif h.event[e, WHAT] == RETURN:
            word, bit = h.op[i, SLOT] >> 6, np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
            if c.child[word] & bit:  # done: the slot is free again
                c.child[word] ^= bit
            elif c.child[words + word] & bit and not is_useful(h, i, state, e):
                c.child[words + word] ^= bit  # it never takes effect
            else:
                break  # it must take effect now, or it is worth a choice
        step_forward(h, c)
        e += 1
    return int(e)


@inlined
def _carry(h: History, c: Cursor, i: int) -> None:
    """Make operation i, which is called now, optional, or the overwriter that is required.

    Of all open overwriters that must happen, only the one that returns first stays required.
    By its return some overwriter takes effect (itself, or one that absorbed it), and all others
    that are open can take effect right before that one, where nothing sees them.
    """
    words = h.facts[WORDS]
    for w in range(words):
        # Required: open, not done, not optional. By the above there is one at most.
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
    """Let every open observer that is possible in this new state take effect; True if any did.

    Greedy reads again: their order among each other does not matter, since no state changes.
    """
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

    A window starts from the top configuration: open observers are done (no obligation is left),
    all other open operations are optional. It dominates every configuration that a search of
    the whole history could reach with the same state, so if it fails, all of them fail.
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
    """Apply a move to a node; return the event, state, used row and flags of the child.

    The child's masks are in c.child. Without a parent, `move` is the first state.
    """
    if parent < 0:
        _root(h, c, a)
        return _advance(h, c, a, t, move), move, 0, 0
    words = h.facts[WORDS]
    # One integer type throughout: numba compiles the parts below once for each.
    e, before = int(a.node[parent, EVENT]), int(a.node[parent, STATE])
    used = int(a.node[parent, USED])
    move_to(h, c, e)
    for w in range(2 * words):
        c.child[w] = a.mask[parent, w]
    forcing = h.op[h.event[e, WHO], SLOT]
    forcing_bit = np.uint64(1) << np.uint64(forcing & 63)
    if move == DROP:  # the operation that returns is optional: it never happens
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
        # Absorption: each open overwriter that is not done could have taken effect right before
        # this one, unseen, so it becomes optional. Overwriters only: an operation that needs a
        # state, such as a cas, might not have been possible there.
        for w in range(words):
            c.child[words + w] |= c.open_mask[OVERWRITERS, w] & ~c.child[w]
    gain = state != before and _observe(h, c, t, state)
    if c.child[forcing >> 6] & forcing_bit:  # the forcing return is satisfied: pass it
        c.child[forcing >> 6] ^= forcing_bit
        step_forward(h, c)
        return _advance(h, c, a, t, state), state, used, 0
    # GAINLESS: nothing was gained by this move, and if an overwriter follows, the same node is
    # reached (or one that covers it) without it. So no overwriter is tried after it.
    return e, state, used, MIDWAY | (GAINLESS if skippable and not gain else 0)


@inlined
def _lacks(h: History, a: Arena) -> int:
    """Return which array must grow before the next move, LINEARIZED if none."""
    if a.at[NODES] == a.node.shape[0]:
        return NEEDS_NODES
    if a.at[TOP] + a.move.shape[0] > a.stack.shape[0]:
        return NEEDS_STACK
    if a.at[USED_COUNT] == a.used.shape[0]:
        return NEEDS_USED
    return LINEARIZED


@inlined
def _overwritten_value(h: History, a: Arena, parent: int, move: int) -> int:
    """Return the value that a move overwrites, or that the dropped operation would have left."""
    if move == DROP:
        return int(h.does[h.op[h.event[a.node[parent, EVENT], WHO], KIND], B])
    return int(a.node[parent, STATE])


@inlined
def _kind_of(h: History, parent: int, move: int) -> int:
    """Return the kind of the operation that a move lets take effect, -1 if it lets none."""
    if parent < 0 or move == DROP:
        return -1
    return int(h.op[move, KIND] if move >= 0 else h.unknown_kind[FIRST_UNKNOWN - move])


@inlined
def _visit(h: History, c: Cursor, a: Arena, t: Steps, chain_max: int) -> int:
    """Try the move on top of the stack: visit the node that it leads to.

    Returns LINEARIZED, NEEDS_STEPS (the move stays on the stack then) or SLICE_OVER.
    """
    top = a.at[TOP] - 1
    parent, move = int(a.stack[top, 0]), int(a.stack[top, 1])
    if parent >= 0 and a.node[parent, FLAGS] & COVERED:
        # A node that dominates the parent was found since; its moves cover this one.
        a.at[TOP] = top
        return SLICE_OVER
    t.facts[MISSING_COUNT] = 0
    e, state, used, flags = _make_child(h, c, a, t, parent, move)
    if t.facts[MISSING_COUNT]:
        return NEEDS_STEPS
    node = (e, state, used, flags)
    was = state if parent < 0 else _overwritten_value(h, a, parent, move)
    if e < a.at[STOP]:
        # Doomed: no continuation satisfies some need. Covered: memoised, or dominated by a node
        # that was. Either way nothing is lost by not expanding it.
        hopeless = h.facts[FAMILY] == VALUE and is_doomed(h, c, a, e, state, used, was)
        if h.facts[FAMILY] == VECTOR:
            hopeless = is_hindered(h, c, a, t, node, _kind_of(h, parent, move))
        hopeless = hopeless or is_covered(h, c, a, node, chain_max)
        count = 0 if hopeless else list_moves(h, c, a, t, e, node)
        if t.facts[MISSING_COUNT]:
            return NEEDS_STEPS
        a.at[VISITED] += 1
        a.at[TOP] = top
        if e > a.at[DEEPEST]:
            a.at[DEEPEST] = e
            a.at[PROGRESS] = a.at[VISITED]
        if not hopeless:
            push_moves(a, a.at[NODES], count)
            y = add_node(h, c, a, node, parent, move)
            if a.at[BEST] < 0 or e > a.node[a.at[BEST], EVENT]:
                a.at[BEST] = y
        return SLICE_OVER
    a.at[LAST] = add_node(h, c, a, node, parent, move)
    return LINEARIZED


@bare
def run_on(
    h: History, c: Cursor, a: Arena, t: Steps, visits_max: int, stall: int, chain_max: int
) -> int:
    """Continue the search, as `run` does; called from kernels."""
    for _ in range(visits_max):
        if a.at[TOP] == 0:  # every configuration was tried
            return REFUTED
        if a.at[VISITED] - a.at[PROGRESS] > stall:
            return STALLED
        status = _lacks(h, a)
        if status == LINEARIZED:
            status = _visit(h, c, a, t, chain_max)
        if status != SLICE_OVER:
            return status
    return SLICE_OVER


@compiled
def run(
    h: History, c: Cursor, a: Arena, t: Steps, visits_max: int, stall: int, chain_max: int
) -> int:
    """Continue the search until there is an answer, or the driver must act; return the status.

    Args:
        h: the problem.
        c: at any place.
        a: what was found so far; its stack holds what is still to try.
        t: the known steps of Family.TABLE.
        visits_max: return SLICE_OVER after so many nodes.
        stall: return STALLED after so many nodes without progress.
        chain_max: with how many nodes of the same event and state a new one is compared.

    Returns:
        LINEARIZED, REFUTED, STALLED, SLICE_OVER, or one of the NEEDS. After the last two a
        further call continues where this one ended.
    """
    return run_on(h, c, a, t, visits_max, stall, chain_max)
