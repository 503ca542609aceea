"""Moves the cursor between events; the list of open operations follows it both ways.

Source: Knuth's dancing links: an element taken out of a doubly linked list remembers where it
stood, so undoing in reverse order needs no search.
"""

from __future__ import annotations

import numpy as np

from checkers.kernels.compiled import inlined
from checkers.kernels.search_arrays import (
    AT,
    CALL,
    MUTATORS,
    OBSERVERS,
    OVERWRITERS,
    RETURN,
    Cursor,
    History,
)


@inlined
def _flip(h: History, c: Cursor, i: int) -> None:
    """Turn the bit of operation i in the masks of open operations."""
    word = h.slot[i] >> 6
    bit = np.uint64(1) << np.uint64(h.slot[i] & 63)
    k = h.kind[i]
    if h.observes[k]:
        c.open_mask[OBSERVERS, word] ^= bit
    else:
        c.open_mask[MUTATORS, word] ^= bit
        if h.overwrites[k]:
            c.open_mask[OVERWRITERS, word] ^= bit


@inlined
def _put_in(h: History, c: Cursor, i: int, left: int) -> None:
    c.holder[h.slot[i]] = i
    right = c.next_open[left]
    c.next_open[left] = i
    c.previous_open[i] = left
    c.next_open[i] = right
    c.previous_open[right] = i


@inlined
def _take_out(c: Cursor, i: int) -> None:
    c.next_open[c.previous_open[i]] = c.next_open[i]
    c.previous_open[c.next_open[i]] = c.previous_open[i]


@inlined
def step_forward(h: History, c: Cursor) -> None:
    """Move past the event behind the cursor."""
    at = c.place[AT]
    i = h.event[at]
    if h.what[at] == CALL:
        left = h.behind[i]
        _put_in(h, c, i, left if left >= 0 else h.kind.size)
        _flip(h, c, i)
    elif h.what[at] == RETURN:
        _take_out(c, i)
        _flip(h, c, i)
    else:
        c.called_unknown[i] += 1
    c.place[AT] = at + 1


@inlined
def _step_back(h: History, c: Cursor) -> None:
    at = c.place[AT] - 1
    i = h.event[at]
    if h.what[at] == CALL:
        _take_out(c, i)
        _flip(h, c, i)
    elif h.what[at] == RETURN:
        c.holder[h.slot[i]] = i
        c.next_open[c.previous_open[i]] = i
        c.previous_open[c.next_open[i]] = i
        _flip(h, c, i)
    else:
        c.called_unknown[i] -= 1
    c.place[AT] = at


@inlined
def move_to(h: History, c: Cursor, event: int) -> None:
    """Stand right before that event."""
    while c.place[AT] < event:
        step_forward(h, c)
    while c.place[AT] > event:
        _step_back(h, c)
