"""Arranges a history for the search: events, slots, the list of open operations, producers.

A cursor moves over it, from event to event.
"""

from __future__ import annotations

import numpy as np

from shaketable.checkers.kernels.search_arrays import (
    ABOUT,
    AT,
    CALL,
    CALLED,
    CARRIED,
    CODE,
    CONSUMED,
    CONSUMED_BY,
    EVENTS,
    FAMILY,
    FIRST_LACKING,
    FIRST_PRODUCED,
    INDETERMINATE,
    KIND,
    LAST_NEED,
    LAST_REFUSAL,
    MUTATORS,
    NEED_START,
    NEXT,
    OBSERVERS,
    OBSERVES,
    OPEN_MAX,
    OPTIONAL,
    OVERWRITERS,
    OVERWRITES,
    PREDECESSOR,
    PREVIOUS,
    PRODUCED,
    PRODUCED_BY,
    PRODUCER,
    RETURN,
    RETURNED,
    ROOM_START,
    SLOT,
    UNKNOWN_CALL,
    UNKNOWN_KINDS,
    VALUES,
    WHAT,
    WHO,
    A,
    B,
    Cursor,
    History,
    Int32s,
    Int64s,
)
from shaketable.harness.compiled import bare, compiled, inlined

VALUE = 1
"""problem.Family.VALUE."""
VECTOR = 2
"""problem.Family.VECTOR."""
READ = 0
REFUSED = 1
WRITE = 2
CAS = 3
"""The codes of problem.Access."""
NEVER = 2**63 - 1
"""After all times."""
NO_EVENT = 2**31 - 1
"""The event of a return that does not exist."""


@inlined
def consumes(h: History, i: int) -> bool:
    """True if operation i is a swap that must happen and consumes the value that it needs."""
    k = h.op[i, KIND]
    return bool(
        h.does[k, CODE] == CAS
        and h.does[k, A] != h.does[k, B]
        and h.op[i, OPTIONAL] != INDETERMINATE
    )


@compiled
def split_indeterminate(
    kind: Int32s, call_ns: Int64s, return_ns: Int64s, code: Int64s, ab: tuple[Int64s, Int64s],
    values: int, counted_max: int,
) -> tuple[Int64s, Int64s, int, Int64s, Int32s, Int32s]:  # fmt: skip
    """Separate the operations of known outcome from the indeterminate ones.

    An indeterminate operation is left out if no operation that returns after its call can need
    its effect: it need not happen. If there are more than `counted_max` kinds of the others,
    those that are the only one of their kind become optional operations among the known ones.

    Returns:
        the known operations, followed by those only ones; when each returns, or stops to matter;
        how many only ones there are; the operations counted by kind, their kinds, and for each
        of them the place of its kind.
    """
    total = kind.size
    until = _needed_until(kind, return_ns, code, ab, values)
    count = np.zeros(code.size, np.int32)
    kinds, unknown = 0, 0
    for i in range(total):
        if return_ns[i] == NEVER and (values == 0 or until[ab[1][kind[i]]] >= call_ns[i]):
            unknown += 1
            count[kind[i]] += 1
            kinds += count[kind[i]] == 1
    alone_from = 1 if kinds <= counted_max else 2
    known = np.empty(total, np.int64)
    returned = np.empty(total, np.int64)
    counted = np.empty(unknown, np.int64)
    counted_place = np.empty(unknown, np.int32)
    counted_kind = np.empty(kinds, np.int32)
    place_of = np.full(code.size, -1, np.int32)
    known_count, counted_count, kind_count = 0, 0, 0
    for i in range(total):
        k = kind[i]
        if return_ns[i] != NEVER:
            known[known_count], returned[known_count] = i, return_ns[i]
            known_count += 1
        elif count[k] >= alone_from and (values == 0 or until[ab[1][k]] >= call_ns[i]):
            if place_of[k] < 0:
                place_of[k] = kind_count
                counted_kind[kind_count] = k
                kind_count += 1
            counted[counted_count], counted_place[counted_count] = i, place_of[k]
            counted_count += 1
    seen = known_count
    if alone_from == 2:
        for i in range(total):
            k = kind[i]
            matters = values == 0 or until[ab[1][k]] >= call_ns[i]
            if return_ns[i] == NEVER and count[k] == 1 and matters:
                known[known_count] = i
                returned[known_count] = until[ab[1][k]] if values else NEVER
                known_count += 1
    return (
        known[:known_count], returned[:known_count], known_count - seen,
        counted[:counted_count], counted_kind[:kind_count], counted_place[:counted_count],
    )  # fmt: skip


@compiled
def _needed_until(
    kind: Int32s, return_ns: Int64s, code: Int64s, ab: tuple[Int64s, Int64s], values: int
) -> Int64s:
    """Return for each value the last return of an operation that may need it."""
    until = np.full(values, -NEVER, np.int64)
    if not values:
        return until
    refused = -NEVER
    for i in range(kind.size):
        does = code[kind[i]]
        if does in (READ, CAS):
            until[ab[0][kind[i]]] = max(until[ab[0][kind[i]]], return_ns[i])
        elif does == REFUSED:
            refused = max(refused, return_ns[i])
    return np.maximum(until, refused)


def build(
    h: History, call_order: Int64s, return_order: Int64s, unknown_order: Int64s,
    unknown_place: Int32s, time_ns: tuple[Int64s, Int64s, Int64s],
) -> None:  # fmt: skip
    """Fill in the parts of a History that follow from the order of its events.

    Args:
        h: its kinds, the columns KIND and OPTIONAL, and FAMILY, EVENTS, UNKNOWN_KINDS, VALUES
            are filled in.
        call_order: sorts the operations by their calls.
        return_order: sorts those that return by their returns.
        unknown_order: sorts the counted indeterminate operations by their calls.
        unknown_place: for each of these the place of its kind in `unknown_kind`.
        time_ns: times (ns) of calls, of returns, and of indeterminate calls. Intervals are
            closed: at equal times calls come before returns.
    """
    # One kernel after the other: compiled into one they take three times as long to compile.
    _merge(h, call_order, return_order, unknown_order, unknown_place, time_ns)
    _group_unknown(h, unknown_order, unknown_place)
    _place_operations(h)
    _find_carried(h)
    if h.facts[FAMILY] == VALUE:
        _find_producers(h)
        _find_needs(h)
        _find_unreachable(h)
        _find_room(h)


@compiled
def _merge(
    h: History, call_order: Int64s, return_order: Int64s, unknown_order: Int64s,
    unknown_place: Int32s, time_ns: tuple[Int64s, Int64s, Int64s],
) -> None:  # fmt: skip
    """Merge calls, returns and indeterminate calls by time; calls first at equal times."""
    event, op = h.event, h.op
    call_ns, return_ns, unknown_ns = time_ns
    op[:, RETURNED] = NO_EVENT
    event[:, ABOUT] = -1
    calls, returns, unknown = 0, 0, 0
    for at in range(event.shape[0]):
        now = NEVER
        if calls < call_order.size:
            now = call_ns[call_order[calls]]
            event[at, WHAT] = CALL
        if unknown < unknown_order.size and unknown_ns[unknown_order[unknown]] < now:
            now = unknown_ns[unknown_order[unknown]]
            event[at, WHAT] = UNKNOWN_CALL
        if returns < return_order.size and return_ns[return_order[returns]] < now:
            event[at, WHAT] = RETURN
        if event[at, WHAT] == CALL:
            i = call_order[calls]
            op[i, CALLED] = at
            calls += 1
        elif event[at, WHAT] == RETURN:
            i = return_order[returns]
            op[i, RETURNED] = at
            returns += 1
        else:
            i = unknown_place[unknown_order[unknown]]
            unknown += 1
        event[at, WHO] = i


@compiled
def _group_unknown(h: History, unknown_order: Int64s, unknown_place: Int32s) -> None:
    """List the indeterminate operations by kind, then by call (counting sort)."""
    h.unknown_start[:] = 0
    for place in unknown_place:
        h.unknown_start[place + 1] += 1
    for place in range(h.unknown_kind.size):
        h.unknown_start[place + 1] += h.unknown_start[place]
    filled = h.unknown_start.copy()
    for j in unknown_order:
        h.unknown_member[filled[unknown_place[j]]] = j
        filled[unknown_place[j]] += 1


@compiled
def _place_operations(h: History) -> None:
    """Give each operation a slot, and its place among the open ones at its call.

    A slot is free again after the return, so masks are as wide as the most operations that are
    open at a time, not as the history is long.
    """
    event, op = h.event, h.op
    count = op.shape[0]
    following = np.full(count + 1, count, np.int32)
    leading = np.full(count + 1, count, np.int32)
    free = np.empty(count, np.int32)
    free_count = 0
    slots = 0
    for at in range(event.shape[0]):
        i = event[at, WHO]
        if event[at, WHAT] == CALL:
            left, right = count, int(following[count])
            while right != count and op[right, RETURNED] < op[i, RETURNED]:
                left, right = right, int(following[right])
            op[i, PREDECESSOR] = left if left != count else -1
            following[left] = i
            leading[i] = left
            following[i] = right
            leading[right] = i
            if free_count:
                free_count -= 1
                op[i, SLOT] = free[free_count]
            else:
                op[i, SLOT] = slots
                slots += 1
        elif event[at, WHAT] == RETURN:
            following[leading[i]] = following[i]
            leading[following[i]] = leading[i]
            free[free_count] = op[i, SLOT]
            free_count += 1
    h.facts[OPEN_MAX] = slots


@compiled
def _find_carried(h: History) -> None:
    """Mark overwriters whose interval contains that of another that must happen (see OPTIONAL)."""
    event, op, does = h.event, h.op, h.does
    last_call = -1  # of the overwriters that have returned: if later, it lies inside
    for at in range(event.shape[0]):
        i = event[at, WHO]
        if (
            event[at, WHAT] == RETURN
            and does[op[i, KIND], OVERWRITES]
            and op[i, OPTIONAL] != INDETERMINATE
        ):
            if op[i, CALLED] < last_call:
                op[i, OPTIONAL] = CARRIED
            last_call = max(last_call, int(op[i, CALLED]))


@compiled
def _find_producers(h: History) -> None:
    """Find the first call that produces each value, and the last one before each need."""
    event, op, does, value = h.event, h.op, h.does, h.value
    latest = np.full(h.facts[VALUES], -1, np.int32)
    h.facts[FIRST_LACKING] = -1
    for at in range(event.shape[0]):
        i = event[at, WHO]
        k = h.unknown_kind[i] if event[at, WHAT] == UNKNOWN_CALL else op[i, KIND]
        if event[at, WHAT] != RETURN:
            if does[k, CODE] >= WRITE:
                latest[does[k, B]] = at
                value[does[k, B], FIRST_PRODUCED] = min(
                    value[does[k, B], FIRST_PRODUCED], np.int32(at)
                )
        elif does[k, CODE] in (READ, CAS):
            op[i, PRODUCER] = latest[does[k, A]]
            lacks = (
                latest[does[k, A]] < 0
                and value[does[k, A], FIRST_PRODUCED] >= 0
                and op[i, OPTIONAL] != INDETERMINATE
            )
            if lacks and h.facts[FIRST_LACKING] < 0:
                h.facts[FIRST_LACKING] = at


@compiled
def _find_unreachable(h: History) -> None:
    """Mark values as never produced if all that produces them needs such a value (a fixpoint)."""
    does, value = h.does, h.value
    is_produced = value[:, FIRST_PRODUCED] < 0
    swaps = 0
    for k in range(does.shape[0]):
        if does[k, CODE] == WRITE:
            is_produced[does[k, B]] = True
        elif does[k, CODE] == CAS:
            swaps += 1
    more = swaps > 0
    while more:
        more = False
        for k in range(does.shape[0]):
            if does[k, CODE] == CAS and is_produced[does[k, A]] and not is_produced[does[k, B]]:
                is_produced[does[k, B]] = True
                more = True
    for v in range(is_produced.size):
        if not is_produced[v]:
            value[v, FIRST_PRODUCED] = NO_EVENT


@compiled
def _find_needs(h: History) -> None:
    """Find which operations need each value, and the last return of them."""
    event, op, does, value = h.event, h.op, h.does, h.value
    h.facts[LAST_REFUSAL] = -1
    value[:, NEED_START] = 0
    for i in range(op.shape[0]):
        k = op[i, KIND]
        if does[k, CODE] == REFUSED:
            h.facts[LAST_REFUSAL] = max(h.facts[LAST_REFUSAL], np.int64(op[i, RETURNED]))
        elif does[k, CODE] != WRITE:
            value[does[k, A], LAST_NEED] = max(value[does[k, A], LAST_NEED], op[i, RETURNED])
            # An optional operation cannot doom a node: it need not happen.
            if op[i, OPTIONAL] != INDETERMINATE:
                value[does[k, A] + 1, NEED_START] += 1
    for place in range(h.facts[UNKNOWN_KINDS]):
        k = h.unknown_kind[place]
        if does[k, CODE] == CAS:
            value[does[k, A], LAST_NEED] = NO_EVENT
    for v in range(h.facts[VALUES]):
        value[v + 1, NEED_START] += value[v, NEED_START]
    filled = value[:, NEED_START].copy()
    for at in range(h.facts[EVENTS]):
        i = event[at, WHO]
        if event[at, WHAT] == CALL and op[i, OPTIONAL] != INDETERMINATE:
            k = op[i, KIND]
            if does[k, CODE] in (READ, CAS):
                h.need[filled[does[k, A]]] = i
                filled[does[k, A]] += 1


@compiled
def _find_room(h: History) -> None:
    """Count producing calls and consuming returns of each value, and their least differences.

    Fills in ABOUT, PRODUCED_BY and CONSUMED_BY going forward, and `room` going back.
    """
    event, op, does, value, room = h.event, h.op, h.does, h.value, h.room
    values = int(h.facts[VALUES])
    passed = np.zeros((values, 2), np.int32)
    for at in range(event.shape[0]):
        i, what = event[at, WHO], event[at, WHAT]
        k = h.unknown_kind[i] if what == UNKNOWN_CALL else op[i, KIND]
        if what == RETURN:
            if consumes(h, i):
                v = does[k, A]
                event[at, ABOUT] = v
                passed[v, CONSUMED] += 1
                op[i, PRODUCED_BY], op[i, CONSUMED_BY] = passed[v, PRODUCED], passed[v, CONSUMED]
        elif does[k, CODE] >= WRITE:
            event[at, ABOUT] = does[k, B]
            passed[does[k, B], PRODUCED] += 1
    start = 0
    for v in range(values):
        value[v, ROOM_START] = start
        room[start + passed[v, PRODUCED] + passed[v, CONSUMED]] = (
            passed[v, PRODUCED] - passed[v, CONSUMED]
        )
        start += passed[v, PRODUCED] + passed[v, CONSUMED] + 1
    for at in range(event.shape[0] - 1, -1, -1):
        v = event[at, ABOUT]
        if v >= 0:
            passed[v, event[at, WHAT] & CONSUMED] -= 1
            produced, consumed = passed[v, PRODUCED], passed[v, CONSUMED]
            place = value[v, ROOM_START] + produced + consumed
            room[place] = min(room[place + 1], produced - consumed)


# Moves the cursor between events; the list of open operations follows it both ways.
#
# Source: Knuth's dancing links: an element unlinked from a doubly linked list keeps its own links,
# so unlinking is undone in constant time if it is undone in reverse order.


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
