"""A file of the operating system, with its errors as the store knows them.

Source: Linux man pages; DESIGN.md decision 2 (an error of fsync is fatal).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from shaketable.system.store.disk import Buffer, DiskFailed, DiskFull

IO_BUFFERS_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
"""Most buffers that one pwritev may take."""
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_FALLOCATE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class RealFile:
    """A file of the operating system (implements `system.store.disk.File`)."""

    __slots__ = ("_fd", "_path", "_reserve", "_size")

    def __init__(self, path: str, fd: int, size: int, *, reserve: bool) -> None:
        self._path = path
        self._fd = fd
        self._size = size
        self._reserve = reserve

    @property
    def path(self) -> str:
        """Its path."""
        return self._path

    @property
    def reserve(self) -> bool:
        """Whether all its blocks are allotted."""
        return self._reserve

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one behind the other from `position` on."""
        with errors_of("write", self._path):
            pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
            while pending:
                written = os.pwritev(self._fd, pending[:IO_BUFFERS_MAX], position)
                position += written
                self._size = max(self._size, position)
                pending = _behind(pending, written)

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        with errors_of("read", self._path):
            data = os.pread(self._fd, size, position)
            while 0 < len(data) < size:
                more = os.pread(self._fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, behind) of what, from `position` on, may be other than zero, in order.

        Blocks that are allotted and were never written are holes, until one reads them: so all
        ranges are found before the caller reads any.
        """
        ranges = []
        try:
            while position < self._size:
                start = os.lseek(self._fd, position, os.SEEK_DATA)
                position = os.lseek(self._fd, start, os.SEEK_HOLE)
                if start < position:  # else what was read there left the page cache meanwhile
                    ranges.append((start, position))
        except OSError as error:
            if error.errno != errno.ENXIO:  # a file system that knows no holes
                ranges.append((position, self._size))
        return ranges

    def grow(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros."""
        if size > self._size:
            with errors_of("extend", self._path):
                extend(self._fd, size, reserve=self._reserve)
            self._size = size

    def sync(self) -> None:
        """Make what was written durable (fdatasync). Raises DiskFailed."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # also ENOSPC: the pages may be gone
            raise DiskFailed(f"fdatasync of {self._path} failed: {error.strerror}") from error

    def close(self) -> None:
        """Give the handle back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def errors_of(doing: str, path: str) -> Iterator[None]:
    """Turn the operating system's errors into the store's two."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in _NO_SPACE else DiskFailed
        raise kind(f"cannot {doing} {path}: {error.strerror}") from error


def extend(fd: int, size: int, *, reserve: bool) -> None:
    """Make the file `size` bytes long; with `reserve` allot the blocks where that is possible."""
    if reserve and size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
        else:
            return
    os.ftruncate(fd, size)


def _behind(buffers: list[memoryview], written: int) -> list[memoryview]:
    """Return what of `buffers` is left after `written` bytes (a write may be short)."""
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[number + 1 :]]
        written -= len(buffer)
    return []
