"""The Disk interface: the store's only access to files (DESIGN.md decisions 2 and 9).

Two rules hold for every implementation: data is durable only after `File.sync`, and a created,
renamed or removed name only after `Disk.sync_dir` of its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class StoreError(Exception):
    """Base of the store's errors; each message is one line."""


class DiskFailed(StoreError):  # noqa: N818 - a state of the disk
    """The disk lost or may have lost data (a failed fsync, EIO). Fatal to the node.

    There is no retry: the kernel may drop the dirty pages and let the next fsync succeed.
    """


class DiskFull(StoreError):  # noqa: N818 - a state of the disk
    """No space left: the operation definitely did not happen."""


class File(Protocol):
    """An open file of fixed size. Positions and sizes are bytes."""

    @property
    def size(self) -> int:
        """Size of the file."""

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers back to back from `position` on."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, stop) of the ranges from `position` on that may be nonzero, in order."""

    def grow(self, size: int) -> None:
        """Extend the file with zeros to at least `size` bytes."""

    def sync(self) -> None:
        """Make all writes durable (fdatasync). Raises DiskFailed."""

    def close(self) -> None:
        """Close the file."""


class Disk(Protocol):
    """Folders and files by path. All errors are DiskFailed or DiskFull."""

    def create(self, path: str, size: int, *, reserve: bool = True) -> File:
        """Create a file of `size` zeros, replacing an old one; `reserve` allocates its blocks."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def exists(self, path: str) -> bool:
        """Whether a file exists at `path`."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted; none without such a folder."""

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""

    def rename(self, source: str, target: str) -> None:
        """Rename a file within its folder, replacing an existing target."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def sync_dir(self, folder: str) -> None:
        """Make the names in `folder` durable."""

    def used_ratio(self, folder: str) -> float:
        """Return the used part, 0.0 to 1.0, of the file system that holds `folder`."""


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file atomically and durably: a crash leaves the old or the new one.

    Write a temporary file, fsync it, rename it, fsync the folder. DLedger's IOUtils has no fsync
    (DLEDGER.md E16).
    """
    temporary = path + ".tmp"
    file = disk.create(temporary, len(data), reserve=False)
    try:
        file.pwrite([data], 0)
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_dir(str(PurePosixPath(path).parent))


def read_file(disk: Disk, path: str) -> bytes:
    """Read the whole of a small file."""
    file = disk.open(path)
    try:
        return file.pread(file.size, 0)
    finally:
        file.close()
