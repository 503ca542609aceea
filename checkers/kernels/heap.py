"""A binary heap of rows in an array: the first row has the greatest MERIT."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shaketable.harness.compiled import inlined

Int32s = npt.NDArray[np.int32]

MERIT = 4
"""The column by which rows are compared."""


@inlined
def swap(rows: Int32s, x: int, y: int) -> None:
    """Exchange two rows."""
    for column in range(rows.shape[1]):
        held = rows[x, column]
        rows[x, column] = rows[y, column]
        rows[y, column] = held


@inlined
def sift_up(rows: Int32s, n: int) -> None:
    """Move the last row, the n-th, up to its place."""
    while n and rows[(n - 1) >> 1, MERIT] < rows[n, MERIT]:
        swap(rows, n, (n - 1) >> 1)
        n = (n - 1) >> 1


@inlined
def pop_first(rows: Int32s, count: int) -> None:
    """Remove the first of `count` rows; count - 1 are left."""
    last = count - 1
    # The last row takes its place and sinks below every child of greater merit.
    for column in range(rows.shape[1]):
        rows[0, column] = rows[last, column]
    n = 0
    while 2 * n + 1 < last:
        child = 2 * n + 1
        if child + 1 < last and rows[child + 1, MERIT] > rows[child, MERIT]:
            child += 1
        if rows[child, MERIT] <= rows[n, MERIT]:
            break
        swap(rows, n, child)
        n = child
