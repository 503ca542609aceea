"""Carries out the kernel's requests on stored files, and says which calls to a disk they are."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from typing import Final

from shaketable.harness.volatile_disk import messages, orders
from shaketable.harness.volatile_disk.files import StoredFiles
from shaketable.harness.volatile_disk.messages import Op, Request
from shaketable.harness.volatile_disk.orders import Call

_CALLS: Final[Mapping[int, tuple[str, str]]] = {
    Op.READ: (orders.READ, "read"),
    Op.WRITE: (orders.WRITE, "write"),
    Op.FALLOCATE: (orders.WRITE, "fallocate"),
    Op.FSYNC: (orders.SYNC, "fsync"),
    Op.FSYNCDIR: (orders.SYNC, "fsync-dir"),
    Op.CREATE: (orders.NAME, "create"),
    Op.MKNOD: (orders.NAME, "mknod"),
    Op.MKDIR: (orders.NAME, "mkdir"),
    Op.SYMLINK: (orders.NAME, "symlink"),
    Op.LINK: (orders.NAME, "link"),
    Op.RENAME: (orders.NAME, "rename"),
    Op.RENAME2: (orders.NAME, "rename"),
    Op.UNLINK: (orders.NAME, "unlink"),
    Op.RMDIR: (orders.NAME, "rmdir"),
}
"""Kinds and names of calls. `truncate` is missing: it is an attribute that is set."""
_TRUNCATE: Final = Call(orders.WRITE, name="truncate")
CHANGING: Final = (
    *(name for kind, name in dict.fromkeys(_CALLS.values()) if kind != orders.READ), "truncate",
)  # fmt: skip
"""The names of all calls that change what is on a disk, or what a power loss leaves of it."""
_BEFORE_NAMES: Final[Mapping[int, int]] = {
    Op.CREATE: messages.CREATE_IN.size,
    Op.MKNOD: messages.MKNOD_IN.size,
    Op.MKDIR: messages.MKDIR_IN.size,
    Op.LINK: messages.LINK_IN.size,
    Op.RENAME: messages.RENAME_IN.size,
    Op.RENAME2: messages.RENAME2_IN.size,
}
"""How many bytes of a request come before its names."""
_NEED_SPACE: Final = frozenset({Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.LINK, Op.CREATE, Op.FALLOCATE})


def call_of(request: Request, files: StoredFiles) -> Call | None:
    """Return which call to a disk a request is; None if the disk has no part in it."""
    if request.op == Op.SETATTR:
        is_resize = messages.set_attributes(request.body).valid & messages.FATTR_SIZE
        return _TRUNCATE if is_resize else None
    if request.op not in _CALLS:
        return None
    kind, name = _CALLS[request.op]
    if request.op == Op.WRITE:
        _, offset, size, flags, *_ = messages.WRITE_IN.unpack_from(request.body)
        is_cached = bool(flags & messages.WRITE_CACHE)
        needs_space = files.needs_space(request.inode, offset, size)
        return Call(kind, needs_space, may_wait=not is_cached, name=name)
    return Call(kind, request.op in _NEED_SPACE, name=name)


def path_of(request: Request, files: StoredFiles) -> str:
    """Return which file or folder a call is about, from the disk's root; "" if it has no name."""
    op = request.op
    if op not in _CALLS or _CALLS[op][0] != orders.NAME:
        paths = (str(path) for path, inode in files.names.walk() if inode == request.inode)
        return next(paths, "")
    name = messages.names(request.body[_BEFORE_NAMES.get(op, 0) :])[0]
    return str(files.names.path(request.inode) / name)


class Requests:
    """Answers requests from the files.

    Attributes:
        keeps_cache: whether the kernel may answer reads of a file that is opened from its cache.
    """

    def __init__(self, files: StoredFiles) -> None:
        self.keeps_cache = True
        self._files = files
        self._lists: dict[int, list[tuple[str, int, int]]] = {}
        self._next_list = 1
        self._handlers: Mapping[int, Callable[[Request], bytes]] = {
            Op.LOOKUP: self._look_up,
            Op.GETATTR: self._attributes,
            Op.SETATTR: self._set_attributes,
            Op.READLINK: lambda asked: files.target(asked.inode),
            Op.SYMLINK: self._make_link,
            Op.MKNOD: self._make,
            Op.MKDIR: self._make_folder,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._remove_folder,
            Op.RENAME: self._rename,
            Op.RENAME2: self._rename2,
            Op.LINK: self._link,
            Op.OPEN: self._open,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.STATFS: self._statfs,
            Op.RELEASE: self._release,
            Op.FSYNC: self._sync,
            Op.INIT: lambda _: messages.init_out(),
            Op.OPENDIR: self._open_folder,
            Op.READDIR: self._read_folder,
            Op.RELEASEDIR: self._release_folder,
            Op.FSYNCDIR: self._sync_folder,
            Op.CREATE: self._create,
            Op.FALLOCATE: self._allocate,
        }
        self.is_full: Callable[[], bool] = lambda: False
        """Whether the disk shows no free room."""

    def carry_out(self, request: Request) -> bytes:
        """Carry a request out; return the whole answer."""
        handler = self._handlers.get(request.op)
        if handler is None:
            return messages.answer(request.number, error=errno.ENOSYS)
        try:
            return messages.answer(request.number, handler(request))
        except OSError as error:
            return messages.answer(request.number, error=error.errno or errno.EIO)
        except KeyError:  # an inode that is gone
            return messages.answer(request.number, error=errno.ESTALE)

    def forget(self, request: Request) -> None:
        """Carry out FORGET or BATCH_FORGET, which have no answer."""
        for inode, looks in messages.forgotten(request.op, request.inode, request.body):
            self._files.forget(inode, looks)

    # ---- names ----------------------------------------------------------------------------------

    def _entry(self, inode: int) -> bytes:
        return messages.entry(self._files.seen(inode))

    def _look_up(self, asked: Request) -> bytes:
        (name,) = messages.names(asked.body)
        return self._entry(self._files.look_up(asked.inode, name))

    def _make(self, asked: Request) -> bytes:
        mode, device, _, _ = messages.MKNOD_IN.unpack_from(asked.body)
        (name,) = messages.names(asked.body[messages.MKNOD_IN.size :])
        mode = mode if stat.S_IFMT(mode) else mode | stat.S_IFREG
        made = self._files.make(asked.inode, name, mode, device, (asked.user, asked.group))
        return self._entry(made)

    def _create(self, asked: Request) -> bytes:
        _, mode, _, _ = messages.CREATE_IN.unpack_from(asked.body)
        (name,) = messages.names(asked.body[messages.CREATE_IN.size :])
        mode = stat.S_IMODE(mode) | stat.S_IFREG
        made = self._files.make(asked.inode, name, mode, 0, (asked.user, asked.group))
        entry = self._entry(made)
        self._files.open(made)
        return entry + self._opened()

    def _make_link(self, asked: Request) -> bytes:
        name, target = messages.names(asked.body)
        owner = asked.user, asked.group
        return self._entry(self._files.make_link(asked.inode, name, target, owner))

    def _make_folder(self, asked: Request) -> bytes:
        mode, _ = messages.MKDIR_IN.unpack_from(asked.body)
        (name,) = messages.names(asked.body[messages.MKDIR_IN.size :])
        owner = asked.user, asked.group
        return self._entry(self._files.make_folder(asked.inode, name, stat.S_IMODE(mode), owner))

    def _link(self, asked: Request) -> bytes:
        (inode,) = messages.LINK_IN.unpack_from(asked.body)
        (name,) = messages.names(asked.body[messages.LINK_IN.size :])
        self._files.link(inode, asked.inode, name)
        return self._entry(inode)

    def _unlink(self, asked: Request) -> bytes:
        (name,) = messages.names(asked.body)
        self._files.unlink(asked.inode, name)
        return b""

    def _remove_folder(self, asked: Request) -> bytes:
        (name,) = messages.names(asked.body)
        self._files.remove_folder(asked.inode, name)
        return b""

    def _rename(self, asked: Request) -> bytes:
        (folder,) = messages.RENAME_IN.unpack_from(asked.body)
        old, new = messages.names(asked.body[messages.RENAME_IN.size :])
        self._files.rename(asked.inode, old, folder, new, 0)
        return b""

    def _rename2(self, asked: Request) -> bytes:
        folder, flags, _ = messages.RENAME2_IN.unpack_from(asked.body)
        old, new = messages.names(asked.body[messages.RENAME2_IN.size :])
        self._files.rename(asked.inode, old, folder, new, flags)
        return b""

    def _open_folder(self, asked: Request) -> bytes:
        self._files.open(asked.inode)
        handle, self._next_list = self._next_list, self._next_list + 1
        self._lists[handle] = self._files.listed(asked.inode)
        return messages.OPEN_OUT.pack(handle, 0, 0)

    def _read_folder(self, asked: Request) -> bytes:
        handle, offset, size, *_ = messages.READ_IN.unpack_from(asked.body)
        if not offset:  # rewinddir(3) reads it again
            self._lists[handle] = self._files.listed(asked.inode)
        return messages.directory(self._lists[handle], offset, size)

    def _release_folder(self, asked: Request) -> bytes:
        (handle,) = messages.HANDLE_IN.unpack_from(asked.body)
        self._lists.pop(handle, None)
        self._files.release(asked.inode)
        return b""

    def _sync_folder(self, asked: Request) -> bytes:
        self._files.sync_folder(asked.inode)
        return b""

    # ---- files ----------------------------------------------------------------------------------

    def _opened(self) -> bytes:
        return messages.OPEN_OUT.pack(0, messages.KEEP_CACHE if self.keeps_cache else 0, 0)

    def _open(self, asked: Request) -> bytes:
        self._files.open(asked.inode)
        return self._opened()

    def _release(self, asked: Request) -> bytes:
        self._files.release(asked.inode)
        return b""

    def _read(self, asked: Request) -> bytes:
        _, offset, size, *_ = messages.READ_IN.unpack_from(asked.body)
        return self._files.read(asked.inode, offset, size)

    def _write(self, asked: Request) -> bytes:
        _, offset, size, how, _, flags, _ = messages.WRITE_IN.unpack_from(asked.body)
        data = asked.body[messages.WRITE_IN.size : messages.WRITE_IN.size + size]
        is_synced = bool(flags & os.O_DSYNC) and not how & messages.WRITE_CACHE
        written = self._files.write(asked.inode, offset, data, is_synced=is_synced)
        return messages.WRITE_OUT.pack(written, 0)

    def _sync(self, asked: Request) -> bytes:
        self._files.sync(asked.inode)
        return b""

    def _allocate(self, asked: Request) -> bytes:
        _, offset, length, mode, _ = messages.FALLOCATE_IN.unpack_from(asked.body)
        self._files.allocate(asked.inode, offset, length, mode)
        return b""

    def _attributes(self, asked: Request) -> bytes:
        return messages.attributes_out(self._files.attributes(asked.inode))

    def _set_attributes(self, asked: Request) -> bytes:
        self._files.set_attributes(asked.inode, messages.set_attributes(asked.body))
        return self._attributes(asked)

    def _statfs(self, asked: Request) -> bytes:
        found = self._files.room()
        free = 0 if self.is_full() else found.f_bavail
        return messages.statfs_out(
            found.f_frsize, found.f_blocks, free, found.f_files, found.f_ffree
        )
