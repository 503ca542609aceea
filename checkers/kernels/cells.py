"""What covers the cells between the events of a history: the greatest of some intervals at each.

Source: the painter's algorithm with path compression (Tarjan 1975, union-find).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import bare, compiled

Int64s = npt.NDArray[np.int64]


@bare
def next_bare(free: Int64s, cell: int) -> int:
    """Return the first cell from `cell` on that is not painted; halve the way there."""
    while free[cell] != cell:
        free[cell] = free[free[cell]]
        cell = free[cell]
    return cell


@compiled
def paint(first: Int64s, stop: Int64s, order: Int64s, free: Int64s, by: Int64s) -> None:
    """Write into `by`, for each cell, the first interval of `order` that covers it.

    Args:
        first: the first cell of each interval.
        stop: the first cell after it.
        order: the intervals, the greatest first.
        free: the numbers from 0 to the count of cells, that one included; it is used up.
        by: by cell; stays as it is where no interval covers the cell.
    """
    for interval in order:
        cell = next_bare(free, first[interval])
        while cell < stop[interval]:
            by[cell] = interval
            free[cell] = cell + 1
            cell = next_bare(free, cell + 1)


@compiled
def least_of_each(value: Int64s, first: Int64s, stop: Int64s, tree: Int64s, least: Int64s) -> None:
    """Write into `least` the least value among the cells of each interval, none of them empty.

    Args:
        value: by cell.
        first: the first cell of each interval.
        stop: the first cell after it.
        tree: room for twice as many values as there are cells.
        least: by interval.
    """
    size = value.size
    tree[size:] = value
    for node in range(size - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
    for interval in range(first.size):
        low, high = first[interval] + size, stop[interval] + size
        found = tree[low]
        while low < high:
            if low & 1:
                found = min(found, tree[low])
                low += 1
            if high & 1:
                high -= 1
                found = min(found, tree[high])
            low >>= 1
            high >>= 1
        least[interval] = found


@compiled
def earliest_ends(
    known: Int64s, order: Int64s, asked: Int64s, asked_order: Int64s, least: Int64s, found: Int64s
) -> None:
    """Write into `found` the earliest end of what comes after a cell and is lower, for each asked.

    Args:
        known: rows of (height, call, end).
        order: these rows by ascending height.
        asked: rows of (height, cell): of lower ones that are called in the cell or after it.
        asked_order: these rows by ascending height.
        least: room for one element more than there are cells, filled with the greatest number (a
            Fenwick tree of minima over the cells from the last one to the first).
        found: by row of `asked`; stays as it is where there is none.
    """
    size = least.size
    place = 0
    for row in asked_order:
        while place < order.size and known[order[place], 0] < asked[row, 0]:
            call, end = known[order[place], 1], known[order[place], 2]
            at = size - 1 - call
            while at < size:
                least[at] = min(least[at], end)
                at += at & -at
            place += 1
        at = size - 1 - asked[row, 1]
        while at > 0:
            found[row] = min(found[row], least[at])
            at -= at & -at
