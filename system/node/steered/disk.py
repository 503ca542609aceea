"""A disk with injected faults: calls fail, are delayed or hang; all calls are counted.

It wraps any `system.store.disk.Disk`. `DiskFaults` decides which calls are affected. The counts are
kept in a file that survives the process.

Source: charybdefs, libfiu, `strace -e inject` (errno at the N-th call); HARNESSES.md section 5.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

from shaketable.system.node.steered.orders import DiskFaultOrder
from shaketable.system.store.disk import Buffer, Disk, DiskFailed, DiskFull, File

# Counters of a node's calls and faults in a file that survives the process, for the harness.
#
# The file is memory-mapped, so counts survive a kill and cost no system call. Its format: `MAGIC`;
# the slots of `SLOTS` in order, each a signed 64-bit number in native byte order; `DISK_FAULTS_MAX`
# records of `DISK_FAULT_SLOTS`, one per disk fault (docs/faults.md).

FILE_NAME: Final = "effects"
MAGIC: Final = b"shktbl01"
MESSAGES: Final = (
    "VoteRequest",
    "VoteResponse",
    "PushRequest",
    "PushResponse",
    "SnapshotRequest",
    "LeadershipTransfer",
)
"""Kinds of messages that have their own counters."""
SLOTS: Final = (
    "starts",  # how many processes used this file
    "control_version",  # version of the orders in force
    "reading",  # odd while the four below are being written
    "machine_mono_us",  # the machine's monotonic clock, in microseconds
    "node_mono_us",  # the node's monotonic clock at the same instant
    "machine_wall_us",
    "node_wall_us",
    "read",  # calls to the disk, by kind
    "write",
    "sync",
    "name",  # files created, renamed, removed
    "errors",  # calls that failed by an order
    "slowed",  # calls that were delayed by an order
    "waited_us",  # total delay
    "unsynced_bytes",  # bytes that a kill at this moment loses
    "lost_bytes",  # bytes that were unsynced when processes were killed
    "losses",  # how many processes lost any
    "message",  # messages to other members
    *(f"message:{kind}" for kind in MESSAGES),
)
DISK_FAULT_SLOTS: Final = ("number", "calls", "errors", "slowed", "waited_us")
DISK_FAULTS_MAX: Final = 16
"""The record of a disk fault is the one at its number modulo this."""
_SLOT_BYTES: Final = 8
SIZE: Final = len(MAGIC) + _SLOT_BYTES * (len(SLOTS) + DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS))
_AT: Final = {name: number for number, name in enumerate(SLOTS)}
_DISK_FAULT_AT: Final = {name: number for number, name in enumerate(DISK_FAULT_SLOTS)}


class EffectCounters:
    """The counters of a node, in a folder; created if missing. Counting is thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Map the file, and account for what the previous process left unsynced."""
        fd = os.open(folder / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, SIZE)
            self._map = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
        self._slots = memoryview(self._map)[len(MAGIC) :].cast("q")
        self._lock = threading.Lock()
        if self._map[: len(MAGIC)] != MAGIC:
            self._map[: len(MAGIC)] = MAGIC
        held = self["unsynced_bytes"]
        if held:
            self.add(lost_bytes=held, losses=1)
            self.set(unsynced_bytes=0)
        if self["reading"] % 2:  # it was killed while writing
            self.add(reading=1)
        self.add(starts=1)

    def __getitem__(self, name: str) -> int:
        return self._slots[_AT[name]]

    def add(self, **counts: int) -> None:
        """Add to the named counters."""
        slots = self._slots
        with self._lock:
            for name, count in counts.items():
                slots[_AT[name]] += count

    def count(self, name: str) -> int:
        """Increment a counter; return its new value."""
        at = _AT[name]
        with self._lock:
            self._slots[at] += 1
            return self._slots[at]

    def set(self, **values: int) -> None:
        """Set the named counters."""
        for name, value in values.items():
            self._slots[_AT[name]] = value

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Mark the four clock values as inconsistent while they are written (a seqlock)."""
        self.add(reading=1)
        try:
            yield
        finally:
            self.add(reading=1)

    def count_fault(self, number: int, **counts: int) -> None:
        """Add to the record of a disk fault, replacing a record with another number."""
        slots = self._slots
        at = len(SLOTS) + number % DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS)
        with self._lock:
            if slots[at] != number:
                for slot in range(len(DISK_FAULT_SLOTS)):
                    slots[at + slot] = 0
                slots[at] = number
            for name, count in counts.items():
                slots[at + _DISK_FAULT_AT[name]] += count

    def fault_count(self, number: int, name: str) -> int:
        """Return one counter of a disk fault's record, 0 if it has none."""
        at = len(SLOTS) + number % DISK_FAULTS_MAX * len(DISK_FAULT_SLOTS)
        return self._slots[at + _DISK_FAULT_AT[name]] if self._slots[at] == number else 0


# The disk.

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
