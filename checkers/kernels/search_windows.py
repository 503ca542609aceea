"""Refutes a history by a window: finds one that cannot be passed, and makes it short.

From a window's begin every state that matters is tried, with everything that may have happened
before taken to be as favourable as it could be: that covers every node that a search could reach
there. So where a window cannot be passed, the history cannot, and the window is the
counterexample. Where it can, nothing is proven, and a wider one is tried.
"""

from __future__ import annotations

from shaketable.checkers.kernels.search import run_on
from shaketable.checkers.kernels.search_arrays import (
    FIRST_MADE,
    IS_WINDOW,
    LAST_NEED,
    LAST_REFUSAL,
    LOOKED,
    LOOSE,
    NEEDS_STACK,
    NEXT,
    REFUTED,
    RETURN,
    RETURNED,
    STALLED,
    START,
    STOP,
    THROUGH,
    TOP,
    UNSEEN,
    VALUES,
    WHAT,
    Arena,
    Cursor,
    History,
    Int64s,
    Steps,
)
from shaketable.checkers.kernels.search_cursor import move_to
from shaketable.checkers.kernels.search_memo import forget
from shaketable.harness.compiled import bare, compiled, inlined

# ---- what a quest is at
PHASE = 0
RUNNING = 1
"""1 while a window is being tried."""
LOW = 2
HIGH = 3
"""What is left of a bisection, or the width in LOW."""
FROM = 4
TO = 5
"""The shortest window so far that cannot be passed, or the end to try in TO."""
STALL = 6
LOOKED_AT = 7
"""Nodes that were looked at, in all windows."""
LOOKS_MAX = 8
"""How many nodes a call may look at."""
CHAIN_MAX = 9
QUEST_FACTS = 10
# ---- values of PHASE
WIDEN = 0
SHORTEN_END = 1
SHORTEN_BEGIN = 2
SHOW = 3

EVENTS_BEYOND = 64
"""How far behind the place where the search stands a window may end, besides eight times the
operations that are open there: far enough for those to return."""
NO_STALL = 2**62


@inlined
def _has_room(h: History, a: Arena, start: int) -> bool:
    """Put the states that may stand at a window's begin on the stack; False if it is too small.

    Those that are needed later, and one of the others, since these are all alike; all of them
    where some operation is possible unless a certain value stands there.
    """
    top = 0
    has_other = False
    for v in range(h.facts[VALUES]):
        if h.value[v, FIRST_MADE] >= start:
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
def _try(h: History, c: Cursor, a: Arena, t: Steps, quest: Int64s, start: int, stop: int) -> int:
    """Begin, or go on with, the window from `start` to before `stop`."""
    if not quest[RUNNING]:
        forget(a)
        if not _has_room(h, a, start):
            return NEEDS_STACK
        a.at[START], a.at[STOP], a.at[IS_WINDOW] = start, stop, 1
        quest[RUNNING] = 1
    stall = quest[STALL] if quest[PHASE] == WIDEN else NO_STALL
    looked = a.at[LOOKED]
    status = run_on(h, c, a, t, quest[LOOKS_MAX], stall, quest[CHAIN_MAX])
    quest[LOOKED_AT] += a.at[LOOKED] - looked
    if status in (THROUGH, REFUTED, STALLED):
        quest[RUNNING] = 0
    return status


@inlined
def _return_before(h: History, at: int, not_before: int) -> int:
    """The last return at or before event `at`; -1 if that is before `not_before`."""
    while at >= not_before and h.event[at, WHAT] != RETURN:
        at -= 1
    return at if at >= not_before else -1


@compiled
def begin_quest(h: History, c: Cursor, deepest: int, width: int, stall: int, quest: Int64s) -> None:
    """Set out to refute the history by a window that ends about event `deepest`.

    The first one begins `width` events before that; where `stall` nodes are looked at without
    getting further it is given up.
    """
    move_to(h, c, deepest)
    end = h.op.shape[0]
    count, last = 0, deepest
    i = c.open[end, NEXT]
    while i != end:
        count += 1
        if h.op[i, LOOSE] != UNSEEN:
            last = max(last, h.op[i, RETURNED])
        i = c.open[i, NEXT]
    quest[:LOOKS_MAX] = 0
    quest[LOW] = width
    quest[FROM] = deepest
    quest[TO] = min(last, deepest + EVENTS_BEYOND + 8 * count, h.event.shape[0] - 1) + 1
    quest[STALL] = stall


@inlined
def _return_after(h: History, at: int, not_after: int) -> int:
    """The first return behind event `at`; -1 if that is behind `not_after`."""
    at += 1
    while at <= not_after and h.event[at, WHAT] != RETURN:
        at += 1
    return at if at <= not_after else -1


@inlined
def _widen(h: History, c: Cursor, a: Arena, t: Steps, quest: Int64s) -> int:
    """Begin windows ever earlier until one cannot be passed, or is long for what it may take."""
    while True:
        start = _return_before(h, quest[FROM] - quest[LOW], 1)
        if start < 0:
            return THROUGH
        status = _try(h, c, a, t, quest, start, quest[TO])
        if status == REFUTED:
            quest[PHASE] = SHORTEN_END
            quest[FROM] = start
            quest[LOW], quest[HIGH] = start + 1, quest[TO]
        elif status == THROUGH and quest[LOW] < quest[STALL]:
            quest[LOW] *= 2
            continue
        return status


@inlined
def _shorten_end(h: History, c: Cursor, a: Arena, t: Steps, quest: Int64s) -> int:
    """Find the first event that ends a window which cannot be passed, by bisection.

    A window that contains one that cannot be passed cannot be passed either.
    """
    while quest[LOW] < quest[HIGH]:
        middle = (quest[LOW] + quest[HIGH]) // 2
        status = _try(h, c, a, t, quest, quest[FROM], middle)
        if status == REFUTED:
            quest[HIGH] = middle
        elif status == THROUGH:
            quest[LOW] = middle + 1
        else:
            return status
    quest[TO] = quest[HIGH]
    quest[PHASE] = SHORTEN_BEGIN
    quest[LOW], quest[HIGH] = quest[FROM], quest[TO] - 1
    return REFUTED


@inlined
def _shorten_begin(h: History, c: Cursor, a: Arena, t: Steps, quest: Int64s) -> int:
    """Find the last return that begins a window which cannot be passed, by bisection."""
    while True:
        half = (quest[LOW] + quest[HIGH] + 1) // 2
        middle = _return_before(h, half, quest[LOW] + 1)
        if middle < 0:
            middle = _return_after(h, half, quest[HIGH])
        if middle < 0:
            quest[FROM] = quest[LOW]
            quest[PHASE] = SHOW
            return REFUTED
        status = _try(h, c, a, t, quest, middle, quest[TO])
        if status == REFUTED:
            quest[LOW] = middle
        elif status == THROUGH:
            quest[HIGH] = middle - 1
        else:
            return status


@compiled
def pursue(h: History, c: Cursor, a: Arena, t: Steps, quest: Int64s) -> int:
    """Go on with a quest.

    Returns REFUTED (the shortest window is the arena's START to STOP), THROUGH or STALLED (no
    window was found), SLICE_OVER, or one of the NEEDS.
    """
    status = REFUTED
    if quest[PHASE] == WIDEN:
        status = _widen(h, c, a, t, quest)
    if status == REFUTED and quest[PHASE] == SHORTEN_END:
        status = _shorten_end(h, c, a, t, quest)
    if status == REFUTED and quest[PHASE] == SHORTEN_BEGIN:
        status = _shorten_begin(h, c, a, t, quest)
    if status == REFUTED:
        status = _try(h, c, a, t, quest, quest[FROM], quest[TO])
    return status
