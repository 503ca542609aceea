"""The Disk that the store is given: the only door to files (DESIGN.md decisions 2 and 9).

Two rules that every implementation keeps: data is safe only after `File.sync`, a created,
renamed or removed name only after `Disk.sync_dir` of its folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class StoreError(Exception):
    """Base of the store's errors; each message is one clear line."""


class DiskFailed(StoreError):  # noqa: N818 - a state of the disk
    """The disk lost or may have lost data (a failed fsync, EIO). Fatal to the node.

    The kernel may drop the dirty pages and let the next fsync succeed, so there is no retry.
    """


class DiskFull(StoreError):  # noqa: N818 - a state of the disk
    """No space: what was asked certainly did not happen."""


class File(Protocol):
    """An open file of fixed size. Positions and sizes are bytes."""

    @property
    def size(self) -> int:
        """Size of the file."""

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one behind the other from `position` on."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, behind) of what, from `position` on, may be other than zero, in order."""

    def grow(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros."""

    def sync(self) -> None:
        """Make what was written durable (fdatasync). Raises DiskFailed."""

    def close(self) -> None:
        """Give the handle back."""


class Disk(Protocol):
    """Folders and files by path. All errors are DiskFailed or DiskFull."""

    def create(self, path: str, size: int, *, reserve: bool = True) -> File:
        """Create a file of `size` zeros, replacing an old one; `reserve` allots its blocks."""

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""

    def exists(self, path: str) -> bool:
        """Whether a file stands at `path`."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in `folder`, sorted; none if there is no such folder."""

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""

    def rename(self, source: str, target: str) -> None:
        """Give the file another name in the same folder, replacing what stood there."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def sync_dir(self, folder: str) -> None:
        """Make the names in `folder` durable."""

    def used_ratio(self, folder: str) -> float:
        """Return the used part, 0.0 to 1.0, of the file system that `folder` lies on."""


def replace_file(disk: Disk, path: str, data: bytes) -> None:
    """Replace a small file at once and durably: old or new after a crash, never a mixture.

    A temporary file, fsync, rename, fsync of the folder (what DLedger's IOUtils leaves out: E16).
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
    """Read a small file whole."""
    file = disk.open(path)
    try:
        return file.pread(file.size, 0)
    finally:
        file.close()
