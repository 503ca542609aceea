"""The files of a volatile file system, in two folders of a real one.

In the first folder is the tree, always as its users see it: a reader who looks from outside finds
what would be in a page cache. In the second each file has another name, its inode's number, which
keeps it as long as a power loss may bring it back. `surviving` decides what
a power loss undoes.

Modes and owners are kept in memory, and never lost: the real files stay readable for this process.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from shaketable.harness.volatile_disk import messages
from shaketable.harness.volatile_disk.messages import Attributes, SetAttributes
from shaketable.harness.volatile_disk.surviving import ROOT, UnsyncedContents, VolatileNames

SAVED_BYTES_MAX: Final = 256 << 20
"""Old bytes in memory; a file whose writes exceed them counts as written back by the kernel."""
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
FALLOC_KEEP_SIZE: Final = 1
_OURS: Final = 0o600
_OURS_TO_ENTER: Final = 0o700


@dataclass(slots=True, eq=False)
class Inode:
    """A file or a folder.

    Attributes:
        number: its number, never used again.
        mode, user, group: as stat(2) shows them.
        changed_ns: when a folder's entries changed.
        contents: the unsynced part of a regular file.
        descriptor: the open file; -1 if it is not open.
        opens: how often it is open.
        looks: how often the kernel has looked it up and not forgotten it.
        allocated: up to where a file's bytes have room on the disk, though it may be a hole.
    """

    number: int
    mode: int
    user: int
    group: int
    changed_ns: int
    contents: UnsyncedContents | None = None
    descriptor: int = -1
    opens: int = 0
    looks: int = 0
    allocated: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """What a power loss took.

    Attributes:
        bytes_: bytes that were written and not synced.
        entries: paths that are gone, are back, or stand for another file.
        sizes: files that have another size again, though no written byte was lost.
    """

    bytes_: int
    entries: int
    sizes: int


class StoredFiles:
    """Files and folders by their inodes. Methods raise OSError with the errno for the answer.

    Args:
        tree: descriptor of the folder with the tree, which may have files: these are synced.
        kept: descriptor of the folder with the files by number; what is in it is deleted.
    """

    def __init__(self, tree: int, kept: int) -> None:
        self._tree = tree
        self._kept = kept
        self._inodes: dict[int, Inode] = {}
        self._next = ROOT
        self._saved_bytes = 0
        self.written_back_bytes = 0
        """Bytes that counted as synced since too many would have had to be saved."""
        self.names = VolatileNames()
        self.read_tree()

    # ---- all of it ----------------------------------------------------------------------------

    def read_tree(self) -> None:
        """Take the tree as it is for what is synced, after it was changed from outside."""
        before = {
            os.stat(str(each.number), dir_fd=self._kept, follow_symlinks=False).st_ino: each
            for each in self._inodes.values()
            if not self.names.is_folder(each.number)
        }
        self.close()
        self.names, self._saved_bytes, self._next = VolatileNames(), 0, ROOT
        top = os.fstat(self._tree)
        self._add(top.st_mode, top.st_uid, top.st_gid)
        folders, known = [(".", ROOT)], dict[int, int]()
        while folders:
            path, folder = folders.pop()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self._tree)
            try:
                found = os.listdir(descriptor)  # noqa: PTH208 - a descriptor has no path
            finally:
                os.close(descriptor)
            for name in found:
                inode = self._read(f"{path}/{name}", known, before)
                self.names.put(folder, name, inode)
                if self.names.is_folder(inode):
                    folders.append((f"{path}/{name}", inode))
        self.names.sync_all()

    def _read(self, path: str, known: dict[int, int], before: Mapping[int, Inode]) -> int:
        """Return the inode of a path of the tree; add it if it has no other name yet."""
        real = os.stat(path, dir_fd=self._tree, follow_symlinks=False)
        if real.st_ino in known:
            return known[real.st_ino]
        was = before.get(real.st_ino)
        mode, user, group = real.st_mode, real.st_uid, real.st_gid
        if was is not None:
            mode, user, group = was.mode, was.user, was.group
        inode = self._add(mode, user, group)
        if stat.S_ISDIR(real.st_mode):
            self.names.add_folder(inode.number)
            return inode.number
        known[real.st_ino] = inode.number
        self._link(path, str(inode.number), self._tree, self._kept)
        if stat.S_ISREG(real.st_mode):
            inode.contents = UnsyncedContents(real.st_size)
            inode.allocated = real.st_size
        return inode.number

    def unmounted(self) -> None:
        """Record that nothing is open any more, and the kernel remembers nothing."""
        for number, each in self._inodes.items():
            for _ in range(each.opens + bool(each.looks)):
                self.names.release(number)
            each.opens = each.looks = 0
            self._close(each)
        self._free()

    def lose(self) -> Lost:
        """Lose power: the tree becomes what was synced. It must not be mounted."""
        before, entries = dict(self.names.walk()), self.names.unsynced_entries()
        unsynced = {
            number: (each.contents.unsynced_bytes, each.contents.is_resized)
            for number, each in self._inodes.items()
            if each.contents is not None
        }
        for each in self._inodes.values():
            self._restore(each)
        self.names.lose()
        after = dict(self.names.walk())
        self._rebuild(before, after)
        kept = set(after.values())
        bytes_ = sum(written for written, _ in unsynced.values())
        sizes = sum(
            number in kept and is_resized and not written
            for number, (written, is_resized) in unsynced.items()
        )
        self._free()
        return Lost(bytes_, entries, sizes)

    def sync_all(self) -> None:
        """Sync everything, as the kernel does after a while and before it is unmounted."""
        for each in self._inodes.values():
            if each.contents is not None:
                self._sync_contents(each.contents)
        self.names.sync_all()
        self._free()

    def unsynced(self) -> tuple[int, int]:
        """Return how many bytes and entries a power loss would change now."""
        contents = (each.contents for each in self._inodes.values())
        sizes = sum(each.unsynced_bytes for each in contents if each is not None)
        return sizes, self.names.unsynced_entries()

    def room(self) -> os.statvfs_result:
        """Return how much room the real disk has."""
        return os.fstatvfs(self._tree)

    def close(self) -> None:
        """Close all files, and delete those that only a power loss would bring back."""
        for each in self._inodes.values():
            self._close(each)
        self._inodes.clear()
        for name in os.listdir(self._kept):  # noqa: PTH208 - a descriptor has no path
            os.unlink(name, dir_fd=self._kept)

    # ---- names ----------------------------------------------------------------------------------

    def look_up(self, folder: int, name: str) -> int:
        """Return the inode that a name stands for."""
        try:
            return self.names.entries(folder)[name]
        except KeyError:
            raise _error(errno.ENOENT) from None

    def listed(self, folder: int) -> list[tuple[str, int, int]]:
        """Return the entries of a folder: names, inodes, modes."""
        parent = self.names.place(folder)[0] if folder != ROOT else ROOT
        entries = {".": folder, "..": parent, **self.names.entries(folder)}
        return [(name, inode, self._inodes[inode].mode) for name, inode in entries.items()]

    def make(self, folder: int, name: str, mode: int, device: int, owner: tuple[int, int]) -> int:
        """Make a regular file, a fifo, a socket or a device; return its inode."""
        with self._named_new(folder, name, mode, owner) as inode:
            kept = str(inode.number)
            if stat.S_ISREG(mode):
                os.close(os.open(kept, os.O_CREAT | os.O_EXCL, _OURS, dir_fd=self._kept))
                inode.contents = UnsyncedContents(0)
            else:
                os.mknod(kept, stat.S_IFMT(mode) | _OURS, device, dir_fd=self._kept)
        return inode.number

    def make_link(self, folder: int, name: str, target: str, owner: tuple[int, int]) -> int:
        """Make a symbolic link; return its inode."""
        with self._named_new(folder, name, stat.S_IFLNK | 0o777, owner) as inode:
            os.symlink(target, str(inode.number), dir_fd=self._kept)
        return inode.number

    def make_folder(self, folder: int, name: str, mode: int, owner: tuple[int, int]) -> int:
        """Make a folder; return its inode."""
        os.mkdir(self._new_path(folder, name), _OURS_TO_ENTER, dir_fd=self._tree)
        inode = self._add(stat.S_IFDIR | mode, *owner)
        self.names.add_folder(inode.number)
        self._put(folder, name, inode.number)
        return inode.number

    def link(self, number: int, folder: int, name: str) -> None:
        """Give a file another name."""
        at = self._new_path(folder, name)
        self._link(str(number), at, self._kept, self._tree)
        self._put(folder, name, number)

    def unlink(self, folder: int, name: str) -> None:
        """Remove a name of a file."""
        if self.names.is_folder(self.look_up(folder, name)):
            raise _error(errno.EISDIR)
        os.unlink(self._path(folder, name), dir_fd=self._tree)
        self._put(folder, name, None)

    def remove_folder(self, folder: int, name: str) -> None:
        """Remove an empty folder."""
        if not self.names.is_folder(self.look_up(folder, name)):
            raise _error(errno.ENOTDIR)
        os.rmdir(self._path(folder, name), dir_fd=self._tree)
        self._put(folder, name, None)

    def rename(self, folder: int, name: str, to: int, to_name: str, flags: int) -> None:
        """Rename a file or folder, as renameat2(2)."""
        inode, other = self.look_up(folder, name), self.names.entries(to).get(to_name)
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise _error(errno.EINVAL)
        if flags & RENAME_NOREPLACE and other is not None:
            raise _error(errno.EEXIST)
        swaps = bool(flags & RENAME_EXCHANGE)
        if swaps and other is None:
            raise _error(errno.ENOENT)
        if inode == other:
            return
        source, target = self._path(folder, name), self._path(to, to_name)
        if swaps:
            aside = str(PurePosixPath(target).with_name(f".{inode}.swapped"))
            for old, new in ((target, aside), (source, target), (aside, source)):
                os.rename(old, new, src_dir_fd=self._tree, dst_dir_fd=self._tree)
        else:
            os.rename(source, target, src_dir_fd=self._tree, dst_dir_fd=self._tree)
        self.names.rename(folder, name, to, to_name, swaps=swaps)
        self._inodes[folder].changed_ns = self._inodes[to].changed_ns = time.time_ns()
        self._free()

    def sync_folder(self, folder: int) -> None:
        """Sync the entries of a folder, and its own name."""
        self.names.sync(folder)
        self._free()

    # ---- contents -----------------------------------------------------------------------------

    def open(self, number: int) -> None:
        """Open a file or a folder; `release` closes it."""
        self._inodes[number].opens += 1
        self.names.hold(number)

    def release(self, number: int) -> None:
        """End one `open`."""
        inode = self._inodes[number]
        inode.opens -= 1
        if not inode.opens:
            self._close(inode)
        self.names.release(number)
        self._free()

    def seen(self, number: int) -> Attributes:
        """Return the attributes of an inode for the kernel, which remembers it from now on."""
        inode = self._inodes[number]
        if not inode.looks:
            self.names.hold(number)
        inode.looks += 1
        return self.attributes(number)

    def forget(self, number: int, looks: int) -> None:
        """Record that the kernel has forgotten so many looks at an inode."""
        inode = self._inodes.get(number)
        if inode is None or number == ROOT:
            return
        inode.looks -= looks
        if not inode.looks:
            self.names.release(number)
            self._free()

    def read(self, number: int, offset: int, size: int) -> bytes:
        """Read from an open file."""
        return os.pread(self._descriptor(self._inodes[number]), size, offset)

    def write(self, number: int, offset: int, data: memoryview, *, is_synced: bool = False) -> int:
        """Write to an open file; with `is_synced` as if fsync followed (O_SYNC, O_DSYNC)."""
        inode = self._inodes[number]
        contents, end = _contents(inode), offset + len(data)
        descriptor = self._descriptor(inode)
        is_synced |= not self._save(inode, descriptor, offset, end)
        at = offset
        while at < end:
            at += os.pwrite(descriptor, data[at - offset :], at)
        contents.wrote(offset, end)
        if is_synced:
            self.sync(number)
        return end - offset

    def resize(self, number: int, size: int) -> None:
        """Cut a file, or extend it by a hole."""
        inode = self._inodes[number]
        contents, descriptor = _contents(inode), self._descriptor(inode)
        is_saved = self._save(inode, descriptor, size, contents.size)
        os.ftruncate(descriptor, size)
        contents.resized(size)
        if not is_saved:
            self._sync_contents(contents)
        inode.allocated = min(inode.allocated, size)
        if not inode.opens:
            self._close(inode)

    def allocate(self, number: int, offset: int, length: int, mode: int) -> None:
        """Allocate room, as fallocate(2); holes cannot be made."""
        inode = self._inodes[number]
        contents = _contents(inode)
        if mode & ~FALLOC_KEEP_SIZE:
            raise _error(errno.EOPNOTSUPP)
        inode.allocated = max(inode.allocated, offset + length)
        if not mode and offset + length > contents.size:
            os.posix_fallocate(self._descriptor(inode), offset, length)
            contents.resized(offset + length)

    def sync(self, number: int) -> None:
        """Sync the contents of a file, and its names."""
        contents = self._inodes[number].contents
        if contents is not None:
            self._sync_contents(contents)
        self.names.sync_names(number)
        self._free()

    def needs_space(self, number: int, offset: int, size: int) -> bool:
        """True if a write of that range has to find room on the disk."""
        inode = self._inodes[number]
        end = offset + size
        if end > max(_contents(inode).size, inode.allocated):
            return True
        if end <= inode.allocated:
            return False
        try:
            return os.lseek(self._descriptor(inode), offset, os.SEEK_HOLE) < end
        except OSError:
            return True

    def target(self, number: int) -> bytes:
        """Return what a symbolic link leads to."""
        return os.fsencode(os.readlink(str(number), dir_fd=self._kept))

    # ---- attributes ---------------------------------------------------------------------------

    def attributes(self, number: int) -> Attributes:
        """Return what stat(2) shows."""
        inode = self._inodes[number]
        if self.names.is_folder(number):
            at, links = inode.changed_ns, 2
            return Attributes(
                number, 4096, 8, at, at, at, inode.mode, links, inode.user, inode.group, 0
            )
        if inode.descriptor >= 0:
            real = os.fstat(inode.descriptor)
        else:
            real = os.stat(str(number), dir_fd=self._kept, follow_symlinks=False)
        return Attributes(
            number, real.st_size, real.st_blocks, real.st_atime_ns, real.st_mtime_ns,
            real.st_ctime_ns, inode.mode, real.st_nlink - 1, inode.user, inode.group, real.st_rdev,
        )  # fmt: skip

    def set_attributes(self, number: int, new: SetAttributes) -> None:
        """Change size, mode, owner or times."""
        inode = self._inodes[number]
        if new.valid & messages.FATTR_SIZE:
            self.resize(number, new.size)
        if new.valid & messages.FATTR_MODE:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(new.mode)
        if new.valid & messages.FATTR_UID:
            inode.user = new.user
        if new.valid & messages.FATTR_GID:
            inode.group = new.group
        if new.valid & (messages.FATTR_ATIME | messages.FATTR_MTIME):
            self._set_times(inode, new)

    def _set_times(self, inode: Inode, new: SetAttributes) -> None:
        was, now = self.attributes(inode.number), time.time_ns()
        access, change = was.access_ns, was.change_ns
        if new.valid & messages.FATTR_ATIME:
            access = now if new.valid & messages.FATTR_ATIME_NOW else new.access_ns
        if new.valid & messages.FATTR_MTIME:
            change = now if new.valid & messages.FATTR_MTIME_NOW else new.change_ns
        if self.names.is_folder(inode.number):
            inode.changed_ns = change
            return
        os.utime(str(inode.number), ns=(access, change), dir_fd=self._kept, follow_symlinks=False)

    # ---- the real files -----------------------------------------------------------------------

    def _add(self, mode: int, user: int, group: int) -> Inode:
        inode = Inode(self._next, mode, user, group, time.time_ns())
        self._inodes[inode.number] = inode
        self._next += 1
        return inode

    def _path(self, folder: int, name: str) -> str:
        """Return the path of a name in the tree."""
        return str(self.names.path(folder) / name)

    def _new_path(self, folder: int, name: str) -> str:
        if name in self.names.entries(folder):
            raise _error(errno.EEXIST)
        return self._path(folder, name)

    @contextmanager
    def _named_new(
        self, folder: int, name: str, mode: int, owner: tuple[int, int]
    ) -> Iterator[Inode]:
        """Yield a new inode, whose file is made in the body of `with`, and give it its name."""
        at = self._new_path(folder, name)
        inode = self._add(mode, *owner)
        try:
            yield inode
            self._link(str(inode.number), at, self._kept, self._tree)
        except OSError:
            del self._inodes[inode.number]
            with suppress(FileNotFoundError):
                os.unlink(str(inode.number), dir_fd=self._kept)
            raise
        self._put(folder, name, inode.number)

    def _put(self, folder: int, name: str, inode: int | None) -> None:
        self.names.put(folder, name, inode)
        self._inodes[folder].changed_ns = time.time_ns()
        self._free()

    @staticmethod
    def _link(source: str, target: str, source_in: int, target_in: int) -> None:
        os.link(source, target, src_dir_fd=source_in, dst_dir_fd=target_in, follow_symlinks=False)

    def _descriptor(self, inode: Inode) -> int:
        if inode.descriptor < 0:
            inode.descriptor = os.open(str(inode.number), os.O_RDWR, dir_fd=self._kept)
        return inode.descriptor

    @staticmethod
    def _close(inode: Inode) -> None:
        if inode.descriptor >= 0:
            os.close(inode.descriptor)
            inode.descriptor = -1

    def _save(self, inode: Inode, descriptor: int, start: int, end: int) -> bool:
        """Save synced bytes before they are overwritten or cut off; False if they are too many."""
        contents = _contents(inode)
        parts = contents.to_save(start, end)
        if self._saved_bytes + sum(high - low for low, high in parts) > SAVED_BYTES_MAX:
            self.written_back_bytes += contents.unsynced_bytes
            return False
        for low, high in parts:
            old = os.pread(descriptor, high - low, low)
            contents.save(low, old)
            self._saved_bytes += len(old)
        return True

    def _sync_contents(self, contents: UnsyncedContents) -> None:
        self._saved_bytes -= contents.saved_bytes
        contents.sync()

    def _restore(self, inode: Inode) -> None:
        """Give a file the contents back that were synced."""
        contents = inode.contents
        if contents is not None and not contents.is_synced:
            self._saved_bytes -= contents.saved_bytes
            restoration, descriptor = contents.lose(), self._descriptor(inode)
            os.ftruncate(descriptor, restoration.size)
            for start, old in restoration.pieces:
                os.pwrite(descriptor, old, start)
            inode.allocated = min(inode.allocated, restoration.size)
        self._close(inode)

    def _rebuild(
        self, before: Mapping[PurePosixPath, int], after: Mapping[PurePosixPath, int]
    ) -> None:
        """Make the tree what it is `after`."""
        changed: set[PurePosixPath] = set()
        for path in sorted(before.keys() | after.keys()):  # a folder before what is in it
            if path.parent in changed or before.get(path) != after.get(path):
                changed.add(path)
        for path in sorted(changed, reverse=True):
            self._remove(str(path))
        for path in sorted(changed):
            inode = after.get(path)
            if inode is None:
                continue
            if self.names.is_folder(inode):
                os.mkdir(str(path), _OURS_TO_ENTER, dir_fd=self._tree)
            else:
                self._link(str(inode), str(path), self._kept, self._tree)

    def _remove(self, path: str) -> None:
        try:
            os.unlink(path, dir_fd=self._tree)
        except IsADirectoryError:
            shutil.rmtree(path, dir_fd=self._tree)
        except FileNotFoundError:
            return

    def _free(self) -> None:
        """Delete files that no name and no power loss leads to any more."""
        for number in self.names.take_free():
            inode = self._inodes.pop(number)
            if inode.contents is not None:
                self._saved_bytes -= inode.contents.saved_bytes
            self._close(inode)
            if not stat.S_ISDIR(inode.mode):
                os.unlink(str(number), dir_fd=self._kept)


def _contents(inode: Inode) -> UnsyncedContents:
    if inode.contents is None:
        raise _error(errno.EISDIR if stat.S_ISDIR(inode.mode) else errno.EINVAL)
    return inode.contents


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
