"""A heap of rows, kept in an array: the row whose MERIT is greatest is the first."""

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
def rise(rows: Int32s, n: int) -> None:
    """Move the last row, the n-th, to its place."""
    while n and rows[(n - 1) >> 1, MERIT] < rows[n, MERIT]:
        swap(rows, n, (n - 1) >> 1)
        n = (n - 1) >> 1


@inlined
def drop_first(rows: Int32s, count: int) -> None:
    """Take the first of `count` rows out; count - 1 are left."""
    last = count - 1
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
