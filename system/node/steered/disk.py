"""A disk with injected faults: calls fail, are delayed or hang; all calls are counted.

It wraps any `system.store.disk.Disk`. `DiskFaults` decides which calls are affected. The counts are
kept where they survive the process (`system.node.steered.effect_counters`).

Source: charybdefs, libfiu, `strace -e inject` (errno at the N-th call); HARNESSES.md section 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from shaketable.system.node.steered.effect_counters import EffectCounters
from shaketable.system.node.steered.orders import DiskFaultOrder
from shaketable.system.store.disk import Buffer, Disk, DiskFailed, DiskFull, File

STALL_POLL_S = 0.02
_ERROR_TEXTS: Final = {"EIO": "input/output error", "ENOSPC": "no space left on device"}


class DiskFaults:
    """The disk faults in force. `effects` keeps the counts."""

    def __init__(self, effects: EffectCounters) -> None:
        self._effects = effects
        self._orders: tuple[DiskFaultOrder, ...] = ()
        self._changed = Event()

    def follow(self, orders: tuple[DiskFaultOrder, ...]) -> None:
        """Apply these orders, and no others, from now on. Undoing a stall releases its calls."""
        for order in orders:
            self._effects.count_fault(order.number)
        self._orders = orders
        self._changed.set()
        self._changed = Event()

    def inject(self, kind: str, what: str) -> None:
        """Delay a call of that kind or make it fail, if an order says so. Raises StoreError."""
        for order in self._orders:
            if order.op not in (kind, "any"):
                continue
            self._effects.count_fault(order.number, calls=1)
            call = self._effects.fault_count(order.number, "calls")
            past = call - max(order.nth, 1)
            if past < 0 or (order.times and past >= order.times):
                continue
            if order.delay_ms or order.stall:
                self._wait(order)
            if order.error:
                self._effects.count_fault(order.number, errors=1)
                self._effects.add(errors=1)
                raise _error(order.error, kind, what)

    def _wait(self, order: DiskFaultOrder) -> None:
        self._effects.count_fault(order.number, slowed=1)
        self._effects.add(slowed=1)
        start_ns = time.monotonic_ns()
        if order.delay_ms:
            time.sleep(order.delay_ms / 1000)
        while order.stall and order in self._orders:
            self._changed.wait(STALL_POLL_S)
        waited_us = (time.monotonic_ns() - start_ns) // 1000
        self._effects.count_fault(order.number, waited_us=waited_us)
        self._effects.add(waited_us=waited_us)


def _error(error: str, kind: str, what: str) -> DiskFailed | DiskFull:
    text = f"cannot {kind} {what}: {_ERROR_TEXTS[error]} (ordered)"
    # ENOSPC in a sync is a failed disk, not a full one, as in `RealFile.sync`.
    is_full = error == "ENOSPC" and kind not in ("sync", "read")
    return DiskFull(text) if is_full else DiskFailed(text)


class SteeredDisk:
    """Implements `system.store.disk.Disk` over another one.

    `before_call` is called with the kind and the path of each call, and may raise StoreError.
    """

    def __init__(self, disk: Disk, before_call: Callable[[str, str], None]) -> None:
        self._disk = disk
        self._before_call = before_call

    def create(self, path: str, size: int, *, reserve: bool = True) -> File:
        """Create a file of `size` zeros, replacing an old one; `reserve` allocates its blocks."""
        self._before_call("write", path)
        return SteeredFile(self._disk.create(path, size, reserve=reserve), path, self._before_call)

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        return SteeredFile(self._disk.open(path), path, self._before_call)

    def exists(self, path: str) -> bool:
        """Return whether a file exists at `path`."""
        return self._disk.exists(path)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted; empty if there is no such folder."""
        return self._disk.names(folder)

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents durably."""
        self._before_call("name", folder)
        self._disk.make_dirs(folder)

    def rename(self, source: str, target: str) -> None:
        """Rename the file within its folder, replacing an existing target."""
        self._before_call("name", source)
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._before_call("name", path)
        self._disk.unlink(path)

    def sync_dir(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""
        self._before_call("sync", folder)
        self._disk.sync_dir(folder)

    def used_ratio(self, folder: str) -> float:
        """Return the used share of the underlying file system."""
        return self._disk.used_ratio(folder)


class SteeredFile:
    """Implements `system.store.disk.File` over another one."""

    __slots__ = ("_before_call", "_file", "_path")

    def __init__(self, file: File, path: str, before_call: Callable[[str, str], None]) -> None:
        self._file = file
        self._path = path
        self._before_call = before_call

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._file.size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers consecutively, starting at `position`."""
        self._before_call("write", self._path)
        self._file.pwrite(buffers, position)

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        self._before_call("read", self._path)
        return self._file.pread(size, position)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges (start, end) from `position` on that may be non-zero, in order."""
        return self._file.data_ranges(position)

    def grow(self, size: int) -> None:
        """Extend the file with zeros to at least `size` bytes."""
        self._before_call("write", self._path)
        self._file.grow(size)

    def sync(self) -> None:
        """Make all writes durable. Raises DiskFailed."""
        self._before_call("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
