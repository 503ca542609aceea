"""Sets of bytes of a file, as sorted ranges [start, end). Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Ranges:
    """A set of byte positions, kept as disjoint ranges that do not touch."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """How many positions are in the set."""

    def add(self, start: int, end: int) -> None:
        """Add [start, end); nothing if it is empty."""
        if start >= end:
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
            self.total -= sum(self._ends[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]
        self.total += end - start

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of [start, end) that are not in the set, in order."""
        found = []
        at = bisect_right(self._ends, start)
        while start < end and at < len(self._starts) and self._starts[at] < end:
            if start < self._starts[at]:
                found.append((start, self._starts[at]))
            start = self._ends[at]
            at += 1
        if start < end:
            found.append((start, end))
        return found

    def cut(self, size: int) -> None:
        """Remove all positions from `size` on."""
        first = bisect_right(self._ends, size)
        gone = sum(self._ends[first:]) - sum(self._starts[first:])
        begins = self._starts[first] if first < len(self._starts) else size
        del self._starts[first:], self._ends[first:]
        self.total -= gone
        self.add(begins, size)

    def clear(self) -> None:
        """Remove all positions."""
        self._starts.clear()
        self._ends.clear()
        self.total = 0
