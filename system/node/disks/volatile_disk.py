"""A `Disk` that keeps unsynced writes in the process, so that SIGKILL acts as a power loss.

Writes reach the real file only at `File.sync`, and names only at `Disk.sync_dir` of their folder;
until then only this process sees them (DESIGN.md decision 9). It is pessimistic on purpose: a
synced file whose name was not synced is lost as a whole, as POSIX allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.store.disk import Buffer, DiskFailed, StoreError

UNSYNCED_BYTES_MAX = 256 * 1024 * 1024
"""Beyond this, writes are synced at once, as a kernel writes back dirty pages."""


@dataclass(frozen=True, slots=True)
class _Write:
    """An unsynced write."""

    position: int
    data: bytes


@dataclass(slots=True, eq=False)
class _Content:
    """The contents of a file, which may have several handles and names.

    `real` is None until a name of the file is synced. Until then `unnamed` collects what is synced,
    because without a durable name it would be lost in a crash. `real_path` is the real file's path.
    A file that lost its last name is still read and written by its handles, but nothing of it
    counts as unsynced: after a crash it could not be read, synced or not.
    """

    size: int
    reserve: bool
    real: RealFile | None = None
    real_path: str = ""
    handles: int = 0
    is_named: bool = True
    pending: list[_Write] = field(default_factory=list)
    syncing: list[_Write] = field(default_factory=list)
    unnamed: list[_Write] = field(default_factory=list)

    @property
    def unwritten(self) -> tuple[_Write, ...]:
        """The writes that are not in the real file yet, in order."""
        return (*self.unnamed, *self.syncing, *self.pending)


class VolatileFile:
    """A file overlaid with its unsynced writes (implements `system.store.disk.File`)."""

    __slots__ = ("_content", "_disk", "_is_open")

    def __init__(self, disk: VolatileDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content
        self._is_open = True
        content.handles += 1

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._content.size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Keep a copy of the buffers until `sync`."""
        data = b"".join(buffers)
        if not data:
            return
        with self._disk.lock:
            self._content.pending.append(_Write(position, data))
            self._content.size = max(self._content.size, position + len(data))
            self._disk.count(self._content, unsynced=len(data))
            is_too_much = self._disk.unsynced_bytes > UNSYNCED_BYTES_MAX
        if is_too_much:  # as a kernel that writes back dirty pages
            self.sync()

    def pread(self, size: int, position: int) -> bytes:
        """Read, including unsynced writes."""
        content = self._content
        with self._disk.lock:
            size = max(0, min(size, content.size - position))
            real = content.real.pread(size, position) if content.real else b""
            unwritten = content.unwritten
            if not unwritten and len(real) == size:
                return real
            data = bytearray(real)
            data.extend(bytes(size - len(data)))
            for write in unwritten:
                _overlay(data, position, write)
        return bytes(data)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges (start, end) from `position` on that may be non-zero, in order."""
        content = self._content
        with self._disk.lock:
            ranges = content.real.data_ranges(position) if content.real else []
            for write in content.unwritten:
                end = write.position + len(write.data)
                if end > position and write.data:
                    ranges.append((max(position, write.position), end))
        return sorted(ranges)

    def grow(self, size: int) -> None:
        """Extend the file with zeros to at least `size` bytes; the real file only at `sync`."""
        with self._disk.lock:
            self._content.size = max(self._content.size, size)
            self._content.pending.append(_Write(size, b""))  # marks that a sync is needed

    def sync(self) -> None:
        """Write the pending writes to the real file and sync it. Raises DiskFailed."""
        self._disk.sync_content(self._content)

    def close(self) -> None:
        """Close the handle; unsynced writes stay visible through the name."""
        if self._is_open:
            self._is_open = False
            self._disk.close_handle(self._content)


_Change = tuple[str, _Content | None]
"""A name in a folder and the file that it refers to from now on; None: removed."""


class VolatileDisk:
    """Keeps unsynced writes and names in memory (implements `system.store.disk.Disk`).

    One thread writes and syncs a file; several may change and sync the names in one folder (the
    log's and the checkpoint's), and others may read at the same time. `on_unsynced` is called with
    the number of bytes that a kill would certainly lose, whenever that changes. Bytes on their way
    to the real disk do not count.
    """

    def __init__(self, disk: RealDisk, on_unsynced: Callable[[int], None] | None = None) -> None:
        self._disk = disk
        self._on_unsynced = on_unsynced
        self._in_flight_bytes = 0
        self.lock = threading.Lock()
        """Guards the unsynced state; not held while the real disk writes or syncs."""
        self._naming = threading.Lock()
        """Held while name changes are applied to the real disk, so that each is applied once, and
        all before it. It is taken before `lock`, never after."""
        self.unsynced_bytes = 0
        """How many bytes written a crash at this moment would lose, those in flight included."""
        self._contents: dict[str, _Content] = {}  # by the path that this process sees
        self._changes: dict[str, list[_Change]] = {}  # unsynced name changes by folder, in order

    def create(self, path: str, size: int, *, reserve: bool = True) -> VolatileFile:
        """Create a file of `size` zeros, visible only to this process until `sync_dir`."""
        content = _Content(size, reserve)
        with self.lock:
            self._put(path, content)
            return VolatileFile(self, content)

    def open(self, path: str) -> VolatileFile:
        """Open an existing file for reading and writing."""
        with self.lock:
            return VolatileFile(self, self._find(path))

    def exists(self, path: str) -> bool:
        """Return whether a file exists at `path`, as this process sees it."""
        folder, name = _split(path)
        with self.lock:
            changes = self._changed_names(folder)
        if name in changes:
            return changes[name] is not None
        return self._disk.exists(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted, as this process sees them."""
        with self.lock:
            changes = self._changed_names(str(PurePosixPath(folder)))
        real = [name for name in self._disk.names(folder) if name not in changes]
        return sorted([*real, *(name for name, content in changes.items() if content)])

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents durably."""
        self._disk.make_dirs(folder)

    def rename(self, source: str, target: str) -> None:
        """Rename the file; the real disk sees it at `sync_dir`."""
        with self.lock:
            content = self._find(source)
            self._put(target, content)
            del self._contents[source]
            self._put(source, None)

    def unlink(self, path: str) -> None:
        """Remove a file; the real disk sees it at `sync_dir`."""
        with self.lock:
            self._find(path)
            self._put(path, None)

    def sync_dir(self, folder: str) -> None:
        """Apply the name changes in `folder` to the real disk, in order, and sync it.

        On DiskFull, the change that did not fit and those after it stay unsynced; call it again.
        """
        folder = str(PurePosixPath(folder))
        with self._naming:
            while (change := self._first_change(folder)) is not None:
                self._apply(folder, *change)
                with self.lock:
                    self._drop_change(folder, change)
            self._disk.sync_dir(folder)

    def used_ratio(self, folder: str) -> float:
        """Return the used share of the real file system, without unsynced writes."""
        return self._disk.used_ratio(folder)

    def unsynced_from(self, folder: str) -> dict[str, int]:
        """Return the files of `folder` of which a crash would lose bytes: path -> the first."""
        found: dict[str, int] = {}
        with self.lock:
            for path, content in self._contents.items():
                if _split(path)[0] == folder:
                    lost = [write.position for write in content.unwritten if write.data]
                    if lost:
                        found[path] = min(lost)
        return found

    def sync_content(self, content: _Content) -> None:
        """Write and sync a file's pending writes (see `VolatileFile.sync`).

        After an error they are pending again: writing them twice changes nothing.
        """
        with self.lock:
            if content.real is None:
                content.unnamed += content.pending
                self.count(content, unsynced=-_bytes_of(content.pending))
                content.pending = []
                return
            assert not content.syncing, "one thread writes and syncs a file"
            content.syncing, content.pending = content.pending, []
            self.count(content, in_flight=_bytes_of(content.syncing))
        try:
            _write_through(content.real, content.syncing, content.size)
            content.real.sync()
        except StoreError:
            with self.lock:
                self.count(content, in_flight=-_bytes_of(content.syncing))
                content.syncing, content.pending = [], content.syncing + content.pending
            raise
        with self.lock:
            synced = _bytes_of(content.syncing)
            self.count(content, unsynced=-synced, in_flight=-synced)
            content.syncing = []

    def close_handle(self, content: _Content) -> None:
        """Release one handle; with the last one, close the real file unless a name needs it."""
        with self.lock:
            content.handles -= 1
            self._close_if_idle(content)

    def _first_change(self, folder: str) -> _Change | None:
        with self.lock:
            changes = self._changes.get(folder)
            return changes[0] if changes else None

    def _apply(self, folder: str, name: str, content: _Content | None) -> None:
        """Apply one name change to the real disk."""
        if content is not None:
            self._publish(content, f"{folder}/{name}")
        elif self._disk.exists(f"{folder}/{name}"):
            self._disk.unlink(f"{folder}/{name}")

    def _drop_change(self, folder: str, change: _Change) -> None:
        """Drop a change that was applied; `_forget` may have dropped it meanwhile."""
        changes = self._changes.get(folder, [])
        changes[:] = [each for each in changes if each is not change]
        if not changes:
            self._changes.pop(folder, None)
        if change[1] is not None:
            self._close_if_idle(change[1])

    def _publish(self, content: _Content, path: str) -> None:
        """Give the real file its synced contents and its name, atomically: by a rename."""
        if content.real is not None:
            self._disk.rename(content.real_path, path)
            with self.lock:
                content.real_path = path
            return
        written = list(content.unnamed)
        real = self._write_named(content, written, path)
        while not self._has_all(content, written, real, path):
            more = content.unnamed[len(written) :]
            try:
                _write_through(real, more, content.size)
                real.sync()
            except StoreError:  # the change stays pending, and is applied to a new file
                real.close()
                raise
            written += more

    def _has_all(self, content: _Content, written: list[_Write], real: RealFile, path: str) -> bool:
        """Make `real` the file of `content` if it has all that was synced, and return whether.

        The thread that writes the file may have synced more while another one named it.
        """
        with self.lock:
            if len(content.unnamed) > len(written):
                return False
            content.real, content.real_path, content.unnamed = real, path, []
            return True

    def _write_named(self, content: _Content, writes: list[_Write], path: str) -> RealFile:
        """Write a real file with these contents; leave none if the disk is full."""
        temporary = f"{path}.named"
        real = self._disk.create(temporary, content.size, reserve=content.reserve)
        try:
            _write_through(real, writes, content.size)
            real.sync()
            self._disk.rename(temporary, path)
        except StoreError:
            real.close()
            with suppress(StoreError):
                self._disk.unlink(temporary)
            raise
        return real

    def count(self, content: _Content, *, unsynced: int = 0, in_flight: int = 0) -> None:
        """Count so many more bytes of a file, or fewer, and report what a kill would lose.

        Several files may be in flight at the same time. The caller holds the lock.
        """
        if not content.is_named:
            return
        self.unsynced_bytes += unsynced
        self._in_flight_bytes += in_flight
        if self._on_unsynced is not None:
            self._on_unsynced(self.unsynced_bytes - self._in_flight_bytes)

    def _put(self, path: str, content: _Content | None) -> None:
        """Let `path` refer to another file, or to none."""
        folder, name = _split(path)
        old = self._contents.pop(path, None)
        if old is not None:
            syncing = _bytes_of(old.syncing)
            self.count(old, unsynced=-_bytes_of(old.pending) - syncing, in_flight=-syncing)
            old.is_named = False
            if old.real is None:
                self._forget(old)
            self._close_if_idle(old)
        self._changes.setdefault(folder, []).append((name, content))
        if content is not None:
            self._contents[path] = content

    def _forget(self, content: _Content) -> None:
        """Drop the name changes of a file that lost its last name before it was on the disk.

        Each of its names has a later change. While the disk is full, such files would collect.
        """
        for changes in self._changes.values():
            changes[:] = [change for change in changes if change[1] is not content]

    def _find(self, path: str) -> _Content:
        content = self._contents.get(path)
        if content is None:
            folder, name = _split(path)
            if name in self._changed_names(folder):
                raise DiskFailed(f"cannot open {path}: no such file")
            real = self._disk.open(path)
            content = _Content(real.size, real.reserve, real, path)
            self._contents[path] = content
        return content

    def _changed_names(self, folder: str) -> dict[str, _Content | None]:
        return dict(self._changes.get(folder, []))

    def _close_if_idle(self, content: _Content) -> None:
        if content.handles or content.real is None or (content.is_named and content.unwritten):
            return
        if any(content is named for changes in self._changes.values() for _, named in changes):
            return
        content.real.close()
        if self._contents.get(content.real_path) is content:
            del self._contents[content.real_path]


def _bytes_of(writes: list[_Write]) -> int:
    return sum(len(write.data) for write in writes)


def _split(path: str) -> tuple[str, str]:
    pure = PurePosixPath(path)
    return str(pure.parent), pure.name


def _write_through(real: RealFile, writes: list[_Write], size: int) -> None:
    real.grow(size)
    for write in writes:
        real.pwrite([write.data], write.position)


def _overlay(data: bytearray, position: int, write: _Write) -> None:
    """Overlay an unsynced write on data that was read at `position`."""
    start = max(write.position, position)
    end = min(write.position + len(write.data), position + len(data))
    if start < end:
        piece = write.data[start - write.position : end - write.position]
        data[start - position : end - position] = piece
