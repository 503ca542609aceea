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
    Int64s,
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
from shaketable.checkers.kernels.search_windows import (
    CHAIN_MAX,
    NODES_VISITED,
    PHASE,
    RUNNING,
    STALL,
    VISITS_MAX,
    WHOLE,
    WIDEN,
    begin_window,
    end_window,
)
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


@inlined
def _apply(
    h: History, c: Cursor, a: Arena, t: Steps, before: int, used: int, move: int
) -> tuple[int, int, int]:
    """Let an operation take effect; return the state and used row after it, and flags.

    The flags count if the return that forces a move is not satisfied by it.
    """
    words = h.facts[WORDS]
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
    # GAINLESS: nothing was gained by this move, and if an overwriter follows, the same node is
    # reached (or one that covers it) without it. So no overwriter is tried after it.
    return state, used, MIDWAY | (GAINLESS if skippable and not gain else 0)


@bare
def _make_child(
    h: History, c: Cursor, a: Arena, t: Steps, parent: int, move: int
) -> tuple[int, int, int, int]:
    """Apply a move to a node; return the event, state, used row and flags of the child.

    The child's masks are in c.child. Without a parent, `move` is the first state.
    """
    if parent < 0:
        _root(h, c, a)
        state, used = move, 0
    else:
        words = h.facts[WORDS]
        e, state, used = a.node[parent, EVENT], a.node[parent, STATE], a.node[parent, USED]
        move_to(h, c, e)
        for w in range(2 * words):
            c.child[w] = a.mask[parent, w]
        forcing = h.op[h.event[e, WHO], SLOT]
        forcing_bit = np.uint64(1) << np.uint64(forcing & 63)
        if move == DROP:  # the operation that returns is optional: it never happens
            c.child[words + (forcing >> 6)] &= ~forcing_bit
        else:
            state, used, flags = _apply(h, c, a, t, state, used, move)
            if not c.child[forcing >> 6] & forcing_bit:
                return int(e), state, used, flags
            c.child[forcing >> 6] ^= forcing_bit  # the forcing return is satisfied: pass it
        step_forward(h, c)
    return _advance(h, c, a, t, state), state, used, 0


@inlined
def _can_visit(a: Arena, goal: Int64s) -> int:
    """Return SLICE_OVER if a node can be visited, else an answer or which array must grow."""
    if a.at[TOP] == 0:  # every configuration was tried
        return REFUTED
    if goal[PHASE] <= WIDEN and a.at[VISITED] - a.at[PROGRESS] > goal[STALL]:
        return STALLED
    if a.at[NODES] == a.node.shape[0]:
        return NEEDS_NODES
    if a.at[TOP] + a.move.shape[0] > a.stack.shape[0]:
        return NEEDS_STACK
    if a.at[USED_COUNT] == a.used.shape[0]:
        return NEEDS_USED
    return SLICE_OVER


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
def _is_hopeless(
    h: History,
    c: Cursor,
    a: Arena,
    t: Steps,
    node: tuple[int, int, int, int],
    parent: int,
    move: int,
) -> bool:
    """True if no continuation of this node satisfies what is still needed."""
    if h.facts[FAMILY] == VALUE:
        was = node[1] if parent < 0 else _overwritten_value(h, a, parent, move)
        return is_doomed(h, c, a, node[0], node[1], node[2], was)
    if h.facts[FAMILY] == VECTOR:
        return is_hindered(h, c, a, t, node, _kind_of(h, parent, move))
    return False


@inlined
def _visit(h: History, c: Cursor, a: Arena, t: Steps, goal: Int64s) -> int:
    """Visit the node that the move on top of the stack leads to.

    Returns LINEARIZED, NEEDS_STEPS (the move stays on the stack then) or SLICE_OVER.
    """
    top = a.at[TOP] - 1
    parent, move = int(a.stack[top, 0]), int(a.stack[top, 1])
    if parent >= 0 and a.node[parent, FLAGS] & COVERED:
        # A node that dominates the parent was found since; its moves cover this one.
        a.at[TOP] = top
        return SLICE_OVER
    t.facts[MISSING_COUNT] = 0
    node = _make_child(h, c, a, t, parent, move)
    e = node[0]
    if t.facts[MISSING_COUNT]:
        return NEEDS_STEPS
    if e == a.at[STOP]:
        a.at[LAST] = add_node(h, c, a, node, parent, move)
        return LINEARIZED
    # Hopeless or covered (memoised, or dominated by a node that was): either way nothing is lost
    # by not expanding it.
    is_over = _is_hopeless(h, c, a, t, node, parent, move)
    is_over = is_over or is_covered(h, c, a, node, goal[CHAIN_MAX])
    count = 0 if is_over else list_moves(h, c, a, t, e, node)
    if t.facts[MISSING_COUNT]:
        return NEEDS_STEPS
    a.at[VISITED] += 1
    goal[NODES_VISITED] += 1
    a.at[TOP] = top
    if e > a.at[DEEPEST]:
        a.at[DEEPEST] = e
        a.at[PROGRESS] = a.at[VISITED]
    if not is_over:
        push_moves(a, a.at[NODES], count)
        added = add_node(h, c, a, node, parent, move)
        if a.at[BEST] < 0 or e > a.node[a.at[BEST], EVENT]:
            a.at[BEST] = added
    return SLICE_OVER


@compiled
def run(h: History, c: Cursor, a: Arena, t: Steps, goal: Int64s) -> int:
    """Continue the search until there is an answer, or the driver must act; return the status.

    Windows are searched here as well, for numba optimises what a function calls anew with each
    function that calls it: every layer above this one would cost another ten seconds of compiling.

    Args:
        h: the problem.
        c: at any place.
        a: what was found so far; its stack holds what is still to try.
        t: the known steps of Family.TABLE.
        goal: whether to search the whole history or windows of it, and its limits.

    Returns:
        LINEARIZED, REFUTED, STALLED, SLICE_OVER, or one of the NEEDS. After the last two a
        further call continues where this one ended.
    """
    is_whole = goal[PHASE] == WHOLE
    for _ in range(goal[VISITS_MAX]):
        if not is_whole and not goal[RUNNING]:
            status = begin_window(h, a, goal)
            if status != SLICE_OVER:
                return status
        status = _can_visit(a, goal)
        if status == SLICE_OVER:
            status = _visit(h, c, a, t, goal)
        if status != SLICE_OVER:
            is_answer = status in (LINEARIZED, REFUTED, STALLED)
            if is_whole or not is_answer or end_window(a, goal, status):
                return status
    return SLICE_OVER
