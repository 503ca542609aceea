"""What survives a power loss: the names of a volatile file system, and what is in its files. Pure.

A power loss undoes what happened to a name since its folder was synced last, or the file itself: an
fsync keeps the names of what is synced, and of new folders above it, as ext4, XFS and btrfs do
(POSIX asks for less). A rename from one folder to another is kept or lost as a whole: when one of
the two folders is synced, so is the other.

Files and folders are numbers here (inodes). One that has no name any more, and none that a power
loss would bring back, and is not held (open), is free.

A file itself always holds what was written last. Before bytes that are synced are overwritten or
cut off, they have to be saved here; a power loss puts them back, and cuts the file to the size that
was synced. So an fsync only forgets, and memory holds nothing but old bytes that were overwritten.

Source: fsync(2), rename(2), msync(2); Linux, Documentation/filesystems/ext4/journal.rst;
"All File Systems Are Not Created Equal" (OSDI 2014); lazyfs, which keeps the new bytes in memory in
place of the old ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

ROOT: Final = 1
"""The number of the topmost folder, as FUSE has it."""


class VolatileNames:
    """Folders and their entries: name -> inode, now and when the folder was synced."""

    def __init__(self) -> None:
        self._now: dict[int, dict[str, int]] = {ROOT: {}}
        self._place: dict[int, tuple[int, str]] = {}  # of folders
        self._synced: dict[int, dict[str, int | None]] = {}  # where it differs from what is now
        self._tied: dict[int, set[int]] = {}
        self._references = Counter({ROOT: 1})
        self._unreferenced: list[int] = []
        self._free: list[int] = []

    # ---- as they are ------------------------------------------------------------------------

    def is_folder(self, inode: int) -> bool:
        """True if it is a folder."""
        return inode in self._now

    def entries(self, folder: int) -> Mapping[str, int]:
        """Return the entries of a folder."""
        return self._now[folder]

    def place(self, folder: int) -> tuple[int, str]:
        """Return the parent of a folder, and its name there. KeyError: it has none."""
        return self._place[folder]

    def path(self, folder: int) -> PurePosixPath:
        """Return the path of a folder from the root."""
        names: list[str] = []
        while folder != ROOT:
            folder, name = self._place[folder]
            names.append(name)
        return PurePosixPath(*reversed(names))

    def walk(self) -> Iterator[tuple[PurePosixPath, int]]:
        """Yield all paths from the root and their inodes; a folder before what is in it."""
        folders = [(PurePosixPath(), ROOT)]
        while folders:
            path, folder = folders.pop()
            for name, inode in self._now[folder].items():
                yield path / name, inode
                if inode in self._now:
                    folders.append((path / name, inode))

    def unsynced_entries(self) -> int:
        """Count the entries that a power loss would change."""
        return sum(map(len, self._synced.values()))

    # ---- what changes them --------------------------------------------------------------------

    def add_folder(self, inode: int) -> None:
        """Add an empty folder; it gets a name by `put`."""
        self._now[inode] = {}

    def put(self, folder: int, name: str, inode: int | None) -> None:
        """Let a name stand for an inode; None: for none."""
        before = self._now[folder].get(name)
        if before == inode:
            return
        synced = self._synced.setdefault(folder, {})
        if name in synced:
            self._drop_later(before)
        else:
            synced[name] = before
        if inode is None:
            del self._now[folder][name]
        else:
            self._now[folder][name] = inode
            self._references[inode] += 1
            if inode in self._now:
                self._place[inode] = folder, name
        if synced[name] == inode:
            del synced[name]
            self._drop_later(inode)
        self._collect()

    def rename(self, folder: int, name: str, to: int, to_name: str, *, swaps: bool = False) -> None:
        """Rename an entry; what had that name loses it, or with `swaps` gets the other's."""
        inode, other = self._now[folder][name], self._now[to].get(to_name)
        self.hold(inode)
        if folder != to:
            self._tied.setdefault(folder, set()).add(to)
            self._tied.setdefault(to, set()).add(folder)
        self.put(folder, name, other if swaps else None)
        self.put(to, to_name, inode)
        self.release(inode)

    def hold(self, inode: int) -> None:
        """Keep an inode though it may have no name: it is open."""
        self._references[inode] += 1

    def release(self, inode: int) -> None:
        """End one `hold`."""
        self._drop_later(inode)
        self._collect()

    # ---- what keeps and loses them -----------------------------------------------------------

    def sync_names(self, inode: int) -> None:
        """Keep what happened to the names of a file or folder, and of new folders above them."""
        inodes, found = [inode], {inode}
        while inodes and self._synced:
            each = inodes.pop()
            for folder, names in list(self._synced.items()):
                now = self._now[folder]
                kept = {name for name, old in names.items() if each in (old, now.get(name))}
                if folder not in found and any(now.get(name) == each for name in kept):
                    found.add(folder)
                    inodes.append(folder)
                for name in kept:
                    self._drop_later(names.pop(name))
                if not names:
                    del self._synced[folder]
        self._collect()

    def sync(self, folder: int) -> None:
        """Keep the entries of a folder, and of those that a rename ties to it, and their names."""
        folders, found = [folder], {folder}
        while folders:
            each = folders.pop()
            for old in self._synced.pop(each, {}).values():
                self._drop_later(old)
            further = self._tied.pop(each, set()) - found
            found |= further
            folders += further
        self._collect()
        for each in found:
            self.sync_names(each)

    def sync_all(self) -> None:
        """Keep all entries as they are."""
        for folder in list(self._synced):
            self.sync(folder)
        self._tied.clear()

    def lose(self) -> None:
        """Lose power: all entries are what they were when their folders were synced."""
        for folder, names in self._synced.items():
            for name, old in names.items():
                self._drop_later(self._now[folder].pop(name, None))
                if old is not None:
                    self._now[folder][name] = old
        self._synced.clear()
        self._tied.clear()
        self._place = {
            inode: (folder, name)
            for folder, names in self._now.items()
            for name, inode in names.items()
            if inode in self._now
        }
        self._collect()

    def take_free(self) -> list[int]:
        """Return the inodes that became free since this was asked last."""
        free, self._free = self._free, []
        return free

    def _drop_later(self, inode: int | None) -> None:
        """Remove a reference; `_collect` then frees what has none."""
        if inode is None:
            return
        self._references[inode] -= 1
        if not self._references[inode]:
            self._unreferenced.append(inode)

    def _collect(self) -> None:
        """Free what has no reference, and what only a free folder refers to."""
        while self._unreferenced:
            inode = self._unreferenced.pop()
            if self._references.get(inode) != 0:  # it got a name again, or is free already
                continue
            del self._references[inode]
            self._free.append(inode)
            self._place.pop(inode, None)
            for old in (*self._now.pop(inode, {}).values(), *self._synced.pop(inode, {}).values()):
                self._drop_later(old)


# What a power loss would take from one file, and what it would bring back.


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
