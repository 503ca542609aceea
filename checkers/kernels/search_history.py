"""Puts a history in order: events, slots, the list of open operations, who produces what."""

from __future__ import annotations

import numpy as np

from checkers.kernels.compiled import compiled
from checkers.kernels.search_arrays import (
    CALL,
    CARRIED,
    EVENTS,
    FAMILY,
    LAST_REFUSAL,
    OPEN_MAX,
    RETURN,
    UNKNOWN_CALL,
    UNKNOWN_KINDS,
    UNSEEN,
    VALUES,
    History,
    Int32s,
    Int64s,
)

VALUE = 1
"""problem.Family.VALUE."""
READ = 0
REFUSED = 1
WRITE = 2
CAS = 3
"""The codes of problem.Access."""
NO_EVENT = 2**31 - 1
"""The event of a return that never comes."""


@compiled
def build(h: History, order: Int64s, unknown_place: Int32s) -> None:
    """Fill in what of a History follows from the order of its events.

    Args:
        h: kinds, `kind`, `loose` and FAMILY, EVENTS, UNKNOWN_KINDS, VALUES are filled in.
        order: the events by time: i for the call of operation i, n + i for its return, 2n + j
            for the call of the j-th of unknown outcome. Some returns may be left out.
        unknown_place: for each of unknown outcome the place of its kind in `unknown_kind`.
    """
    count = h.kind.size
    h.returned[:] = NO_EVENT
    for at in range(order.size):
        j = order[at]
        if j < count:
            h.what[at] = CALL
            h.event[at] = j
            h.called[j] = at
        elif j < 2 * count:
            h.what[at] = RETURN
            h.event[at] = j - count
            h.returned[j - count] = at
        else:
            h.what[at] = UNKNOWN_CALL
            h.event[at] = unknown_place[j - 2 * count]
    _place_operations(h)
    _find_carried(h)
    if h.facts[FAMILY] == VALUE:
        _find_producers(h)
        _find_needs(h)


@compiled
def _place_operations(h: History) -> None:
    """Give each operation a slot, and its place among the open ones at its call."""
    count = h.kind.size
    following = np.full(count + 1, count, np.int32)
    leading = np.full(count + 1, count, np.int32)
    free = np.empty(count, np.int32)
    free_count = 0
    slots = 0
    for at in range(h.event.size):
        i = h.event[at]
        if h.what[at] == CALL:
            left, right = np.int32(count), following[count]
            while right != count and h.returned[right] < h.returned[i]:
                left, right = right, following[right]
            h.behind[i] = left if left != count else -1
            following[left] = i
            leading[i] = left
            following[i] = right
            leading[right] = i
            if free_count:
                free_count -= 1
                h.slot[i] = free[free_count]
            else:
                h.slot[i] = slots
                slots += 1
        elif h.what[at] == RETURN:
            following[leading[i]] = following[i]
            leading[following[i]] = leading[i]
            free[free_count] = h.slot[i]
            free_count += 1
    h.facts[OPEN_MAX] = slots


@compiled
def _find_carried(h: History) -> None:
    """Mark overwriters whose interval has another one inside that must happen (see `loose`)."""
    last_call = -1
    for at in range(h.event.size):
        i = h.event[at]
        if h.what[at] == RETURN and h.overwrites[h.kind[i]] and h.loose[i] != UNSEEN:
            if h.called[i] < last_call:
                h.loose[i] = CARRIED
            last_call = max(last_call, int(h.called[i]))


@compiled
def _find_producers(h: History) -> None:
    """Find who leaves which value: the first call that does, and the last before each need."""
    latest = np.full(h.facts[VALUES], -1, np.int32)
    for at in range(h.event.size):
        i = h.event[at]
        k = h.unknown_kind[i] if h.what[at] == UNKNOWN_CALL else h.kind[i]
        if h.what[at] != RETURN:
            if h.code[k] >= WRITE:
                latest[h.b[k]] = at
                h.first_made[h.b[k]] = min(h.first_made[h.b[k]], np.int32(at))
        elif h.code[k] in (READ, CAS):
            h.producer[i] = latest[h.a[k]]


@compiled
def _find_needs(h: History) -> None:
    """Find who needs which value, and until when."""
    h.facts[LAST_REFUSAL] = -1
    h.need_begin[:] = 0
    for i in range(h.kind.size):
        k = h.kind[i]
        if h.code[k] == REFUSED:
            h.facts[LAST_REFUSAL] = max(h.facts[LAST_REFUSAL], np.int64(h.returned[i]))
        elif h.code[k] != WRITE:
            h.last_need[h.a[k]] = max(h.last_need[h.a[k]], h.returned[i])
            # What need not happen dooms nobody.
            if h.loose[i] != UNSEEN:
                h.need_begin[h.a[k] + 1] += 1
    for place in range(h.facts[UNKNOWN_KINDS]):
        k = h.unknown_kind[place]
        if h.code[k] == CAS:
            h.last_need[h.a[k]] = NO_EVENT
    for v in range(h.facts[VALUES]):
        h.need_begin[v + 1] += h.need_begin[v]
    filled = h.need_begin.copy()
    for at in range(h.facts[EVENTS]):
        i = h.event[at]
        if h.what[at] == CALL and h.loose[i] != UNSEEN:
            k = h.kind[i]
            if h.code[k] in (READ, CAS):
                h.need[filled[h.a[k]]] = i
                filled[h.a[k]] += 1
