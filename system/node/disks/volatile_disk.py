"""A Disk whose unsynced writes live in the process, so that SIGKILL is a power loss.

Writes reach the real file only at `File.sync`, names only at `Disk.sync_dir` of their folder;
until then this process alone sees them (DESIGN.md decision 9). Pessimistic on purpose: a file
synced under a name that was not synced is lost whole, as POSIX allows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.store.disk import Buffer, DiskFailed

UNSYNCED_BYTES_MAX = 256 * 1024 * 1024
"""Above this a write is let through at once, as a kernel writes back on its own."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Bytes held back."""

    position: int
    data: bytes


@dataclass(slots=True, eq=False)
class _Content:
    """What a file holds, however many handles and names it has.

    `real` is None until a synced name leads to the file; then `unnamed` is what has been synced
    before that, held back because no name would find it after a crash. `real_path` is where the
    real file stands.
    """

    size: int
    reserve: bool
    real: RealFile | None = None
    real_path: str = ""
    handles: int = 0
    pending: list[_Write] = field(default_factory=list)
    syncing: list[_Write] = field(default_factory=list)
    unnamed: list[_Write] = field(default_factory=list)

    @property
    def held_back(self) -> tuple[_Write, ...]:
        """Writes that the real file has not, in their order."""
        return (*self.unnamed, *self.syncing, *self.pending)


class VolatileFile:
    """A file with its unsynced writes laid over it (implements `system.store.disk.File`)."""

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
        """Hold the buffers, copied, back until `sync`."""
        data = b"".join(buffers)
        if not data:
            return
        with self._disk.lock:
            self._content.pending.append(_Write(position, data))
            self._content.size = max(self._content.size, position + len(data))
            self._disk.unsynced_bytes += len(data)
            self._disk.tell_held()
            is_too_much = self._disk.unsynced_bytes > UNSYNCED_BYTES_MAX
        if is_too_much:  # as a kernel that writes back on its own
            self.sync()

    def pread(self, size: int, position: int) -> bytes:
        """Read, unsynced writes included."""
        content = self._content
        with self._disk.lock:
            size = max(0, min(size, content.size - position))
            real = content.real.pread(size, position) if content.real else b""
            held_back = content.held_back
            if not held_back and len(real) == size:
                return real
            data = bytearray(real)
            data.extend(bytes(size - len(data)))
            for write in held_back:
                _lay_over(data, position, write)
        return bytes(data)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, behind) of what, from `position` on, may be other than zero, in order."""
        content = self._content
        with self._disk.lock:
            ranges = content.real.data_ranges(position) if content.real else []
            for write in content.held_back:
                behind = write.position + len(write.data)
                if behind > position and write.data:
                    ranges.append((max(position, write.position), behind))
        return sorted(ranges)

    def grow(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros, for real at `sync`."""
        with self._disk.lock:
            self._content.size = max(self._content.size, size)
            self._content.pending.append(_Write(size, b""))  # there is something to sync

    def sync(self) -> None:
        """Let the writes through to the real file and sync that. Raises DiskFailed."""
        self._disk.sync_content(self._content)

    def close(self) -> None:
        """Give the handle back; what was not synced stays visible through the name."""
        if self._is_open:
            self._is_open = False
            self._disk.close_handle(self._content)


_Change = tuple[str, _Content | None]
"""A name in a folder and the file that it leads to from now on; None: no file."""


class VolatileDisk:
    """Holds back unsynced writes and names (implements `system.store.disk.Disk`).

    One thread writes, syncs and changes names; others may read at the same time. `on_held` is
    told, whenever that changes, how many bytes a kill would certainly lose: what is on its way
    to the real disk just then does not count.
    """

    def __init__(self, disk: RealDisk, on_held: Callable[[int], None] | None = None) -> None:
        self._disk = disk
        self._on_held = on_held
        self._passing_bytes = 0
        self.lock = threading.Lock()
        """Guards what is held back; never held while the real disk writes or syncs."""
        self.unsynced_bytes = 0
        """Bytes written that a crash at this moment would lose."""
        self._contents: dict[str, _Content] = {}  # by the path as this process sees it
        self._changes: dict[str, list[_Change]] = {}  # by folder, in the order they were made

    def create(self, path: str, size: int, *, reserve: bool = True) -> VolatileFile:
        """Create a file of `size` zeros that only this process sees until `sync_dir`."""
        content = _Content(size, reserve)
        with self.lock:
            self._put(path, content)
            return VolatileFile(self, content)

    def open(self, path: str) -> VolatileFile:
        """Open an existing file for reading and writing."""
        with self.lock:
            return VolatileFile(self, self._find(path))

    def exists(self, path: str) -> bool:
        """Whether a file stands at `path`, as this process sees it."""
        folder, name = _split(path)
        with self.lock:
            changes = self._changed_names(folder)
        if name in changes:
            return changes[name] is not None
        return self._disk.exists(path)

    def names(self, folder: str) -> list[str]:
        """Names of the files in `folder`, sorted, as this process sees them."""
        with self.lock:
            changes = self._changed_names(str(PurePosixPath(folder)))
        real = [name for name in self._disk.names(folder) if name not in changes]
        return sorted([*real, *(name for name, content in changes.items() if content)])

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""
        self._disk.make_dirs(folder)

    def rename(self, source: str, target: str) -> None:
        """Give the file another name, for this process alone until `sync_dir`."""
        with self.lock:
            content = self._find(source)
            self._put(target, content)
            del self._contents[source]
            self._put(source, None)

    def unlink(self, path: str) -> None:
        """Remove a file, for this process alone until `sync_dir`."""
        with self.lock:
            self._find(path)
            self._put(path, None)

    def sync_dir(self, folder: str) -> None:
        """Do for real what was done to the names in `folder`, and sync that."""
        folder = str(PurePosixPath(folder))
        with self.lock:
            changes = self._changes.pop(folder, [])
        for name, content in changes:
            if content is not None:
                self._give_name(content, f"{folder}/{name}")
            elif self._disk.exists(f"{folder}/{name}"):
                self._disk.unlink(f"{folder}/{name}")
        self._disk.sync_dir(folder)

    def used_ratio(self, folder: str) -> float:
        """Return the used part of the real file system; what is held back is not counted."""
        return self._disk.used_ratio(folder)

    def sync_content(self, content: _Content) -> None:
        """Let a file's held-back writes through (see `VolatileFile.sync`)."""
        with self.lock:
            if content.real is None:
                content.unnamed += content.pending
                self._forget(content.pending)
                content.pending = []
                return
            assert not content.syncing, "one thread writes and syncs a file"
            content.syncing, content.pending = content.pending, []
            self._passing_bytes = sum(len(write.data) for write in content.syncing)
            self.tell_held()
        _write_through(content.real, content.syncing, content.size)
        content.real.sync()
        with self.lock:
            self._passing_bytes = 0
            self._forget(content.syncing)
            content.syncing = []

    def close_handle(self, content: _Content) -> None:
        """Count one handle less, and close the real file behind the last (see `close`)."""
        with self.lock:
            content.handles -= 1
            self._close_if_idle(content)

    def _give_name(self, content: _Content, path: str) -> None:
        """Make the synced part of a file stand under its name, whole or not at all."""
        real = content.real
        if real is None:
            temporary = f"{path}.named"
            real = self._disk.create(temporary, content.size, reserve=content.reserve)
            _write_through(real, content.unnamed, content.size)
            real.sync()
            self._disk.rename(temporary, path)
        else:
            self._disk.rename(content.real_path, path)
        with self.lock:
            content.real, content.real_path, content.unnamed = real, path, []
            self._close_if_idle(content)

    def tell_held(self) -> None:
        """Tell how much a kill would certainly lose; call it with the lock held."""
        if self._on_held is not None:
            self._on_held(self.unsynced_bytes - self._passing_bytes)

    def _forget(self, writes: list[_Write]) -> None:
        self.unsynced_bytes -= sum(len(write.data) for write in writes)
        self.tell_held()

    def _put(self, path: str, content: _Content | None) -> None:
        """Let `path` mean another file, or none."""
        folder, name = _split(path)
        old = self._contents.pop(path, None)
        if old is not None:
            self._forget(old.pending)
            old.pending = []
            self._close_if_idle(old)
        self._changes.setdefault(folder, []).append((name, content))
        if content is not None:
            self._contents[path] = content

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
        if content.handles or content.held_back or content.real is None:
            return
        if any(content is named for changes in self._changes.values() for _, named in changes):
            return
        content.real.close()
        if self._contents.get(content.real_path) is content:
            del self._contents[content.real_path]


def _split(path: str) -> tuple[str, str]:
    pure = PurePosixPath(path)
    return str(pure.parent), pure.name


def _write_through(real: RealFile, writes: list[_Write], size: int) -> None:
    real.grow(size)
    for write in writes:
        real.pwrite([write.data], write.position)


def _lay_over(data: bytearray, position: int, write: _Write) -> None:
    """Put a held-back write over what was read from `position` on."""
    start = max(write.position, position)
    behind = min(write.position + len(write.data), position + len(data))
    if start < behind:
        piece = write.data[start - write.position : behind - write.position]
        data[start - position : behind - position] = piece
