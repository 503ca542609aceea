"""A disk in memory that loses, keeps, tears and reorders what was not synced."""

from __future__ import annotations

import random
from pathlib import PurePosixPath

import pytest

from system.store.disk import DiskFailed

SECTOR_BYTES = 512


class PowerLoss(Exception):  # noqa: N818 - what happens, no error
    """The disk stopped in the middle of an operation; every later use raises it again."""


class Inode:
    """A file: what this process sees, what is safe, and the writes in between."""

    def __init__(self, size: int) -> None:
        self.view = bytearray(size)
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = [(size, None)]  # None: the size

    def write(self, data: bytes, position: int) -> None:
        behind = position + len(data)
        self.view.extend(bytes(max(0, behind - len(self.view))))
        self.view[position:behind] = data
        self.pending.append((position, data))

    def sync(self) -> None:
        self.apply(self.pending)
        self.pending = []

    def apply(self, writes: list[tuple[int, bytes | None]]) -> None:
        for position, data in writes:
            behind = position + len(data or b"")
            self.durable.extend(bytes(max(0, behind - len(self.durable))))
            if data is not None:
                self.durable[position:behind] = data

    def after_power_loss(self, rng: random.Random) -> None:
        """Keep all, some or no writes, whole or by sector, whatever their order was."""
        way = rng.choice(("lose", "keep", "some", "tear"))
        kept = []
        for position, data in self.pending:
            if way == "tear" and data is not None:
                kept += [piece for piece in sectors(position, data) if rng.random() < 0.5]
            elif way == "keep" or (way != "lose" and rng.random() < 0.5):
                kept.append((position, data))
        self.apply(kept)
        self.view = bytearray(self.durable)
        self.pending = []


def sectors(position: int, data: bytes) -> list[tuple[int, bytes]]:
    """Cut a write into what a disk writes at once."""
    pieces = []
    at = 0
    while at < len(data):
        room = SECTOR_BYTES - (position + at) % SECTOR_BYTES
        pieces.append((position + at, data[at : at + room]))
        at += room
    return pieces


class CrashDisk:
    """Implements `system.store.disk.Disk`; see the module's docstring."""

    PowerLoss = PowerLoss

    def __init__(self) -> None:
        self.names_seen: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.name_changes: dict[str, list[tuple[str, Inode | None]]] = {}
        self.operations_left: int | None = None
        self.fails_sync_at: int | None = None
        self.is_dead = False

    def step(self, *, is_sync: bool = False) -> None:
        """Count an operation that changes something; stop where the test wants it."""
        if self.is_dead:
            raise PowerLoss
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left < 0:
                self.is_dead = True
                raise PowerLoss
        if is_sync and self.fails_sync_at is not None:
            self.fails_sync_at -= 1
            if self.fails_sync_at < 0:
                self.fails_sync_at = None
                raise DiskFailed("fsync failed, as the test asked")

    def restart(self, *, power_loss: bool, seed: int) -> CrashDisk:
        """Return the disk as the next process finds it; this one is dead (no ghost writes)."""
        self.is_dead = True
        disk = CrashDisk()
        disk.names_seen, disk.names_durable = self.names_seen, self.names_durable
        disk.name_changes = self.name_changes
        if power_loss:
            rng = random.Random(seed)
            for changes in self.name_changes.values():  # a journal keeps the order of names
                disk.change_names(changes[: rng.randint(0, len(changes))])
            disk.name_changes = {}
            disk.names_seen = dict(disk.names_durable)
            for inode in disk.names_seen.values():
                inode.after_power_loss(rng)
        return disk

    def change_names(self, changes: list[tuple[str, Inode | None]]) -> None:
        for path, inode in changes:
            if inode is None:
                self.names_durable.pop(path, None)
            else:
                self.names_durable[path] = inode

    def put(self, path: str, inode: Inode | None) -> None:
        folder = str(PurePosixPath(path).parent)
        self.name_changes.setdefault(folder, []).append((path, inode))
        if inode is None:
            del self.names_seen[path]
        else:
            self.names_seen[path] = inode

    def create(self, path, size, *, reserve=True):
        self.step()
        self.put(path, Inode(size))
        return CrashFile(self, self.names_seen[path])

    def open(self, path):
        return CrashFile(self, self.names_seen[path])

    def exists(self, path):
        return path in self.names_seen

    def names(self, folder):
        paths = map(PurePosixPath, self.names_seen)
        return sorted(path.name for path in paths if str(path.parent) == folder)

    def make_dirs(self, folder):
        pass

    def rename(self, source, target):
        self.step()
        inode = self.names_seen[source]
        self.put(target, inode)
        self.put(source, None)

    def unlink(self, path):
        self.step()
        self.put(path, None)

    def sync_dir(self, folder):
        self.step(is_sync=True)
        self.change_names(self.name_changes.pop(folder, []))

    def used_ratio(self, folder):
        return 0.0


class CrashFile:
    """Implements `system.store.disk.File`."""

    def __init__(self, disk: CrashDisk, inode: Inode) -> None:
        self.disk = disk
        self.inode = inode

    @property
    def size(self):
        return len(self.inode.view)

    def pwrite(self, buffers, position):
        self.disk.step()
        self.inode.write(b"".join(buffers), position)

    def pread(self, size, position):
        return bytes(self.inode.view[position : position + size])

    def data_ranges(self, position):
        return [(position, self.size)]

    def grow(self, size):
        self.disk.step()
        self.inode.view.extend(bytes(max(0, size - len(self.inode.view))))
        self.inode.pending.append((size, None))

    def sync(self):
        try:
            self.disk.step(is_sync=True)
        except DiskFailed:
            self.inode.pending = []  # the kernel calls the pages clean and writes them never
            raise
        self.inode.sync()

    def close(self):
        pass


@pytest.fixture(scope="session")
def crash_disk() -> type[CrashDisk]:
    """The class; each example makes its own."""
    return CrashDisk
