"""Decides many small registers exactly, by the set of all their configurations: no search.

A configuration is a value, and the set of open operations that have taken effect. With at most
six open operations there are 64 such sets, so the configurations of one value are the bits of one
64-bit word. A call adds all configurations that can follow; a return keeps those in which its
operation has taken effect. This is a breadth-first search over the return events that keeps every
reachable configuration, so the register is linearizable if and only if one is left at the end.

Source: Wing & Gong 1993 for the configurations; Lowe 2017 for deciding at returns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from shaketable.harness.compiled import compiled, inlined

READ, NOT, WRITE, CAS, SKIPPED, UNFIT = range(6)
"""What an operation does: it reads `a`, finds another value than `a` (a cas that answered no),
writes `b`, swaps `a` for `b`. A SKIPPED one needs no place in the order; a key with an UNFIT one is
left to the checker."""

UNDECIDED, LINEARIZABLE, REFUTED = range(3)
"""UNDECIDED: too many open operations or values, or unfit ones."""

NEVER = np.iinfo(np.int64).max
OPEN_MAX = 6
"""Operations open at a time, indeterminate ones included: 2**6 sets of them."""
VALUES_MAX = 32

_WITHOUT = np.array(
    [
        0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F,
        0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF,
    ],
    np.uint64,
)  # fmt: skip
"""For each slot: the sets, as bits of a word, that do not contain its operation."""
_SHIFT = np.array([1, 2, 4, 8, 16, 32], np.uint64)
_NONE = np.uint64(0)


@inlined
def _number(values: Any, count: int, value: int) -> Any:
    """Return the number of a value among those of this key; `count` if it is new."""
    place = 0
    while place < count and values[place] != value:
        place += 1
    return place


@inlined
def _apply(sets: Any, count: int, slot: int, code: int, a: int, b: int) -> Any:
    """Let an open operation take effect in every configuration where it can.

    Return whether that added any. To add the operation to a set, its bit is added to the set's
    number: all sets without it are shifted at once.
    """
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
    """Add all configurations that can follow now that the operation in `slot` is open."""
    # If it adds nothing, neither do the others: the sets were closed before. Else to a fixpoint.
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
    """Keep the configurations with `slot` done, and free the slot; return if any is left."""
    left = _NONE
    for value in range(count):
        sets[value] = (sets[value] & ~_WITHOUT[slot]) >> _SHIFT[slot]
        left |= sets[value]
    ends[slot] = -1
    return left != _NONE


@inlined
def _first_end(ends: Any) -> Any:
    """Return the slot whose operation returns first, -1 if none returns."""
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
    """Open an operation; return how many values there are then, -1 if there is no room."""
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
    """Decide each key's register; keys are independent, since linearizability is local.

    Args:
        bounds: key n has the rows bounds[n] to bounds[n + 1], in the order of their calls.
        operations: what each does, its `a` and its `b`: values by any numbering, twice the same
            one if the operation has only one.
        times: when each was called and returned, NEVER where the outcome is unknown.
        initial: the first value.
        verdicts: receives UNDECIDED, LINEARIZABLE or REFUTED for each key.
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
                verdict = UNDECIDED
                break
            last = times[row, 0]
            # Returns before this call, in order; at equal times calls come first.
            slot = _first_end(ends)
            while slot >= 0 and ends[slot] < last and verdict == LINEARIZABLE:
                if not _return(sets, count, ends, slot):
                    verdict = REFUTED
                slot = _first_end(ends)
            if verdict != LINEARIZABLE:
                break
            count = _open(values, count, sets, ends, opened, operations[row], times[row, 1])
            if count < 0:
                verdict = UNDECIDED
                break
        # An indeterminate operation never returns, so it may take effect, and never has to.
        while verdict == LINEARIZABLE:
            slot = _first_end(ends)
            if slot < 0:
                break
            if not _return(sets, count, ends, slot):
                verdict = REFUTED
        verdicts[key] = verdict
