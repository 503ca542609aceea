"""Takes away the values of a stack that can have been at its bottom, until none can.

Time is divided into *cells*, one between each two events. A value is *certainly inside* from the
end of its push to the start of its pop; the depth of a cell is how many values are certainly
inside.

A value can be at the bottom if each of its operations can take place while no other value is
certainly inside: its interval has a cell of depth 0, or of depth 1 where the one value is itself.
Taking such a value away changes nothing for the rest: whatever order they have, it can be put
below them. So the history is linearizable iff all values can be taken away, one after the other;
and since depths only fall, their order does not matter. (Decrease and conquer.)

- A cell of depth 0 is right for every operation that covers it; one of depth 1 for those of its
  value.
- Each cell falls to 1 once and to 0 once, so each is looked at twice at the most. The next one is
  the minimum of a segment tree with range addition; which value is alone at a cell of depth 1 is
  the sum of the numbers of all that are there.
- The operations that cover a cell are found by two segment trees of the latest end: of all
  operations by their starts, and of those of each value. Each is removed once.

O(n log n) for n operations.

Source: Lee & Mathur 2025 (arXiv 2410.04581), section 5; written from a description of the method.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import bare, compiled

Int64s = npt.NDArray[np.int64]

DONE = 1 << 29
"""Added to the depth of a cell that was looked at, so that it is the minimum no more."""
GONE = -1
"""The end of an operation that was removed."""
NONE = -1
# ---- `at`: scalars
CLEARED_COUNT = 0
FACTS = 1


class Stacked(NamedTuple):
    """The values of a stack and their operations, and the trees over them.

    Trees are arrays of twice a power of two, the root at 1, leaf n at half their size + n.
    """

    inside: Int64s
    """By value: the first cell in which it is certainly inside, and the first after; (n, 2)."""
    op: Int64s
    """By operation, in the order of starts: its value, first cell, first cell after, and its place
    in the order by value and start; shape (k, 4)."""
    by_value: Int64s
    """By that order: the operation; shape (k,)."""
    first_of: Int64s
    """By value: its first place in that order, and one more element; shape (n + 1,)."""
    started: Int64s
    """By cell: how many operations start before or in it; shape (cells,)."""
    least: Int64s
    """Tree over cells: the least depth below the node, without what is added above it."""
    added: Int64s
    """Tree over cells: what is added to all depths below the node."""
    numbers: Int64s
    """Tree over cells: likewise for the sum of the numbers (from 1) of the values inside."""
    latest: Int64s
    """Tree over operations by start: the latest end."""
    latest_of: Int64s
    """Tree over operations by value and start: the latest end."""
    left: Int64s
    """By value: how many of its operations are not removed."""
    cleared: Int64s
    """Values all of whose operations are removed and that are not taken away yet; shape (n,)."""
    alone: Int64s
    """By value: the last cell in which it was found alone, NONE; linked by `alone_before`."""
    alone_before: Int64s
    """By cell: the cell in which the same value was found alone before."""
    at: Int64s
    """Scalars."""


@bare
def add(least: Int64s, added: Int64s, numbers: Int64s, first: int, stop: int, number: int) -> None:
    """Let the value of that number be inside the cells from `first` to before `stop`; - to undo."""
    sign = 1 if number > 0 else -1
    half = least.size >> 1
    low, high = first + half, stop + half
    while low < high:
        if low & 1:
            least[low] += sign
            added[low] += sign
            numbers[low] += number
            low += 1
        if high & 1:
            high -= 1
            least[high] += sign
            added[high] += sign
            numbers[high] += number
        low >>= 1
        high >>= 1
    # Only the ancestors of the two ends have children that changed.
    for leaf in (first + half, stop - 1 + half):
        node = leaf >> 1
        while node:
            least[node] = min(least[2 * node], least[2 * node + 1]) + added[node]
            node >>= 1


@bare
def next_cell(least: Int64s, added: Int64s) -> int:
    """Return a cell of the least depth, and mark it as looked at."""
    node, half = 1, least.size >> 1
    while node < half:
        node = 2 * node if least[2 * node] <= least[2 * node + 1] else 2 * node + 1
    cell = node - half
    least[node] += DONE
    node >>= 1
    while node:
        least[node] = min(least[2 * node], least[2 * node + 1]) + added[node]
        node >>= 1
    return cell


@bare
def numbers_at(numbers: Int64s, cell: int) -> int:
    """Return the sum of the numbers of the values that are inside a cell."""
    node, found = cell + (numbers.size >> 1), 0
    while node:
        found += numbers[node]
        node >>= 1
    return found


@bare
def ends_after(latest: Int64s, first: int, stop: int, cell: int) -> int:
    """Return a leaf from `first` to before `stop` whose end is after a cell, NONE without one."""
    half = latest.size >> 1
    low, high = first + half, stop + half
    node = 0
    while low < high and not node:
        if low & 1:
            if latest[low] > cell:
                node = low
            low += 1
        if high & 1 and not node:
            high -= 1
            if latest[high] > cell:
                node = high
        low >>= 1
        high >>= 1
    if not node:
        return NONE
    while node < half:
        node = 2 * node if latest[2 * node] > cell else 2 * node + 1
    return node - half


@bare
def forget(latest: Int64s, leaf: int) -> None:
    """Remove a leaf's end."""
    node = leaf + (latest.size >> 1)
    latest[node] = GONE
    node >>= 1
    while node:
        latest[node] = max(latest[2 * node], latest[2 * node + 1])
        node >>= 1


@bare
def remove(s: Stacked, op: int) -> None:
    """Remove an operation that can take place; note its value if that was the last one."""
    value = s.op[op, 0]
    forget(s.latest, op)
    forget(s.latest_of, s.op[op, 3])
    s.left[value] -= 1
    if not s.left[value]:
        s.cleared[s.at[CLEARED_COUNT]] = value
        s.at[CLEARED_COUNT] += 1


@bare
def remove_all_at(s: Stacked, cell: int) -> None:
    """Remove every operation that covers a cell of depth 0: the stack can be empty there."""
    while True:
        op = ends_after(s.latest, 0, s.started[cell], cell)
        if op == NONE:
            return
        remove(s, op)


@bare
def remove_own_at(s: Stacked, value: int, cell: int) -> None:
    """Remove the operations of a value that cover a cell in which it is alone."""
    first, stop = s.first_of[value], s.first_of[value + 1]
    low, high = first, stop  # those that start before or in the cell: a prefix
    while low < high:
        middle = (low + high) >> 1
        if s.op[s.by_value[middle], 1] <= cell:
            low = middle + 1
        else:
            high = middle
    while True:
        place = ends_after(s.latest_of, first, low, cell)
        if place == NONE:
            return
        remove(s, s.by_value[place])


@bare
def take_away(s: Stacked, value: int) -> None:
    """Take a value away: where it was alone, the stack can be empty now."""
    add(s.least, s.added, s.numbers, s.inside[value, 0], s.inside[value, 1], -(value + 1))
    cell = s.alone[value]
    while cell != NONE:
        remove_all_at(s, cell)
        cell = s.alone_before[cell]


@compiled
def take_away_all(s: Stacked) -> None:
    """Take away all values that can be; those with operations `left` are stuck."""
    for value in range(s.inside.shape[0]):
        add(s.least, s.added, s.numbers, s.inside[value, 0], s.inside[value, 1], value + 1)
    while True:
        while s.at[CLEARED_COUNT]:
            s.at[CLEARED_COUNT] -= 1
            take_away(s, s.cleared[s.at[CLEARED_COUNT]])
        depth = s.least[1]
        if depth > 1:
            return
        cell = next_cell(s.least, s.added)
        if not depth:
            remove_all_at(s, cell)
            continue
        value = numbers_at(s.numbers, cell) - 1
        s.alone_before[cell] = s.alone[value]
        s.alone[value] = cell
        remove_own_at(s, value, cell)
