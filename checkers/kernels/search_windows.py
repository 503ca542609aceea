"""Refutes a history by a window: finds one that cannot be passed, and shortens it.

A window is searched from its start in every state that matters, with the most favourable
assumptions about what happened before (the top configuration: open observers done, mutators
optional, indeterminate operations unlimited). That dominates every node which a search of the
whole history could reach there. So a window that cannot be passed refutes the history, and is
the counterexample. One that can be passed proves nothing, and a wider one is tried.
"""

from __future__ import annotations

from shaketable.checkers.kernels.search import run_on
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
    STALLED,
    START,
    STOP,
    TOP,
    VALUES,
    VISITED,
    WHAT,
    Arena,
    Cursor,
    History,
    Int64s,
    Steps,
)
from shaketable.checkers.kernels.search_history import move_to
from shaketable.checkers.kernels.search_memo import clear
from shaketable.harness.compiled import bare, compiled, inlined

# ---- scalars of a refutation
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
NODES_VISITED = 7
"""In all windows."""
VISITS_MAX = 8
"""How many nodes a call may visit."""
CHAIN_MAX = 9
REFUTATION_FACTS = 10
# ---- values of PHASE
WIDEN = 0
SHORTEN_END = 1
SHORTEN_START = 2
SHOW = 3

EVENTS_BEYOND = 64
"""A window ends at most so many events, and eight for each operation that is open there, after the
place where the search is stuck: far enough for those operations to return."""
NO_STALL = 2**62


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


@bare
def _search_window(
    h: History, c: Cursor, a: Arena, t: Steps, refutation: Int64s, start: int, stop: int
) -> int:
    """Start or continue the search of the window from `start` to before `stop`."""
    if not refutation[RUNNING]:
        clear(a)
        if not _push_states(h, a, start):
            return NEEDS_STACK
        a.at[START], a.at[STOP], a.at[IS_WINDOW] = start, stop, 1
        refutation[RUNNING] = 1
    stall = refutation[STALL] if refutation[PHASE] == WIDEN else NO_STALL
    visited = a.at[VISITED]
    status = run_on(h, c, a, t, refutation[VISITS_MAX], stall, refutation[CHAIN_MAX])
    refutation[NODES_VISITED] += a.at[VISITED] - visited
    if status in (LINEARIZED, REFUTED, STALLED):
        refutation[RUNNING] = 0
    return status


@inlined
def _return_before(h: History, at: int, not_before: int) -> int:
    """Return the last return at or before event `at`; -1 if it is before `not_before`."""
    while at >= not_before and h.event[at, WHAT] != RETURN:
        at -= 1
    return at if at >= not_before else -1


@compiled
def start_refutation(
    h: History, c: Cursor, deepest: int, width: int, stall: int, refutation: Int64s
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
    refutation[:VISITS_MAX] = 0
    refutation[LOW] = width
    refutation[FROM] = deepest
    refutation[TO] = min(last, deepest + EVENTS_BEYOND + 8 * count, h.event.shape[0] - 1) + 1
    refutation[STALL] = stall


@inlined
def _return_after(h: History, at: int, not_after: int) -> int:
    """Return the first return after event `at`; -1 if it is after `not_after`."""
    at += 1
    while at <= not_after and h.event[at, WHAT] != RETURN:
        at += 1
    return at if at <= not_after else -1


@inlined
def _widen(h: History, c: Cursor, a: Arena, t: Steps, refutation: Int64s) -> int:
    """Double the width until a window cannot be passed, or is too wide for the stall limit.

    Passing a window takes at least about a node for every two events, the call and return of an
    operation. So the limit, in nodes, bounds the width too: what the windows cost stays in
    proportion to what the search spent at this place. No answer depends on it.
    """
    while True:
        start = _return_before(h, refutation[FROM] - refutation[LOW], 1)
        if start < 0:
            return LINEARIZED
        status = _search_window(h, c, a, t, refutation, start, refutation[TO])
        if status == REFUTED:
            refutation[PHASE] = SHORTEN_END
            refutation[FROM] = start
            refutation[LOW], refutation[HIGH] = start + 1, refutation[TO]
        elif status == LINEARIZED and refutation[LOW] < refutation[STALL]:
            refutation[LOW] *= 2
            continue
        return status


@inlined
def _shorten_end(h: History, c: Cursor, a: Arena, t: Steps, refutation: Int64s) -> int:
    """Find the earliest end of a window that cannot be passed, by bisection.

    Monotone: a window that contains one that cannot be passed cannot be passed either.
    """
    while refutation[LOW] < refutation[HIGH]:
        middle = (refutation[LOW] + refutation[HIGH]) // 2
        status = _search_window(h, c, a, t, refutation, refutation[FROM], middle)
        if status == REFUTED:
            refutation[HIGH] = middle
        elif status == LINEARIZED:
            refutation[LOW] = middle + 1
        else:
            return status
    refutation[TO] = refutation[HIGH]
    refutation[PHASE] = SHORTEN_START
    refutation[LOW], refutation[HIGH] = refutation[FROM], refutation[TO] - 1
    return REFUTED


@inlined
def _shorten_start(h: History, c: Cursor, a: Arena, t: Steps, refutation: Int64s) -> int:
    """Find the latest return that starts a window which cannot be passed, by bisection."""
    while True:
        half = (refutation[LOW] + refutation[HIGH] + 1) // 2
        middle = _return_before(h, half, refutation[LOW] + 1)
        if middle < 0:
            middle = _return_after(h, half, refutation[HIGH])
        if middle < 0:
            refutation[FROM] = refutation[LOW]
            refutation[PHASE] = SHOW
            return REFUTED
        status = _search_window(h, c, a, t, refutation, middle, refutation[TO])
        if status == REFUTED:
            refutation[LOW] = middle
        elif status == LINEARIZED:
            refutation[HIGH] = middle - 1
        else:
            return status


@compiled
def continue_refutation(h: History, c: Cursor, a: Arena, t: Steps, refutation: Int64s) -> int:
    """Continue a refutation: widen a window, shorten its end, then its start, and search it.

    Returns REFUTED (the shortest window is the arena's START to STOP), LINEARIZED or STALLED (no
    window was found), SLICE_OVER, or one of the NEEDS.
    """
    status = REFUTED
    if refutation[PHASE] == WIDEN:
        status = _widen(h, c, a, t, refutation)
    if status == REFUTED and refutation[PHASE] == SHORTEN_END:
        status = _shorten_end(h, c, a, t, refutation)
    if status == REFUTED and refutation[PHASE] == SHORTEN_START:
        status = _shorten_start(h, c, a, t, refutation)
    if status == REFUTED:
        status = _search_window(h, c, a, t, refutation, refutation[FROM], refutation[TO])
    return status
