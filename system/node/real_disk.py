"""The Disk of a production node: pwritev, fdatasync, posix_fallocate.

Source: Linux man pages; DESIGN.md decision 2 (an error of fsync is fatal, names are synced).
"""

from __future__ import annotations

import os
from pathlib import Path

from shaketable.system.node.direct_file import DirectFile, WriteBuffer
from shaketable.system.node.real_file import RealFile, errors_of, extend
from shaketable.system.store.disk import DiskFailed


class RealDisk:
    """Files of the operating system (implements `system.store.disk.Disk`).

    Files of `direct_folder` are written past the page cache, if their file system can do that.
    """

    __slots__ = ("_buffer", "_direct_folder")

    def __init__(self, direct_folder: str | None = None) -> None:
        self._direct_folder = direct_folder
        self._buffer = WriteBuffer() if direct_folder is not None else None

    def create(self, path: str, size: int, *, reserve: bool = True) -> RealFile:
        """Create a file of `size` zeros, replacing an old one; `reserve` allots its blocks."""
        with errors_of("create", path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                extend(fd, size, reserve=reserve)
            except OSError:
                os.close(fd)
                Path(path).unlink()
                raise
        return self._file(path, fd, size, reserve=reserve, is_zero=True)

    def open(self, path: str) -> RealFile:
        """Open an existing file for reading and writing."""
        with errors_of("open", path):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            facts = os.fstat(fd)
            reserve = facts.st_blocks * 512 >= facts.st_size
        return self._file(path, fd, facts.st_size, reserve=reserve, is_zero=False)

    def _file(self, path: str, fd: int, size: int, *, reserve: bool, is_zero: bool) -> RealFile:
        if self._buffer is not None and str(Path(path).parent) == self._direct_folder:
            return DirectFile(path, fd, size, self._buffer, reserve=reserve, is_zero=is_zero)
        return RealFile(path, fd, size, reserve=reserve)

    def exists(self, path: str) -> bool:
        """Whether a file stands at `path`."""
        with errors_of("look for", path):
            return Path(path).exists()

    def names(self, folder: str) -> list[str]:
        """Names of the files in `folder`, sorted; none if there is no such folder."""
        with errors_of("list", folder):
            path = Path(folder)
            return sorted(file.name for file in path.iterdir()) if path.exists() else []

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""
        missing = []
        with errors_of("create folder", folder):
            path = Path(folder)
            while not path.exists():
                missing.append(path)
                path = path.parent
            for new in reversed(missing):
                new.mkdir(exist_ok=True)
                self.sync_dir(str(new.parent))

    def rename(self, source: str, target: str) -> None:
        """Give the file another name in the same folder, replacing what stood there."""
        with errors_of("rename", source):
            Path(source).replace(target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with errors_of("remove", path):
            Path(path).unlink()

    def sync_dir(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise DiskFailed(f"fsync of folder {folder} failed: {error.strerror}") from error

    def used_ratio(self, folder: str) -> float:
        """Return the used part of the file system, as df counts it (root's reserve is used)."""
        with errors_of("ask the free space of", folder):
            found = os.statvfs(folder)
        usable = found.f_blocks - found.f_bfree + found.f_bavail
        return 1.0 - found.f_bavail / usable if usable else 1.0
