"""A disk whose calls can be made to fail, to wait or not to return, and are counted.

It wraps any other (`system.store.disk.Disk`). Whether a call is struck is decided in
`DiskHarms`; counts go where they outlive the process (`system.node.steered.effect_counters`).

Source: charybdefs, libfiu, `strace -e inject` (errno at the N-th call); HARNESSES.md section 5.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Event
from typing import Final

from shaketable.system.node.steered.effect_counters import EffectCounters
from shaketable.system.node.steered.orders import HarmOrder
from shaketable.system.store.disk import Buffer, Disk, DiskFailed, DiskFull, File

STALL_POLL_S = 0.02
_MEANS: Final = {"EIO": "input/output error", "ENOSPC": "no space left on device"}


class DiskHarms:
    """Which calls are struck by which harm. `effects` keeps the counts."""

    def __init__(self, effects: EffectCounters) -> None:
        self._effects = effects
        self._orders: tuple[HarmOrder, ...] = ()
        self._changed = Event()

    def follow(self, orders: tuple[HarmOrder, ...]) -> None:
        """These are in force from now on; who waits for one that is gone, goes on."""
        for order in orders:
            self._effects.harm(order.number)
        self._orders = orders
        self._changed.set()
        self._changed = Event()

    def strike(self, kind: str, what: str) -> None:
        """A call of that kind begins: let it wait or fail, if it is to. Raises StoreError."""
        for order in self._orders:
            if order.op not in (kind, "any"):
                continue
            self._effects.harm(order.number, calls=1)
            call = self._effects.of_harm(order.number, "calls")
            behind = call - max(order.nth, 1)
            if behind < 0 or (order.times and behind >= order.times):
                continue
            if order.delay_ms or order.stall:
                self._wait(order)
            if order.error:
                self._effects.harm(order.number, errors=1)
                self._effects.add(errors=1)
                raise _error(order.error, kind, what)

    def _wait(self, order: HarmOrder) -> None:
        self._effects.harm(order.number, slowed=1)
        self._effects.add(slowed=1)
        began = time.monotonic_ns()
        if order.delay_ms:
            time.sleep(order.delay_ms / 1000)
        while order.stall and order in self._orders:
            self._changed.wait(STALL_POLL_S)
        waited_us = (time.monotonic_ns() - began) // 1000
        self._effects.harm(order.number, waited_us=waited_us)
        self._effects.add(waited_us=waited_us)


def _error(error: str, kind: str, what: str) -> DiskFailed | DiskFull:
    text = f"cannot {kind} {what}: {_MEANS[error]} (ordered)"
    # What a sync finds no room for may be gone, as in `RealFile.sync`.
    is_full = error == "ENOSPC" and kind not in ("sync", "read")
    return DiskFull(text) if is_full else DiskFailed(text)


class SteeredDisk:
    """Implements `system.store.disk.Disk` over another one.

    `begin` is told the kind and the path of each call before it is done, and may raise
    StoreError.
    """

    def __init__(self, disk: Disk, begin: Callable[[str, str], None]) -> None:
        self._disk = disk
        self._begin = begin

    def create(self, path: str, size: int, *, reserve: bool = True) -> File:
        """Create a file of `size` zeros, replacing an old one; `reserve` allots its blocks."""
        self._begin("write", path)
        return SteeredFile(self._disk.create(path, size, reserve=reserve), path, self._begin)

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing."""
        return SteeredFile(self._disk.open(path), path, self._begin)

    def exists(self, path: str) -> bool:
        """Whether a file stands at `path`."""
        return self._disk.exists(path)

    def names(self, folder: str) -> list[str]:
        """Names of the files in `folder`, sorted; none if there is no such folder."""
        return self._disk.names(folder)

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""
        self._begin("name", folder)
        self._disk.make_dirs(folder)

    def rename(self, source: str, target: str) -> None:
        """Give the file another name in the same folder, replacing what stood there."""
        self._begin("name", source)
        self._disk.rename(source, target)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self._begin("name", path)
        self._disk.unlink(path)

    def sync_dir(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        self._begin("sync", folder)
        self._disk.sync_dir(folder)

    def used_ratio(self, folder: str) -> float:
        """Return the used part of the file system below."""
        return self._disk.used_ratio(folder)


class SteeredFile:
    """Implements `system.store.disk.File` over another one."""

    __slots__ = ("_begin", "_file", "_path")

    def __init__(self, file: File, path: str, begin: Callable[[str, str], None]) -> None:
        self._file = file
        self._path = path
        self._begin = begin

    @property
    def size(self) -> int:
        """Size of the file."""
        return self._file.size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers one behind the other from `position` on."""
        self._begin("write", self._path)
        self._file.pwrite(buffers, position)

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        self._begin("read", self._path)
        return self._file.pread(size, position)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return (start, behind) of what, from `position` on, may be other than zero, in order."""
        return self._file.data_ranges(position)

    def grow(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros."""
        self._begin("write", self._path)
        self._file.grow(size)

    def sync(self) -> None:
        """Make what was written durable. Raises DiskFailed."""
        self._begin("sync", self._path)
        self._file.sync()

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()
