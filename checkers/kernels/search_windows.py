"""Chooses windows that may refute a history: finds one that cannot be passed, and shortens it.

A window is searched from its start in every state that matters, with the most favourable
assumptions about what happened before (the top configuration: open observers done, mutators
optional, indeterminate operations unlimited). That dominates every node which a search of the
whole history could reach there. So a window that cannot be passed refutes the history, and is
the counterexample. One that can be passed proves nothing, and a wider one is tried.
"""

from __future__ import annotations

from shaketable.checkers.kernels.search_arrays import (
    FIRST_PRODUCED,
    INDETERMINATE,
    IS_WINDOW,
    LAST_NEED,
    LAST_REFUSAL,
    LINEARIZED,
    NEEDS_STACK,
    NEXT,
    OPTIONAL,
    REFUTED,
    RETURN,
    RETURNED,
    SLICE_OVER,
    START,
    STOP,
    TOP,
    VALUES,
    WHAT,
    Arena,
    Cursor,
    History,
    Int64s,
)
from shaketable.checkers.kernels.search_history import move_to
from shaketable.checkers.kernels.search_memo import clear
from shaketable.harness.compiled import bare, compiled, inlined

# ---- what the search is to do, and how far it is: the scalars of a goal
PHASE = 0
RUNNING = 1
"""1 while a window is being tried."""
LOW = 2
HIGH = 3
"""The bounds of a bisection; while windows widen, LOW is the width in events."""
FROM = 4
TO = 5
"""The shortest window so far that cannot be passed, or the end to try in TO."""
STALL = 6
"""The search is stuck after so many nodes without progress."""
NODES_VISITED = 7
VISITS_MAX = 8
"""How many nodes a call may visit."""
CHAIN_MAX = 9
"""With how many nodes of the same event and state a new one is compared."""
GOAL_FACTS = 10
# ---- values of PHASE
WHOLE = 0
"""The whole history is searched, not windows."""
WIDEN = 1
SHORTEN_END = 2
SHORTEN_START = 3
SHOW = 4

EVENTS_BEYOND = 64
"""A window ends at most so many events, and eight for each operation that is open there, after the
place where the search is stuck: far enough for those operations to return."""


@inlined
def _push_states(h: History, a: Arena, start: int) -> bool:
    """Push the states that are possible at a window's start; False if the stack is too small.

    These are the values that were produced before: those that are needed later, and one of the
    others, since no operation tells them apart. All of them if an operation returns later that
    is possible in all states but one (Access.NOT).
    """
    top = 0
    has_other = False
    for v in range(h.facts[VALUES]):
        if h.value[v, FIRST_PRODUCED] >= start:
            continue
        if h.value[v, LAST_NEED] < start and h.facts[LAST_REFUSAL] < start:
            if has_other:
                continue
            has_other = True
        if top == a.stack.shape[0]:
            return False
        a.stack[top, 0], a.stack[top, 1] = -1, v
        top += 1
    a.at[TOP] = top
    return True


@inlined
def _return_before(h: History, at: int, not_before: int) -> int:
    """Return the last return at or before event `at`; -1 if it is before `not_before`."""
    while at >= not_before and h.event[at, WHAT] != RETURN:
        at -= 1
    return at if at >= not_before else -1


@compiled
def start_refutation(
    h: History, c: Cursor, deepest: int, width: int, stall: int, goal: Int64s
) -> None:
    """Prepare to refute the history by a window that ends about event `deepest`.

    The first window starts `width` events before that. A window is given up after `stall` nodes
    without progress.
    """
    move_to(h, c, deepest)
    end = h.op.shape[0]
    count, last = 0, deepest
    i = c.open[end, NEXT]
    while i != end:
        count += 1
        if h.op[i, OPTIONAL] != INDETERMINATE:
            last = max(last, h.op[i, RETURNED])
        i = c.open[i, NEXT]
    goal[:NODES_VISITED] = 0
    goal[PHASE] = WIDEN
    goal[LOW] = width
    goal[FROM] = deepest
    goal[TO] = min(last, deepest + EVENTS_BEYOND + 8 * count, h.event.shape[0] - 1) + 1
    goal[STALL] = stall


@inlined
def _return_after(h: History, at: int, not_after: int) -> int:
    """Return the first return after event `at`; -1 if it is after `not_after`."""
    at += 1
    while at <= not_after and h.event[at, WHAT] != RETURN:
        at += 1
    return at if at <= not_after else -1


@inlined
def _window(h: History, goal: Int64s) -> tuple[int, int]:
    """Return the next window: its start, -1 if no wider one is left, and where it stops.

    Both ends are found by bisection: a window that contains one that cannot be passed cannot be
    passed either.
    """
    if goal[PHASE] == WIDEN:
        return _return_before(h, goal[FROM] - goal[LOW], 1), goal[TO]
    if goal[PHASE] == SHORTEN_END:
        if goal[LOW] < goal[HIGH]:
            return goal[FROM], (goal[LOW] + goal[HIGH]) // 2
        goal[TO] = goal[HIGH]
        goal[PHASE] = SHORTEN_START
        goal[LOW], goal[HIGH] = goal[FROM], goal[TO] - 1
    if goal[PHASE] == SHORTEN_START:
        half = (goal[LOW] + goal[HIGH] + 1) // 2
        start = _return_before(h, half, goal[LOW] + 1)
        if start < 0:
            start = _return_after(h, half, goal[HIGH])
        if start >= 0:
            return start, goal[TO]
        goal[FROM] = goal[LOW]
        goal[PHASE] = SHOW
    return goal[FROM], goal[TO]


@bare
def begin_window(h: History, a: Arena, goal: Int64s) -> int:
    """Set the arena up for the next window.

    Returns SLICE_OVER (the window is to be searched), LINEARIZED (none is left that could be
    refuted), or NEEDS_STACK.
    """
    start, stop = _window(h, goal)
    if start < 0:
        return LINEARIZED
    clear(a)
    if not _push_states(h, a, start):
        return NEEDS_STACK
    a.at[START], a.at[STOP], a.at[IS_WINDOW] = start, stop, 1
    goal[RUNNING] = 1
    return SLICE_OVER


@bare
def end_window(a: Arena, goal: Int64s, status: int) -> bool:
    """Take in how the search of a window ended; return whether that is the answer.

    REFUTED is, for the shortest window, which is then the arena's START to STOP. While windows
    widen, LINEARIZED or STALLED is, if a wider one is not worth it. Passing a window takes at
    least about a node for every two events, the call and return of an operation. So the limit of
    nodes without progress bounds the width too: what the windows cost stays in proportion to what
    the search spent at this place. No verdict depends on it.
    """
    goal[RUNNING] = 0
    start, stop = a.at[START], a.at[STOP]
    if goal[PHASE] == WIDEN:
        if status == REFUTED:
            goal[PHASE] = SHORTEN_END
            goal[FROM] = start
            goal[LOW], goal[HIGH] = start + 1, goal[TO]
            return False
        if status == LINEARIZED and goal[LOW] < goal[STALL]:
            goal[LOW] *= 2
            return False
        return True
    if goal[PHASE] == SHORTEN_END:
        if status == REFUTED:
            goal[HIGH] = stop
        else:
            goal[LOW] = stop + 1
        return False
    if goal[PHASE] == SHORTEN_START:
        if status == REFUTED:
            goal[LOW] = start
        else:
            goal[HIGH] = start - 1
        return False
    return True
