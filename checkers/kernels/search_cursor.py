"""Moves the cursor between events; the list of open operations follows it both ways.

Source: Knuth's dancing links: an element unlinked from a doubly linked list keeps its own links,
so unlinking is undone in constant time if it is undone in reverse order.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    ABOUT,
    AT,
    CALL,
    CONSUMED,
    KIND,
    MUTATORS,
    NEXT,
    OBSERVERS,
    OBSERVES,
    OVERWRITERS,
    OVERWRITES,
    PREDECESSOR,
    PREVIOUS,
    RETURN,
    SLOT,
    WHAT,
    WHO,
    Cursor,
    History,
)
from shaketable.harness.compiled import bare, inlined


@inlined
def _flip(h: History, c: Cursor, i: int) -> None:
    """Flip the bit of operation i in the masks of open operations."""
    word = h.op[i, SLOT] >> 6
    bit = np.uint64(1) << np.uint64(h.op[i, SLOT] & 63)
    k = h.op[i, KIND]
    if h.does[k, OBSERVES]:
        c.open_mask[OBSERVERS, word] ^= bit
    else:
        c.open_mask[MUTATORS, word] ^= bit
        if h.does[k, OVERWRITES]:
            c.open_mask[OVERWRITERS, word] ^= bit


@inlined
def _insert(h: History, c: Cursor, i: int, left: int) -> None:
    c.holder[h.op[i, SLOT]] = i
    right = c.open[left, NEXT]
    c.open[left, NEXT] = i
    c.open[i, PREVIOUS] = left
    c.open[i, NEXT] = right
    c.open[right, PREVIOUS] = i


@inlined
def _unlink(c: Cursor, i: int) -> None:
    c.open[c.open[i, PREVIOUS], NEXT] = c.open[i, NEXT]
    c.open[c.open[i, NEXT], PREVIOUS] = c.open[i, PREVIOUS]


@inlined
def _pass_values(h: History, c: Cursor, at: int, by: int) -> None:
    """Add `by` to the counts of the value that an event produces or consumes."""
    about = h.event[at, ABOUT]
    if about >= 0:
        c.passed[about, h.event[at, WHAT] & CONSUMED] += by


@inlined
def step_forward(h: History, c: Cursor) -> None:
    """Move past the event at the cursor."""
    at = c.place[AT]
    i = int(h.event[at, WHO])
    if h.event[at, WHAT] == CALL:
        left = int(h.op[i, PREDECESSOR])
        _insert(h, c, i, left if left >= 0 else h.op.shape[0])
        _flip(h, c, i)
    elif h.event[at, WHAT] == RETURN:
        _unlink(c, i)
        _flip(h, c, i)
    else:
        c.called_unknown[i] += 1
    _pass_values(h, c, at, 1)
    c.place[AT] = at + 1


@inlined
def _step_back(h: History, c: Cursor) -> None:
    at = c.place[AT] - 1
    i = int(h.event[at, WHO])
    if h.event[at, WHAT] == CALL:
        _unlink(c, i)
        _flip(h, c, i)
    elif h.event[at, WHAT] == RETURN:
        # Relink: its own links still name the neighbours that it had when it was unlinked.
        c.holder[h.op[i, SLOT]] = i
        c.open[c.open[i, PREVIOUS], NEXT] = i
        c.open[c.open[i, NEXT], PREVIOUS] = i
        _flip(h, c, i)
    else:
        c.called_unknown[i] -= 1
    _pass_values(h, c, at, -1)
    c.place[AT] = at


@bare
def _restart(h: History, c: Cursor) -> None:
    """Move before all events."""
    end = h.op.shape[0]
    c.open[end, NEXT], c.open[end, PREVIOUS] = end, end
    c.open_mask[:] = 0
    c.called_unknown[:] = 0
    c.passed[:] = 0
    c.place[AT] = 0


@inlined
def move_to(h: History, c: Cursor, event: int) -> None:
    """Move right before that event."""
    if 2 * event < c.place[AT]:  # from the start it is nearer
        _restart(h, c)
    while c.place[AT] < event:
        step_forward(h, c)
    while c.place[AT] > event:
        _step_back(h, c)
