"""One file of a simulated disk: its bytes, and an undo journal of what is not durable yet."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512
"""A disk's atomic write unit: a torn write keeps or loses each sector whole."""
_LOSE, _KEEP, _SOME, _TEAR = range(4)


class Change(NamedTuple):
    """A write (or, with `data` None, a new size) that may still be lost, and its undo data."""

    position: int
    data: bytes | None
    old: bytes
    old_size: int
    size: int


class Inode:
    """A file. `view` is what a process reads, up to where it was ever written; zeros follow."""

    __slots__ = ("_dropped", "_journal", "allocated_bytes", "size", "view")

    def __init__(self, size: int) -> None:
        self.view = bytearray()
        self.size = size
        self.allocated_bytes = 0
        self._journal: list[Change] = [Change(0, None, b"", 0, size)]
        # After a failed fsync: every change since, and whether it is durable. A dropped write stays
        # in the view, since the page cache marks it clean.
        self._dropped: list[tuple[Change, bool]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Inode:
        """Return a copy that shares the changes, which are immutable."""
        copied = Inode(self.size)
        copied.view[:] = self.view
        copied.allocated_bytes = self.allocated_bytes
        copied._journal[:] = self._journal
        copied._dropped[:] = self._dropped
        return copied

    def write(self, data: bytes, position: int) -> None:
        """Write; not durable until `sync`."""
        view, size = self.view, self.size
        end = position + len(data)
        written = len(view)
        if position == written:
            old = b""
            view += data
        elif position > written:
            old = b""
            view += bytes(position - written)
            view += data
        else:
            old = bytes(view[position:end])
            view[position:end] = data
        if end > size:
            self.size = end
        self._journal.append(Change(position, data, old, size, self.size))

    def read(self, size: int, position: int) -> bytes:
        """Read; bytes that were never written are zeros."""
        end = min(position + size, self.size)
        if end <= len(self.view):
            return bytes(self.view[position:end])
        data = bytes(self.view[position:end])
        return data + bytes(max(0, end - position - len(data)))

    def grow(self, size: int) -> None:
        """Extend the file with zeros."""
        if size > self.size:
            self._journal.append(Change(0, None, b"", self.size, size))
            self.size = size

    def sync(self) -> None:
        """Make every change so far durable."""
        if self._dropped:
            self._dropped += [(change, True) for change in self._journal]
        self._journal.clear()

    def drop_unsynced(self) -> None:
        """Drop all changes as a failed fsync does: never written to disk, but still read.

        The page cache then marks the pages clean, so that a later fsync succeeds without them
        ("fsyncgate").
        """
        self._dropped += [(change, False) for change in self._journal]
        self._journal.clear()

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of writes that a crash may lose."""
        return sum(len(change.data) for change in self._journal if change.data is not None)

    def lose_unsynced(self, rng: Random) -> int:
        """Keep all, some or no unsynced writes, whole or by sector; return the bytes lost."""
        if not self._journal and not self._dropped:
            return 0
        pending, self._journal = self._journal, []
        dropped, self._dropped = self._dropped, []
        # Undo everything back to the durable state, newest first, then redo in order what survives.
        for change in reversed(pending):
            self._undo(change)
        for change, _ in reversed(dropped):
            self._undo(change)
        for change, is_durable in dropped:
            if is_durable:
                self._redo(change.position, change.data, change.size)
        way = rng.randrange(4) if pending else _KEEP
        return sum(self._lose(change, way, rng) for change in pending)

    def _lose(self, change: Change, way: int, rng: Random) -> int:
        """Redo one change, a part of it or nothing; return the bytes lost."""
        if change.data is None:
            if way == _KEEP or (way != _LOSE and rng.random() < 0.5):
                self._redo(0, None, change.size)
            return 0
        if way == _TEAR:
            lost = 0
            for at, piece in sectors(change.position, change.data):
                if rng.random() < 0.5:
                    self._redo(at, piece, 0)
                else:
                    lost += len(piece)
            return lost
        if way == _KEEP or (way == _SOME and rng.random() < 0.5):
            self._redo(change.position, change.data, 0)
            return 0
        return len(change.data)

    def flip_bit(self, position: int, bit: int) -> None:
        """Flip one bit, on the disk and in what is read."""
        self.view[position] ^= 1 << bit

    def overwrite(self, data: bytes, size: int) -> None:
        """Replace the contents as damage does, durably."""
        self.view[:] = data
        self.size = size
        self._journal.clear()
        self._dropped.clear()

    def _undo(self, change: Change) -> None:
        if change.data is not None:
            length = len(change.data)
            self.view[change.position : change.position + length] = change.old.ljust(length, b"\0")
        self.size = change.old_size

    def _redo(self, position: int, data: bytes | None, size: int) -> None:
        if data is not None:
            end = position + len(data)
            if position > len(self.view):
                self.view += bytes(position - len(self.view))
            self.view[position:end] = data
            size = end
        self.size = max(self.size, size)


def sectors(position: int, data: bytes) -> list[tuple[int, bytes]]:
    """Split a write into sectors: (position, bytes) of each piece."""
    pieces = []
    at = 0
    while at < len(data):
        room = SECTOR_BYTES - (position + at) % SECTOR_BYTES
        pieces.append((position + at, data[at : at + room]))
        at += room
    return pieces
