"""A simulated disk: it loses, tears and reorders unsynced data, fails, fills up and rots.

A `Platter` is what survives a process. A `SimDisk` is one incarnation's view of it and implements
`system.store.disk.Disk`; after `crash` it refuses everything (no ghost writes), and `restart` opens
the next incarnation. Time is not modelled here: `Platter` counts operations, syncs and bytes, and
the world turns them into delays.

A file keeps one copy of its bytes and an undo journal of unsynced writes, so that a sync is cheap
and a crash undoes what it loses. Only written bytes are stored: a preallocated file of zeros costs
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from shaketable.system.store.disk import Buffer, DiskFailed, DiskFull, StoreError

# One file of a simulated disk: its bytes, and an undo journal of what is not durable yet.

SECTOR_BYTES = 512
"""A disk's atomic write unit: a torn write keeps or loses each sector whole."""
_LOSE, _KEEP, _SOME, _TEAR = range(4)


class Change(msgspec.Struct, frozen=True):
    """A write (or, with `data` None, a new size) that may still be lost, and its undo data."""

    position: int
    data: bytes | None
    old: bytes
    old_size: int
    size: int


class Inode:
    """A file. `view` is what a process reads, up to where it was ever written; zeros follow."""

    __slots__ = ("_dropped", "_journal", "allocated_bytes", "size", "view")

    def __init__(self, size: int) -> None:
        self.view = bytearray()
        self.size = size
        self.allocated_bytes = 0
        self._journal: list[Change] = [Change(0, None, b"", 0, size)]
        # After a failed fsync: every change since, and whether it is durable. A dropped write stays
        # in the view, since the page cache marks it clean.
        self._dropped: list[tuple[Change, bool]] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Inode:
        """Return a copy that shares the changes, which are immutable."""
        copied = Inode(self.size)
        copied.view[:] = self.view
        copied.allocated_bytes = self.allocated_bytes
        copied._journal[:] = self._journal
        copied._dropped[:] = self._dropped
        return copied

    def write(self, data: bytes, position: int) -> None:
        """Write; not durable until `sync`."""
        view, size = self.view, self.size
        end = position + len(data)
        written = len(view)
        if position == written:
            old = b""
            view += data
        elif position > written:
            old = b""
            view += bytes(position - written)
            view += data
        else:
            old = bytes(view[position:end])
            view[position:end] = data
        if end > size:
            self.size = end
        self._journal.append(Change(position, data, old, size, self.size))

    def read(self, size: int, position: int) -> bytes:
        """Read; bytes that were never written are zeros."""
        end = min(position + size, self.size)
        if end <= len(self.view):
            return bytes(self.view[position:end])
        data = bytes(self.view[position:end])
        return data + bytes(max(0, end - position - len(data)))

    def grow(self, size: int) -> None:
        """Extend the file with zeros."""
        if size > self.size:
            self._journal.append(Change(0, None, b"", self.size, size))
            self.size = size

    def sync(self) -> None:
        """Make every change so far durable."""
        if self._dropped:
            self._dropped += [(change, True) for change in self._journal]
        self._journal.clear()

    def drop_unsynced(self) -> None:
        """Drop all changes as a failed fsync does: never written to disk, but still read.

        The page cache then marks the pages clean, so that a later fsync succeeds without them
        ("fsyncgate").
        """
        self._dropped += [(change, False) for change in self._journal]
        self._journal.clear()

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of writes that a crash may lose."""
        return sum(len(change.data) for change in self._journal if change.data is not None)

    @property
    def first_unsynced(self) -> int | None:
        """Where the first write is that a crash may lose, None if there is none."""
        if not self._journal:
            return None
        return min((change.position for change in self._journal if change.data), default=None)

    def unsynced_between(self, start: int, stop: int) -> int:
        """Return how many bytes of writes from `start` to `stop` a crash may lose."""
        count = 0
        for change in self._journal:
            if change.data is not None:
                end = change.position + len(change.data)
                count += max(0, min(stop, end) - max(start, change.position))
        return count

    def lose_unsynced(self, rng: Random) -> int:
        """Keep all, some or no unsynced writes, whole or by sector; return the bytes lost."""
        if not self._journal and not self._dropped:
            return 0
        pending, self._journal = self._journal, []
        dropped, self._dropped = self._dropped, []
        # Undo everything back to the durable state, newest first, then redo in order what survives.
        for change in reversed(pending):
            self._undo(change)
        for change, _ in reversed(dropped):
            self._undo(change)
        for change, is_durable in dropped:
            if is_durable:
                self._redo(change.position, change.data, change.size)
        way = rng.randrange(4) if pending else _KEEP
        return sum(self._lose(change, way, rng) for change in pending)

    def _lose(self, change: Change, way: int, rng: Random) -> int:
        """Redo one change, a part of it or nothing; return the bytes lost."""
        if change.data is None:
            if way == _KEEP or (way != _LOSE and rng.random() < 0.5):
                self._redo(0, None, change.size)
            return 0
        if way == _TEAR:
            lost = 0
            for at, piece in sectors(change.position, change.data):
                if rng.random() < 0.5:
                    self._redo(at, piece, 0)
                else:
                    lost += len(piece)
            return lost
        if way == _KEEP or (way == _SOME and rng.random() < 0.5):
            self._redo(change.position, change.data, 0)
            return 0
        return len(change.data)

    def flip_bit(self, position: int, bit: int) -> None:
        """Flip one bit, on the disk and in what is read."""
        self.view[position] ^= 1 << bit

    def overwrite(self, data: bytes, size: int) -> None:
        """Replace the contents as damage does, durably."""
        self.view[:] = data
        self.size = size
        self._journal.clear()
        self._dropped.clear()

    def _undo(self, change: Change) -> None:
        if change.data is not None:
            length = len(change.data)
            self.view[change.position : change.position + length] = change.old.ljust(length, b"\0")
        self.size = change.old_size

    def _redo(self, position: int, data: bytes | None, size: int) -> None:
        if data is not None:
            end = position + len(data)
            if position > len(self.view):
                self.view += bytes(position - len(self.view))
            self.view[position:end] = data
            size = end
        self.size = max(self.size, size)


def sectors(position: int, data: bytes) -> list[tuple[int, bytes]]:
    """Split a write into sectors: (position, bytes) of each piece."""
    pieces = []
    at = 0
    while at < len(data):
        room = SECTOR_BYTES - (position + at) % SECTOR_BYTES
        pieces.append((position + at, data[at : at + room]))
        at += room
    return pieces


BLOCK_BYTES = 4096
"""The file system's allocation unit."""


class PowerLoss(Exception):  # noqa: N818 - what happens, no error
    """The process of this incarnation is gone; every use of its disk raises this."""


class Platter:
    """What a node's disk stores, and its active faults.

    `capacity_bytes` bounds the allocated bytes (None: no limit); with `copies_on_write` each write
    needs free blocks, and `refuses` decides which of the writes without any fail (None: all).
    `sync_failures` is how many of the next file syncs fail, each dropping the
    file's unsynced pages. `is_failing`: every operation is an I/O error. `stop_at` is the number of
    changing operations after which the incarnation loses power in the middle of one. `operations`,
    `syncs` and `written_bytes` count what was done; `lost_bytes` what crashes lost.
    """

    __slots__ = (
        "capacity_bytes",
        "copies_on_write",
        "folders",
        "inodes",
        "is_failing",
        "lost_bytes",
        "name_changes",
        "names_durable",
        "on_operation",
        "on_read",
        "operations",
        "refuses",
        "stop_at",
        "sync_failures",
        "syncs",
        "used_bytes",
        "written_bytes",
    )

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.copies_on_write = False
        self.refuses: Callable[[], bool] | None = None
        self.inodes: dict[str, Inode] = {}
        self.names_durable: dict[str, Inode] = {}
        self.name_changes: dict[str, list[tuple[str, Inode | None]]] = {}
        self.folders: set[str] = set()
        self.used_bytes = 0
        self.sync_failures = 0
        self.is_failing = False
        self.stop_at: int | None = None
        self.on_operation: Callable[[str, str], None] | None = None
        """Called before each changing operation with its kind and path; may raise."""
        self.on_read: Callable[[str], None] | None = None
        """Called before each read of a file with its path; may raise."""
        self.operations = 0
        self.syncs = 0
        self.written_bytes = 0
        self.lost_bytes = 0

    def lose_unsynced(self, rng: Random) -> int:
        """Keep all, some or none of the unsynced data; return how many bytes were lost."""
        for folder in sorted(self.name_changes):
            # the file system's journal keeps their order: a prefix survives
            changes = self.name_changes[folder]
            self._make_durable(changes[: rng.randint(0, len(changes))])
        self.name_changes = {}
        self.inodes = dict(self.names_durable)
        lost = 0
        for path in sorted(self.inodes):
            lost += self.inodes[path].lose_unsynced(rng)
        self.used_bytes = sum(inode.allocated_bytes for inode in self.inodes.values())
        self.lost_bytes += lost
        return lost

    def sync_names(self, folder: str) -> None:
        """Make the names in a folder durable."""
        self._make_durable(self.name_changes.pop(folder, []))

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Flip one durable bit of a file. The byte must have been written."""
        self.inodes[path].flip_bit(position, bit)

    def lose_file(self, path: str) -> None:
        """Delete a file and its name durably, as damage does."""
        self.used_bytes -= self.inodes.pop(path).allocated_bytes
        self.names_durable.pop(path, None)
        for folder, changes in self.name_changes.items():
            self.name_changes[folder] = [change for change in changes if change[0] != path]

    def wipe(self) -> tuple[int, int]:
        """Erase the disk; return the number of files, and their total size in bytes."""
        lost = len(self.inodes), sum(inode.size for inode in self.inodes.values())
        self.inodes.clear()
        self.names_durable.clear()
        self.name_changes.clear()
        self.folders.clear()
        self.used_bytes = 0
        return lost

    def truncate_file(self, path: str, size: int) -> None:
        """Truncate a file to `size` bytes durably, as damage does."""
        inode = self.inodes[path]
        inode.overwrite(bytes(inode.view[:size]), size)

    def zero_file(self, path: str) -> None:
        """Overwrite a file's bytes with zeros durably, as damage does."""
        inode = self.inodes[path]
        inode.overwrite(bytes(len(inode.view)), inode.size)

    def written_size(self, path: str) -> int:
        """Return up to where a file was ever written, 0 for no file; zeros follow."""
        inode = self.inodes.get(path)
        return 0 if inode is None else len(inode.view)

    def _make_durable(self, changes: list[tuple[str, Inode | None]]) -> None:
        for path, inode in changes:
            if inode is None:
                self.names_durable.pop(path, None)
            else:
                self.names_durable[path] = inode


class SimDisk:
    """One incarnation's disk; implements `system.store.disk.Disk`."""

    __slots__ = ("handles", "has_failed", "is_dead", "most_opened", "platter")

    def __init__(self, platter: Platter | None = None) -> None:
        self.platter = platter or Platter()
        self.is_dead = False
        self.has_failed = False
        """Whether a fault of the disk has failed an operation of the process."""
        self.handles: dict[str, int] = {}
        """How many handles of each path are open, by the name that was opened."""
        self.most_opened = ("", 0)
        """The path with the most handles open at once, and how many."""

    # ---- for the world ----------------------------------------------------------------

    def begin_process(self) -> None:
        """Forget what a failed start left: its process has ended, which closed all handles."""
        self.handles, self.most_opened = {}, ("", 0)
        self.has_failed = False

    def fail(self, error: StoreError) -> StoreError:
        """Note that a fault of the disk fails an operation with this error, and return it."""
        self.has_failed = True
        return error

    def explains(self, error: BaseException | None) -> bool:
        """Whether a process may have ended with this error though its files are whole."""
        return self.has_failed and isinstance(error, DiskFailed | DiskFull)

    def crash(self) -> None:
        """End this incarnation: it and its files refuse everything from now on."""
        self.is_dead = True

    def restart(self, *, loses_unsynced: bool, rng: Random) -> SimDisk:
        """Return the next incarnation's disk; this one is dead.

        Without `loses_unsynced` only the process died, and the page cache survives.
        """
        self.is_dead = True
        if loses_unsynced:
            self.platter.lose_unsynced(rng)
        self.platter.stop_at = None
        return SimDisk(self.platter)

    # ---- Disk -------------------------------------------------------------------------

    def create(self, path: str, size: int, *, reserve: bool = True) -> SimFile:
        """Create a file of `size` zeros, replacing an old one."""
        self.before_change("create", path)
        inode = Inode(size)
        if reserve:
            self.allocate(inode, size)
        elif self.platter.capacity_bytes is not None:
            self.allocate(inode, min(size, BLOCK_BYTES))
        self._put(path, inode)
        return SimFile(self, inode, path)

    def open(self, path: str) -> SimFile:
        """Open an existing file."""
        self.before_read()
        inode = self.platter.inodes.get(path)
        if inode is None:
            raise DiskFailed(f"{path}: no such file")
        return SimFile(self, inode, path)

    def exists(self, path: str) -> bool:
        """Return whether there is a file at `path`."""
        self.before_read()
        return path in self.platter.inodes

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in `folder`, sorted."""
        self.before_read()
        prefix = folder + "/"
        at = len(prefix)
        paths = self.platter.inodes
        return sorted(
            path[at:] for path in paths if path.startswith(prefix) and "/" not in path[at:]
        )

    def make_dirs(self, folder: str) -> None:
        """Create the folder and its parents, durable on return."""
        self.before_change("make_dirs", folder)
        self.platter.folders.add(folder)

    def rename(self, source: str, target: str) -> None:
        """Rename the file within its folder."""
        self.before_change("rename", source)
        inode = self.platter.inodes.get(source)
        if inode is None:
            raise DiskFailed(f"{source}: no such file")
        self._put(target, inode)
        self._put(source, None, frees=False)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        self.before_change("unlink", path)
        if path not in self.platter.inodes:
            raise DiskFailed(f"{path}: no such file")
        self._put(path, None)

    def sync_dir(self, folder: str) -> None:
        """Make the names in `folder` durable."""
        self.before_change("sync_dir", folder)
        self.platter.syncs += 1
        self.platter.sync_names(folder)

    def used_ratio(self, folder: str) -> float:
        """Return the used share of the disk, 0.0 where its capacity is unlimited."""
        self.before_read()
        capacity = self.platter.capacity_bytes
        return min(1.0, self.platter.used_bytes / capacity) if capacity else 0.0

    # ---- shared with SimFile ----------------------------------------------------------

    def before_read(self) -> None:
        """Raise after the incarnation's end or on a failing disk."""
        if self.is_dead:
            raise PowerLoss
        if self.platter.is_failing:
            raise self.fail(DiskFailed("input/output error"))

    def before_change(self, kind: str, path: str) -> None:
        """Count a changing operation; raise where the world wants it to fail."""
        if self.is_dead:
            raise PowerLoss
        platter = self.platter
        platter.operations += 1
        if platter.on_operation is not None:
            platter.on_operation(kind, path)
        if platter.stop_at is not None and platter.operations >= platter.stop_at:
            self.is_dead = True
            raise PowerLoss
        if platter.is_failing:
            raise self.fail(DiskFailed(f"{kind} {path}: input/output error"))

    def allocate(self, inode: Inode, size: int) -> None:
        """Allocate blocks up to `size`. Raises DiskFull, and then has allocated nothing."""
        blocks = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        more = blocks - inode.allocated_bytes
        if more <= 0:
            return
        self._require(more)
        self.platter.used_bytes += more
        inode.allocated_bytes = blocks

    def require_free_blocks(self, size: int) -> None:
        """Raise DiskFull unless so many bytes, rounded up to blocks, are free."""
        self._require(-(-size // BLOCK_BYTES) * BLOCK_BYTES)

    def _require(self, free_bytes: int) -> None:
        platter = self.platter
        capacity = platter.capacity_bytes
        is_short = capacity is not None and platter.used_bytes + free_bytes > capacity
        if is_short and (platter.refuses is None or platter.refuses()):
            raise self.fail(DiskFull("no space left on device"))

    def _put(self, path: str, inode: Inode | None, *, frees: bool = True) -> None:
        platter = self.platter
        folder = path.rpartition("/")[0]
        platter.name_changes.setdefault(folder, []).append((path, inode))
        old = platter.inodes.pop(path, None)
        if old is not None and frees:
            platter.used_bytes -= old.allocated_bytes
        if inode is not None:
            platter.inodes[path] = inode


class SimFile:
    """An open file; implements `system.store.disk.File`."""

    __slots__ = ("_disk", "_inode", "_is_closed", "_path")

    def __init__(self, disk: SimDisk, inode: Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._is_closed = False
        count = disk.handles[path] = disk.handles.get(path, 0) + 1
        if count > disk.most_opened[1]:
            disk.most_opened = path, count

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return self._inode.size

    def pwrite(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers in sequence. Raises DiskFull with nothing written."""
        assert not self._is_closed, f"{self._path} is closed"
        disk, inode = self._disk, self._inode
        disk.before_change("pwrite", self._path)
        data = buffers[0] if len(buffers) == 1 and type(buffers[0]) is bytes else b"".join(buffers)
        assert isinstance(data, bytes)
        end = position + len(data)
        if end > inode.allocated_bytes:
            disk.allocate(inode, end)
        elif disk.platter.copies_on_write:
            disk.require_free_blocks(len(data))
        disk.platter.written_bytes += len(data)
        inode.write(data, position)

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes, fewer only at the end of the file."""
        assert not self._is_closed, f"{self._path} is closed"
        assert size >= 0, f"{size} bytes of {self._path}: no real file would read that"
        disk = self._disk
        disk.before_read()
        if disk.platter.on_read is not None:
            disk.platter.on_read(self._path)
        return self._inode.read(size, position)

    def data_ranges(self, position: int) -> list[tuple[int, int]]:
        """Return the one written range from `position` on, empty if there is none."""
        self._disk.before_read()
        end = min(len(self._inode.view), self._inode.size)
        return [(position, end)] if position < end else []

    def grow(self, size: int) -> None:
        """Make the file at least `size` bytes long, with zeros."""
        self._disk.before_change("grow", self._path)
        self._inode.grow(size)

    def sync(self) -> None:
        """Make what was written durable. Raises DiskFailed, and then has dropped it."""
        assert not self._is_closed, f"{self._path} is closed"
        self._disk.before_change("sync", self._path)
        platter = self._disk.platter
        platter.syncs += 1
        if platter.sync_failures > 0:
            platter.sync_failures -= 1
            self._inode.drop_unsynced()
            raise self._disk.fail(DiskFailed(f"fsync {self._path}: input/output error"))
        self._inode.sync()

    def close(self) -> None:
        """Release the handle; it refuses everything afterwards."""
        handles = self._disk.handles
        if not self._is_closed and self._path in handles:
            handles[self._path] -= 1
        self._is_closed = True


# Disk faults that are injected from outside, call by call, and counted.
#
# The same rules as for a real process (`system.node.steered.orders`): calls of a kind fail from the
# N-th on, or the machine loses power at one.

OPERATION_KINDS: Final[Mapping[str, str]] = {
    "create": "write",
    "pwrite": "write",
    "grow": "write",
    "sync": "sync",
    "sync_dir": "sync",
}
"""The kind of each operation of the simulated disk; all others are "name"."""
POWER: Final = "power"


@dataclass(slots=True, eq=False)
class DiskFaultRule:
    """One rule. `error` is "EIO", "ENOSPC", POWER, or "" (only count calls)."""

    op: str
    error: str = ""
    nth: int = 0
    times: int = 0
    calls: int = 0
    errors: int = 0


class DiskFaultRules:
    """The active rules of one disk; counts survive processes, as the disk does."""

    def __init__(self, platter: Platter) -> None:
        self.calls = dict.fromkeys(("read", "write", "sync", "name"), 0)
        self._rules: tuple[DiskFaultRule, ...] = ()
        platter.on_operation = self._operation
        platter.on_read = self._read

    def set_rules(self, rules: Sequence[DiskFaultRule]) -> None:
        """Replace the active rules."""
        self._rules = tuple(rules)

    def _operation(self, operation: str, path: str) -> None:
        self._call(OPERATION_KINDS.get(operation, "name"), path)

    def _read(self, path: str) -> None:
        self._call("read", path)

    def _call(self, kind: str, path: str) -> None:
        self.calls[kind] += 1
        for rule in self._rules:
            if rule.op not in (kind, "any"):
                continue
            rule.calls += 1
            past = rule.calls - max(rule.nth, 1)
            if not rule.error or past < 0 or (rule.times and past >= rule.times):
                continue
            rule.errors += 1
            if rule.error == POWER:
                raise PowerLoss
            if rule.error == "ENOSPC" and kind not in ("sync", "read"):
                raise DiskFull(f"cannot {kind} {path}: no space left on device (ordered)")
            raise DiskFailed(f"cannot {kind} {path}: {rule.error} (ordered)")
