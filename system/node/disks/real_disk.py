"""The `Disk` of a production node: pwritev, fdatasync, posix_fallocate; and threads for it.

Source: Linux man pages; DESIGN.md decision 2 (a failed fsync is fatal, directories are synced).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import outcome
import trio

from shaketable.system.store.disk import Buffer, DiskFailed, DiskFull

# Files of the operating system. OSErrors become the store's errors.
#
# Source: Linux man pages; DESIGN.md decision 2 (a failed fsync is fatal).

IO_BUFFERS_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
"""The most buffers that one pwritev takes."""
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
        """Path of the file."""
        return self._path

    @property
    def reserve(self) -> bool:
        """Whether all of its blocks are allocated."""
        return self._reserve

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers consecutively, starting at `position`."""
        with errors_of("write", self._path):
            pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
            while pending:
                written = _some(os.pwritev(self._fd, pending[:IO_BUFFERS_MAX], position))
                position += written
                self._size = max(self._size, position)
                pending = _remaining(pending, written)

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
        """Return the ranges (start, end) from `position` on that may be non-zero, in order.

        Blocks that are allocated but were never written are holes only until they are read. So all
        ranges are collected before the caller reads any.
        """
        ranges = []
        try:
            while position < self._size:
                start = os.lseek(self._fd, position, os.SEEK_DATA)
                position = os.lseek(self._fd, start, os.SEEK_HOLE)
                if start < position:  # else a block that was read there left the page cache
                    ranges.append((start, position))
        except OSError as error:
            if error.errno != errno.ENXIO:  # the file system does not support SEEK_DATA
                ranges.append((position, self._size))
        return ranges

    def grow(self, size: int) -> None:
        """Extend the file with zeros to at least `size` bytes."""
        if size > self._size:
            with errors_of("extend", self._path):
                extend(self._fd, size, reserve=self._reserve)
            self._size = size

    def sync(self) -> None:
        """Make all writes durable (fdatasync). Raises DiskFailed."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # ENOSPC too: the kernel may have dropped the dirty pages
            raise DiskFailed(f"fdatasync of {self._path} failed: {error.strerror}") from error

    def close(self) -> None:
        """Close the file descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def errors_of(doing: str, path: str) -> Iterator[None]:
    """Convert OSError to DiskFull or DiskFailed."""
    try:
        yield
    except OSError as error:
        kind = DiskFull if error.errno in _NO_SPACE else DiskFailed
        raise kind(f"cannot {doing} {path}: {error.strerror}") from error


def extend(fd: int, size: int, *, reserve: bool) -> None:
    """Make the file `size` bytes long; with `reserve` allocate its blocks if possible."""
    if reserve and size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            if error.errno not in _NO_FALLOCATE:
                raise
        else:
            return
    os.ftruncate(fd, size)


def _some(written: int) -> int:
    """Return how many bytes were written. Raises OSError for none: do not try again for ever."""
    if not written:
        raise OSError(errno.EIO, "nothing was written")
    return written


def _remaining(buffers: list[memoryview], written: int) -> list[memoryview]:
    """Return what is left of `buffers` after `written` bytes (a write may be short)."""
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return [buffer[written:], *buffers[number + 1 :]]
        written -= len(buffer)
    return []


class RealDisk:
    """Files of the operating system (implements `system.store.disk.Disk`).

    Files in `direct_folder` are written with O_DIRECT if their file system supports it.
    """

    __slots__ = ("_buffer", "_direct_folder")

    def __init__(self, direct_folder: str | None = None) -> None:
        self._direct_folder = direct_folder
        self._buffer = WriteBuffer() if direct_folder is not None else None

    def create(self, path: str, size: int, *, reserve: bool = True) -> RealFile:
        """Create a file of `size` zeros, replacing an old one; `reserve` allocates its blocks."""
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
            status = os.fstat(fd)
            reserve = status.st_blocks * 512 >= status.st_size
        return self._file(path, fd, status.st_size, reserve=reserve, is_zero=False)

    def _file(self, path: str, fd: int, size: int, *, reserve: bool, is_zero: bool) -> RealFile:
        if self._buffer is not None and str(Path(path).parent) == self._direct_folder:
            return DirectFile(path, fd, size, self._buffer, reserve=reserve, is_zero=is_zero)
        return RealFile(path, fd, size, reserve=reserve)

    def exists(self, path: str) -> bool:
        """Return whether a file exists at `path`."""
        with errors_of("look for", path):
            return Path(path).exists()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted; empty if there is no such folder."""
        with errors_of("list", folder):
            path = Path(folder)
            return sorted(file.name for file in path.iterdir()) if path.exists() else []

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents durably."""
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
        """Rename the file within its folder, replacing an existing target."""
        with errors_of("rename", source):
            Path(source).replace(target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        with errors_of("remove", path):
            Path(path).unlink()

    def sync_dir(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise DiskFailed(f"fsync of folder {folder} failed: {error.strerror}") from error

    def used_ratio(self, folder: str) -> float:
        """Return the used share of the file system, as df counts it (root's reserve is used)."""
        with errors_of("ask the free space of", folder):
            found = os.statvfs(folder)
        usable = found.f_blocks - found.f_bfree + found.f_bavail
        return 1.0 - found.f_bavail / usable if usable else 1.0


# Files that are written with O_DIRECT, where the file system supports it.
#
# A log's bytes are synced at once, and are read from the node's memory while they are new. So the
# page cache is of no use, but allocating, filling and writing back its pages took a fifth of a
# loaded follower's time (docs/adr/0019).
# Source: open(2), O_DIRECT; RocketMQ's transientStorePoolEnable has the same purpose.

BLOCK_BYTES = 4096
"""Positions, sizes and memory addresses of direct writes are multiples of this block size."""
BUFFER_BYTES = 1 << 20
_ZEROS = bytes(BLOCK_BYTES)


class WriteBuffer:
    """Aligned memory for direct writes, shared by all files of a disk."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.memory = memoryview(mmap.mmap(-1, BUFFER_BYTES))


class DirectFile(RealFile):
    """A file that is written in whole blocks. The last block is kept in memory for the next write.

    `is_zero`: the file was just created. Only one handle of a file may write. If the file system
    does not support O_DIRECT, writes go through the page cache. The second descriptor, which
    O_DIRECT needs, is open only from the first write until the file is full.
    """

    __slots__ = ("_block", "_block_at", "_buffer", "_data_end", "_direct_fd", "_is_direct")

    def __init__(
        self, path: str, fd: int, size: int, buffer: WriteBuffer, *, reserve: bool, is_zero: bool
    ) -> None:
        super().__init__(path, fd, size, reserve=reserve)
        self._buffer = buffer
        self._direct_fd = -1
        self._is_direct = True
        self._block = _ZEROS
        self._block_at = -1  # position of `_block`, the last block written; -1: none
        self._data_end = 0 if is_zero else -1  # all bytes after it are zero; -1: unknown yet

    @property
    def is_direct(self) -> bool:
        """Whether O_DIRECT is used, as far as is known."""
        return self._is_direct

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers consecutively, starting at `position`."""
        data = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        end = position + sum(map(len, data))
        whole_end = self.size // BLOCK_BYTES * BLOCK_BYTES
        if self._data_end < 0:
            ranges = self.data_ranges(0)
            self._data_end = ranges[-1][1] if ranges else 0
        try:
            if not data or end > whole_end or not self._is_direct:
                self._block_at = -1  # the write ends in the file's last, partial block
                super().pwrite(data, position)
            else:
                self._write(data, position)
        finally:  # after a failure, too: part of it may have been written
            self._data_end = max(self._data_end, end)
        if end >= whole_end:
            self._close_direct()

    def _write(self, data: Sequence[memoryview], position: int) -> None:
        with self._buffer.lock, errors_of("write", self.path):
            try:
                self._open_direct()
                self._write_blocks(data, position)
            except OSError as error:
                self._block_at = -1
                if self._direct_fd >= 0 and error.errno != errno.EINVAL:
                    raise
                # The file system does not support O_DIRECT, or needs a larger block size.
                self._is_direct = False
                self._close_direct()
                super().pwrite(data, position)

    def _open_direct(self) -> None:
        """Open the same file with O_DIRECT, even if it was renamed meanwhile."""
        if self._direct_fd < 0:
            flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
            self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", flags)

    def _write_blocks(self, data: Sequence[memoryview], position: int) -> None:
        """Write whole blocks, keeping existing bytes before and after `data` in its edge blocks."""
        memory = self._buffer.memory
        at = position % BLOCK_BYTES
        block_position = position - at
        memory[:at] = self._read_block(block_position)[:at] if at else b""
        end = position + sum(map(len, data))
        # Read before writing: a direct write invalidates neighbouring pages of the page cache.
        last = self._read_block(end - end % BLOCK_BYTES) if end % BLOCK_BYTES else b""
        for piece in data:
            done = 0
            while done < len(piece):
                taken = min(len(piece) - done, BUFFER_BYTES - at)
                memory[at : at + taken] = piece[done : done + taken]
                at, done = at + taken, done + taken
                if at == BUFFER_BYTES:
                    self._write_out(block_position, at)
                    block_position, at = block_position + BUFFER_BYTES, 0
        if part := at % BLOCK_BYTES:
            whole = at - part + BLOCK_BYTES
            memory[at:whole] = last[part:]
            at = whole
        if at:
            self._write_out(block_position, at)

    def _write_out(self, block_position: int, size: int) -> None:
        """Write the first `size` bytes of the buffer at `block_position`; keep the last block."""
        memory = self._buffer.memory
        done = 0
        while done < size:
            done += _some(os.pwrite(self._direct_fd, memory[done:size], block_position + done))
        self._block_at = block_position + size - BLOCK_BYTES
        self._block = bytes(memory[size - BLOCK_BYTES : size])

    def _read_block(self, block_position: int) -> bytes:
        """Return the contents of the block at `block_position`."""
        if block_position == self._block_at:
            return self._block
        if block_position >= self._data_end:
            return _ZEROS
        return self.pread(BLOCK_BYTES, block_position)

    def close(self) -> None:
        """Close both file descriptors."""
        super().close()
        self._close_direct()

    def _close_direct(self) -> None:
        if self._direct_fd >= 0:
            os.close(self._direct_fd)
            self._direct_fd = -1


# Lock of a store folder, so that only one process uses it: RocketMQ's `lock` file.
#
# It is a kernel lock (flock), so it is released however the process ends.
# Source: BrokerController / DefaultMessageStore.start (lock file); Linux man page flock(2).

LOCK_FILE = "lock"


class StoreInUseError(Exception):
    """Another process uses the store folder. The message is one line that names the folder."""


def lock_store(folder: Path) -> int:
    """Lock a store folder for this process and return the open file that holds the lock.

    Raises StoreInUseError, and OSError if the folder or the file cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StoreInUseError(
            f"{folder} is in use by another process, which holds {path}; "
            "end it or set storePathRootDir to another folder"
        ) from None
    os.truncate(fd, 0)
    os.write(fd, b"%d\n" % os.getpid())
    return fd


# Threads for a process's disk work, so that a slow fsync does not delay heartbeats.
#
# `trio.to_thread` does more per job: it copies contexts, names threads, and limits jobs. With one
# flush per millisecond that took a tenth of a node's time (docs/throughput.md).

IDLE_S = 10.0
"""A thread ends after being idle for so long."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Job:
    """A function to run, and the trio task that waits for it."""

    work: Callable[[], Any]
    task: trio.lowlevel.Task
    token: trio.lowlevel.TrioToken


class DiskThreads:
    """Runs functions in its own threads, one per task that waits (implements `DiskWork`).

    A cancelled task still waits for its running work: no other task may use the files until then.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Job]] = []

    @trio.lowlevel.enable_ki_protection  # an interrupt must not abandon running work
    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return what it returns, or raise what it raises."""
        await trio.lowlevel.checkpoint_if_cancelled()
        job = _Job(work, trio.lowlevel.current_task(), trio.lowlevel.current_trio_token())
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._serve, args=(jobs,), name="disk", daemon=True).start()
        jobs.put(job)
        done: Result = await trio.lowlevel.wait_task_rescheduled(_refuse_abort)
        return done

    def _serve(self, jobs: SimpleQueue[_Job]) -> None:
        """Run jobs in this thread until it is idle for too long."""
        while True:
            try:
                job = jobs.get(timeout=IDLE_S)
            except Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:  # a caller has just taken this queue: a job will follow
                    continue
                return
            result = outcome.capture(job.work)
            self._idle.append(jobs)
            with suppress(trio.RunFinishedError):  # the trio run crashed meanwhile
                job.token.run_sync_soon(trio.lowlevel.reschedule, job.task, result)
            del job, result  # hold no references while idle


def _refuse_abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
