"""Fixed-size segment files, each named by the position of its first byte.

Used for data and index. Files are pre-sized, with zeros after the last byte written.
Source: DLedger's MmapFileList (MappedFileQueue in RocketMQ); DLEDGER.md B.3.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shaketable.system.store.disk import Buffer, Disk, File, StoreError

NAME_DIGITS = 20
_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)


class OutsideLog(StoreError):  # noqa: N818 - a failed lookup, like LookupError
    """The log does not hold the requested index or byte range."""


class SegmentFiles:
    """The files of one folder. One thread writes; `read` may run in another at the same time."""

    def __init__(self, disk: Disk, folder: str, file_bytes: int, *, reserve: bool) -> None:
        self.folder = folder
        self.file_bytes = file_bytes
        self._disk = disk
        self._reserve = reserve
        self._lock = threading.Lock()  # no file is closed while it is read
        self._dirty: dict[int, File] = {}
        self._files: dict[int, File] = {}
        for name in disk.names(folder):
            if len(name) == NAME_DIGITS and name.isdecimal() and int(name) % file_bytes == 0:
                self._files[int(name)] = disk.open(self.path(int(name)))

    @property
    def starts(self) -> list[int]:
        """Start positions of the files, in order."""
        return sorted(self._files)

    def path(self, start: int) -> str:
        """Return the path of the file that starts at `start`."""
        return f"{self.folder}/{start:0{NAME_DIGITS}}"

    def start_of(self, position: int) -> int:
        """Return the start of the file that contains `position`."""
        return position // self.file_bytes * self.file_bytes

    def has(self, position: int) -> bool:
        """Whether the file that contains `position` exists."""
        return self.start_of(position) in self._files

    def create(self, position: int) -> None:
        """Create the file that contains `position`; its name is durable on return."""
        start = self.start_of(position)
        assert start not in self._files
        file = self._disk.create(self.path(start), self.file_bytes, reserve=self._reserve)
        try:
            self.sync_names()
        except StoreError:  # a full disk: the next attempt creates it anew, and syncs its name
            file.close()
            raise
        with self._lock:
            self._files[start] = file

    def read(self, position: int, size: int) -> bytes:
        """Read within one file; fewer bytes at its end. Raises OutsideLog if it does not exist."""
        start = self.start_of(position)
        with self._lock:
            file = self._files.get(start)
            if file is None:
                raise OutsideLog(f"{self.path(start)} does not exist")
            return file.pread(min(size, start + self.file_bytes - position), position - start)

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write within one file, which must exist."""
        start = self.start_of(position)
        self._dirty[start] = file = self._files[start]
        file.pwrite(buffers, position - start)

    def write_across(self, data: Buffer, position: int) -> None:
        """Write from `position` on across file boundaries; create missing files."""
        view = memoryview(data)
        while view:
            if not self.has(position):
                self.create(position)
            room = self.start_of(position) + self.file_bytes - position
            self.write([view[:room]], position)
            position += len(view[:room])
            view = view[room:]

    def fill_up(self, position: int) -> None:
        """Grow the file that contains `position` to full size (a crash may leave it short)."""
        start = self.start_of(position)
        if self.has(position) and self._files[start].size < self.file_bytes:
            self._dirty[start] = self._files[start]
            self._files[start].grow(self.file_bytes)

    def data_end(self, position: int) -> int:
        """Return the end of the last nonzero byte from `position` on in its file."""
        end, start = position, self.start_of(position)
        if start not in self._files:
            return end
        file = self._files[start]
        for first, stop in file.data_ranges(position - start):
            for at in range(first, stop, _CHUNK_BYTES):
                chunk = file.pread(min(_CHUNK_BYTES, stop - at), at)
                if chunk != _ZEROS[: len(chunk)]:
                    end = max(end, start + at + len(chunk.rstrip(b"\0")))
        return end

    def cut(self, position: int, until: int) -> None:
        """Zero `position` to `until` in one file and remove later files, durable on return.

        The zeros are durable before files are removed, so a scan from the front stops at
        `position` whatever a crash leaves: no later file can continue the log.
        """
        start = self.start_of(position)
        assert until <= start + self.file_bytes
        if start in self._files:
            self.zero(position, until)
        self.sync()
        self._remove([other for other in self.starts if other > start])

    def zero(self, position: int, until: int) -> None:
        """Write zeros from `position` to `until` in one file."""
        for at in range(position, until, _CHUNK_BYTES):
            self.write([_ZEROS[: until - at]], at)

    def remove_below(self, position: int) -> None:
        """Remove, durably, every file that is wholly before `position`."""
        self._remove([start for start in self.starts if start + self.file_bytes <= position])

    def remove_all(self) -> None:
        """Remove every file, durably."""
        self._remove(self.starts)

    def _remove(self, starts: Sequence[int]) -> None:
        for start in starts:
            with self._lock:
                self._files.pop(start).close()
            self._dirty.pop(start, None)
            self._disk.unlink(self.path(start))
        if starts:
            self.sync_names()

    def rewrite(self, position: int, end: int) -> None:
        """Write a range again, so that the next sync really writes it to disk.

        After a failed fsync the bytes may be in the page cache only, as clean pages, which a sync
        does not write. A write that bypasses the page cache drops neighbouring pages from it, so
        the whole range is read before any of it is written: it is no more than was unsynced when
        the node stopped.
        """
        pieces: list[tuple[int, bytes]] = []
        while position < end:
            room = self.start_of(position) + self.file_bytes - position
            if not self.has(position):
                position += room
                continue
            data = self.read(position, min(_CHUNK_BYTES, room, end - position))
            pieces.append((position, data))
            position += len(data)
        for place, data in pieces:
            self.write([data], place)

    def sync(self) -> None:
        """Make everything written durable."""
        for start, file in list(self._dirty.items()):
            self._sync_file(file)
            del self._dirty[start]

    def _sync_file(self, file: File) -> None:
        """Make one file durable. Raises DiskFailed, which no caller ignores (DLEDGER.md E32)."""
        file.sync()

    def sync_names(self) -> None:
        """Make the files' names durable."""
        self._disk.sync_dir(self.folder)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files = {}


# An LRU cache of open files, for files of which few are in use at a time.


class OpenFiles:
    """At most `count_max` open files, by path. Not thread-safe."""

    def __init__(self, disk: Disk, count_max: int) -> None:
        assert count_max > 0
        self._disk = disk
        self._count_max = count_max
        self._files: dict[str, File] = {}  # the least recently used first
        self._dirty: dict[str, None] = {}

    def has(self, path: str) -> bool:
        """Whether the file is open now."""
        return path in self._files

    def get(self, path: str) -> File:
        """Return the file, which must exist; open it if it is not open."""
        file = self._files.pop(path, None)
        if file is None:
            self._make_room()
            file = self._disk.open(path)
        self._files[path] = file
        return file

    def create(self, path: str, size: int) -> File:
        """Create the file, sparse; its name is durable only after `Disk.sync_dir`."""
        self.drop(path)
        self._make_room()
        self._files[path] = file = self._disk.create(path, size, reserve=False)
        return file

    def write(self, path: str, buffers: Sequence[Buffer], position: int) -> None:
        """Write to the file; durable with the next `sync`."""
        file = self.get(path)
        self._dirty[path] = None
        file.pwrite(buffers, position)

    def grow(self, path: str, size: int) -> None:
        """Grow the file to `size` (a crash may leave it short); durable with the next `sync`."""
        file = self.get(path)
        if file.size < size:
            self._dirty[path] = None
            file.grow(size)

    def sync(self) -> None:
        """Make everything written durable. Raises DiskFailed."""
        for path in list(self._dirty):
            self._files[path].sync()
            del self._dirty[path]

    def drop(self, path: str) -> None:
        """Close the file if it is open, without a sync: for one that is removed or replaced."""
        self._dirty.pop(path, None)
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        """Close all files without a sync."""
        for path in list(self._files):
            self.drop(path)

    def _make_room(self) -> None:
        """Close the least recently used file; sync it first if it was written."""
        while len(self._files) >= self._count_max:
            path = next(iter(self._files))
            if path in self._dirty:
                self._files[path].sync()
            self.drop(path)
