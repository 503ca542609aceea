"""What a power loss would take from one file, and what it would bring back. Pure.

The file itself always holds what was written last. Before bytes that are synced are overwritten or
cut off, they have to be saved here; a power loss puts them back, and cuts the file to the size that
was synced. So an fsync only forgets, and memory holds nothing but old bytes that were overwritten.

Source: fsync(2), msync(2); lazyfs, which keeps the new bytes in memory in place of the old ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restoration:
    """How to make a file what it was when it was synced last.

    Attributes:
        size: its size in bytes; to be set first.
        pieces: old bytes, and the positions at which they were.
    """

    size: int
    pieces: tuple[tuple[int, bytes], ...]


class UnsyncedContents:
    """The unsynced part of one file.

    Attributes:
        size: the file's size in bytes, as its readers see it.
        saved_bytes: how many old bytes are kept.
    """

    def __init__(self, size: int) -> None:
        """`size` is the size of a file of which all is synced."""
        self.size = size
        self.saved_bytes = 0
        self._synced_size = size
        self._written = Ranges()
        self._saved = Ranges()
        self._pieces: list[tuple[int, bytes]] = []

    @property
    def unsynced_bytes(self) -> int:
        """Bytes that were written and would be lost."""
        return self._written.total

    @property
    def is_resized(self) -> bool:
        """True if a power loss would change the size."""
        return self.size != self._synced_size

    @property
    def is_synced(self) -> bool:
        """True if a power loss would change nothing."""
        return not (self._written.total or self._pieces or self.is_resized)

    def to_save(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what has to be saved before [start, end) is overwritten or cut off."""
        return self._saved.missing(start, min(end, self._synced_size))

    def save(self, start: int, old: bytes) -> None:
        """Keep synced bytes, as `to_save` asked for them."""
        self._saved.add(start, start + len(old))
        self._pieces.append((start, old))
        self.saved_bytes += len(old)

    def wrote(self, start: int, end: int) -> None:
        """Record that [start, end) was written."""
        self._written.add(start, end)
        self.size = max(self.size, end)

    def resized(self, size: int) -> None:
        """Record that the file was cut to this size, or extended to it."""
        self._written.cut(size)
        self.size = size

    def sync(self) -> None:
        """Record that the file was synced."""
        self._synced_size = self.size
        self._forget()

    def lose(self) -> Restoration:
        """Lose power; return what has to be done to the file."""
        restoration = Restoration(self._synced_size, tuple(self._pieces))
        self.size = self._synced_size
        self._forget()
        return restoration

    def _forget(self) -> None:
        self._written.clear()
        self._saved.clear()
        self._pieces.clear()
        self.saved_bytes = 0


# Sets of bytes of a file, as sorted ranges [start, end).


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
