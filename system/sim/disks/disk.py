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

from collections.abc import Callable, Sequence
from random import Random

from shaketable.system.sim.disks.inode import Inode
from shaketable.system.store.disk import Buffer, DiskFailed, DiskFull

BLOCK_BYTES = 4096
"""The file system's allocation unit."""


class PowerLoss(Exception):  # noqa: N818 - what happens, no error
    """The process of this incarnation is gone; every use of its disk raises this."""


class Platter:
    """What a node's disk stores, and its active faults.

    `capacity_bytes` bounds the allocated bytes (None: no limit); with `copies_on_write` each write
    needs free blocks. `sync_failures` is how many of the next file syncs fail, each dropping the
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
        "stop_at",
        "sync_failures",
        "syncs",
        "used_bytes",
        "written_bytes",
    )

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.copies_on_write = False
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

    __slots__ = ("handles", "is_dead", "most_opened", "platter")

    def __init__(self, platter: Platter | None = None) -> None:
        self.platter = platter or Platter()
        self.is_dead = False
        self.handles: dict[str, int] = {}
        """How many handles of each path are open, by the name that was opened."""
        self.most_opened = ("", 0)
        """The path with the most handles open at once, and how many."""

    # ---- for the world ----------------------------------------------------------------

    def forget_handles(self) -> None:
        """Forget open handles: a failed start ended its process, which closed them all."""
        self.handles, self.most_opened = {}, ("", 0)

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
            raise DiskFailed("input/output error")

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
            raise DiskFailed(f"{kind} {path}: input/output error")

    def allocate(self, inode: Inode, size: int) -> None:
        """Allocate blocks up to `size`. Raises DiskFull, and then has allocated nothing."""
        blocks = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        more = blocks - inode.allocated_bytes
        if more <= 0:
            return
        platter = self.platter
        if (
            platter.capacity_bytes is not None
            and platter.used_bytes + more > platter.capacity_bytes
        ):
            raise DiskFull("no space left on device")
        platter.used_bytes += more
        inode.allocated_bytes = blocks

    def require_free_blocks(self, size: int) -> None:
        """Raise DiskFull unless so many bytes, rounded up to blocks, are free."""
        platter = self.platter
        blocks = -(-size // BLOCK_BYTES) * BLOCK_BYTES
        if (
            platter.capacity_bytes is not None
            and platter.used_bytes + blocks > platter.capacity_bytes
        ):
            raise DiskFull("no space left on device")

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
            raise DiskFailed(f"fsync {self._path}: input/output error")
        self._inode.sync()

    def close(self) -> None:
        """Release the handle; it refuses everything afterwards."""
        handles = self._disk.handles
        if not self._is_closed and self._path in handles:
            handles[self._path] -= 1
        self._is_closed = True
