"""An LRU cache of open files, so that few handles are in use."""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.store.disk import Buffer, Disk, File


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
