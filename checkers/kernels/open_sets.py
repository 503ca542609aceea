"""Decides many small registers exactly, by all states that they can be in: no search at all.

Where few operations are open at a time, the configurations that a history allows (a value, and
which open operations have taken effect) fit into a 64-bit set for each value. A call adds what
can follow from it, a return keeps the configurations in which its operation took effect. The
register is linearizable if and only if some configuration is left.

Source: Wing & Gong 1993, Lowe 2017 (just-in-time linearization), breadth first on bit sets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import compiled, inlined

READ, NOT, WRITE, CAS, SKIPPED, UNFIT = range(6)
"""What an operation does: it reads `a`, finds other than `a` (a cas that answered no), writes
`b`, swaps `a` for `b`. SKIPPED needs no place in the order; UNFIT ones are for the checker."""

LEFT, LINEARIZABLE, REFUTED = range(3)
"""LEFT: too many open operations or values, or unfit ones."""

NEVER = np.iinfo(np.int64).max
OPEN_MAX = 6
"""Operations open at a time, those of unknown outcome included: 2**6 sets of them."""
VALUES_MAX = 32

_WITHOUT = np.array(
    [
        0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F,
        0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF,
    ],
    np.uint64,
)  # fmt: skip
"""For each open operation: the sets, numbered by their bits, that do not have it."""
_SHIFT = np.array([1, 2, 4, 8, 16, 32], np.uint64)
_NONE = np.uint64(0)


@inlined
def _number(values: Any, count: int, value: int) -> Any:
    """Return the place of a value among those of this key; `count` if it is new."""
    place = 0
    while place < count and values[place] != value:
        place += 1
    return place


@inlined
def _apply(sets: Any, count: int, slot: int, code: int, a: int, b: int) -> Any:
    """Let an open operation take effect wherever it can; return whether that was news."""
    without, shift = _WITHOUT[slot], _SHIFT[slot]
    is_news = False
    if code in (READ, CAS):
        into = a if code == READ else b
        more = sets[into] | (sets[a] & without) << shift
        is_news = more != sets[into]
        sets[into] = more
    elif code == WRITE:
        after = _NONE
        for value in range(count):
            after |= sets[value]
        more = sets[b] | (after & without) << shift
        is_news = more != sets[b]
        sets[b] = more
    else:
        for value in range(count):
            if value != a:
                more = sets[value] | (sets[value] & without) << shift
                is_news = is_news or more != sets[value]
                sets[value] = more
    return is_news


@inlined
def _call(sets: Any, count: int, ends: Any, opened: Any, slot: int) -> None:
    """Add all that can follow now that the operation in `slot` is open."""
    if not _apply(sets, count, slot, opened[slot, 0], opened[slot, 1], opened[slot, 2]):
        return
    is_news = True
    while is_news:
        is_news = False
        for other in range(OPEN_MAX):
            if ends[other] >= 0 and _apply(
                sets, count, other, opened[other, 0], opened[other, 1], opened[other, 2]
            ):
                is_news = True


@inlined
def _return(sets: Any, count: int, ends: Any, slot: int) -> Any:
    """Keep what has the operation in `slot` done, and free the slot; return if anything is left."""
    left = _NONE
    for value in range(count):
        sets[value] = (sets[value] & ~_WITHOUT[slot]) >> _SHIFT[slot]
        left |= sets[value]
    ends[slot] = -1
    return left != _NONE


@inlined
def _first_end(ends: Any) -> Any:
    """Return the slot whose operation returns first, -1 if none does."""
    first = -1
    for slot in range(OPEN_MAX):
        is_open = 0 <= ends[slot] < NEVER
        if is_open and (first < 0 or ends[slot] < ends[first]):
            first = slot
    return first


@inlined
def _open(
    values: Any, count: int, sets: Any, ends: Any, opened: Any, operation: Any, end_ns: int
) -> Any:
    """Open an operation; return how many values there are then, -1 where there is no room."""
    slot = 0
    while slot < OPEN_MAX and ends[slot] >= 0:
        slot += 1
    if slot == OPEN_MAX:
        return -1
    opened[slot, 0] = operation[0]
    for side in range(1, 3):
        place = _number(values, count, operation[side])
        if place == count:
            if count == VALUES_MAX:
                return -1
            values[count] = operation[side]
            sets[count] = _NONE
            count += 1
        opened[slot, side] = place
    ends[slot] = end_ns
    _call(sets, count, ends, opened, slot)
    return count


@compiled
def decide(bounds: Any, operations: Any, times: Any, initial: int, verdicts: Any) -> None:
    """Decide each key's register.

    Args:
        bounds: key n has the rows bounds[n] to bounds[n + 1], in the order of their calls.
        operations: what each does, its `a` and its `b`; both are values of any numbering, the
            same one if the operation needs only that.
        times: when each was called and returned, NEVER where the outcome is unknown.
        initial: the first value.
        verdicts: receives LEFT, LINEARIZABLE or REFUTED for each key.
    """
    values = np.empty(VALUES_MAX, np.int64)
    sets = np.empty(VALUES_MAX, np.uint64)
    ends = np.empty(OPEN_MAX, np.int64)
    opened = np.empty((OPEN_MAX, 3), np.int64)
    for key in range(len(bounds) - 1):
        values[0], sets[0], count = initial, np.uint64(1), 1
        ends[:] = -1
        verdict = LINEARIZABLE
        last = np.iinfo(np.int64).min
        for row in range(bounds[key], bounds[key + 1]):
            code = operations[row, 0]
            if code == SKIPPED:
                continue
            if code == UNFIT or times[row, 0] < last or times[row, 0] < 0:
                verdict = LEFT
                break
            last = times[row, 0]
            slot = _first_end(ends)
            while slot >= 0 and ends[slot] < last and verdict == LINEARIZABLE:
                if not _return(sets, count, ends, slot):
                    verdict = REFUTED
                slot = _first_end(ends)
            if verdict != LINEARIZABLE:
                break
            count = _open(values, count, sets, ends, opened, operations[row], times[row, 1])
            if count < 0:
                verdict = LEFT
                break
        while verdict == LINEARIZABLE:
            slot = _first_end(ends)
            if slot < 0:
                break
            if not _return(sets, count, ends, slot):
                verdict = REFUTED
        verdicts[key] = verdict
