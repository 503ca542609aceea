"""The kernel's FUSE protocol: what is read from /dev/fuse, and what is written to it. Pure.

Only what this file system needs. A request is a header and a body; an answer has the request's
number, an errno or 0, and a body.

Source: include/uapi/linux/fuse.h of Linux, version 7.31 of the protocol; fuse(4).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

MAJOR: Final = 7
MINOR: Final = 31
WRITE_BYTES_MAX: Final = 1 << 20
PAGES_MAX: Final = 256
REQUEST_BYTES_MAX: Final = WRITE_BYTES_MAX + 4096
"""What must be read from /dev/fuse at once: the largest write, and its headers."""
VALID_S: Final = 86_400
"""How long the kernel may use names and attributes without asking: only it changes them."""
KEEP_CACHE: Final = 1 << 1
WRITE_CACHE: Final = 1 << 0
_FLAGS: Final = (1 << 0) | (1 << 5) | (1 << 18) | (1 << 22)
"""ASYNC_READ, BIG_WRITES, PARALLEL_DIROPS, MAX_PAGES."""


class Op(IntEnum):
    """The requests that are answered; to any other the answer is ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45


class Request(NamedTuple):
    """One request of the kernel.

    Attributes:
        op: what is asked, one of `Op` or another number.
        number: what its answer has to bear.
        inode: of which file or folder.
        user, group: on whose behalf.
        thread: the id of the thread that waits for the answer.
        body: the rest.
    """

    op: int
    number: int
    inode: int
    user: int
    group: int
    thread: int
    body: memoryview


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat(2) shows. Times are in ns since the epoch."""

    inode: int
    size: int
    blocks: int
    access_ns: int
    change_ns: int
    status_ns: int
    mode: int
    links: int
    user: int
    group: int
    device: int


class SetAttributes(NamedTuple):
    """The body of SETATTR; `valid` says which of the others are meant (the FATTR_ constants)."""

    valid: int
    size: int
    access_ns: int
    change_ns: int
    mode: int
    user: int
    group: int


FATTR_MODE, FATTR_UID, FATTR_GID, FATTR_SIZE = 1 << 0, 1 << 1, 1 << 2, 1 << 3
FATTR_ATIME, FATTR_MTIME, FATTR_ATIME_NOW, FATTR_MTIME_NOW = 1 << 4, 1 << 5, 1 << 7, 1 << 8

_IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
_OUT_HEADER: Final = struct.Struct("=IiQ")
_INIT_OUT: Final = struct.Struct("=IIIIHHIIHHI28x")
_ATTRIBUTES: Final = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY: Final = struct.Struct("=QQQQII")
_ATTRIBUTES_OUT: Final = struct.Struct("=QII")
_SET_ATTRIBUTES: Final = struct.Struct("=II QQQ QQQ III I4x II4x")
_DIRECTORY_ENTRY: Final = struct.Struct("=QQII")
OPEN_OUT: Final = struct.Struct("=QII")
OPEN_IN: Final = struct.Struct("=II")
CREATE_IN: Final = struct.Struct("=IIII")
MKNOD_IN: Final = struct.Struct("=IIII")
MKDIR_IN: Final = struct.Struct("=II")
RENAME_IN: Final = struct.Struct("=Q")
RENAME2_IN: Final = struct.Struct("=QII")
LINK_IN: Final = struct.Struct("=Q")
READ_IN: Final = struct.Struct("=QQIIQII")
WRITE_IN: Final = struct.Struct("=QQIIQII")
WRITE_OUT: Final = struct.Struct("=II")
HANDLE_IN: Final = struct.Struct("=Q")
FALLOCATE_IN: Final = struct.Struct("=QQQII")
FORGET_IN: Final = struct.Struct("=Q")
_BATCH_IN: Final = struct.Struct("=II")
_FORGET_ONE: Final = struct.Struct("=QQ")
_STATFS: Final = struct.Struct("=QQQQQIIII24x")


def request(data: memoryview) -> Request:
    """Parse what was read from /dev/fuse."""
    _, op, number, inode, user, group, thread, _, _ = _IN_HEADER.unpack_from(data)
    return Request(op, number, inode, user, group, thread, data[_IN_HEADER.size :])


def answer(number: int, body: bytes = b"", error: int = 0) -> bytes:
    """Return the answer to a request: a body, or an errno."""
    return _OUT_HEADER.pack(_OUT_HEADER.size + len(body), -error, number) + body


def init_out() -> bytes:
    """Return the answer's body to INIT: what this file system can do."""
    return _INIT_OUT.pack(
        MAJOR, MINOR, 1 << 17, _FLAGS, 64, 48, WRITE_BYTES_MAX, 1, PAGES_MAX, 0, 0
    )


def names(body: memoryview) -> list[str]:
    """Return the names of a body, which end with a zero byte each."""
    return [name.decode(errors="surrogateescape") for name in bytes(body).split(b"\0")[:-1]]


def entry(attributes: Attributes) -> bytes:
    """Return what a name stands for."""
    return _ENTRY.pack(attributes.inode, 0, VALID_S, VALID_S, 0, 0) + _packed(attributes)


def attributes_out(attributes: Attributes) -> bytes:
    """Return the answer's body to GETATTR and SETATTR."""
    return _ATTRIBUTES_OUT.pack(VALID_S, 0, 0) + _packed(attributes)


def set_attributes(body: memoryview) -> SetAttributes:
    """Parse the body of SETATTR."""
    found = _SET_ATTRIBUTES.unpack_from(body)
    valid, size = found[0], found[3]
    access_s, change_s, access_ns, change_ns = found[5], found[6], found[8], found[9]
    return SetAttributes(
        valid,
        size,
        access_s * 10**9 + access_ns,
        change_s * 10**9 + change_ns,
        found[11],
        found[12],
        found[13],
    )


def directory(entries: Iterable[tuple[str, int, int]], start: int, size: int) -> bytes:
    """Return entries (name, inode, mode) from place `start` on, as many as fit into `size`."""
    out = b""
    for place, (name, inode, mode) in enumerate(entries):
        if place < start:
            continue
        text = name.encode(errors="surrogateescape")
        packed = _DIRECTORY_ENTRY.pack(inode, place + 1, len(text), mode >> 12) + text
        packed += bytes(-len(packed) % 8)
        if len(out) + len(packed) > size:
            break
        out += packed
    return out


def forgotten(op: int, inode: int, body: memoryview) -> list[tuple[int, int]]:
    """Return the inodes of FORGET or BATCH_FORGET, and how many looks at each are over."""
    if op == Op.FORGET:
        return [(inode, FORGET_IN.unpack_from(body)[0])]
    count, _ = _BATCH_IN.unpack_from(body)
    at = _BATCH_IN.size
    return [_FORGET_ONE.unpack_from(body, at + n * _FORGET_ONE.size) for n in range(count)]


def statfs_out(block: int, blocks: int, free: int, files: int, files_free: int) -> bytes:
    """Return the answer's body to STATFS; `block` is the size of a block in bytes."""
    return _STATFS.pack(blocks, free, free, files, files_free, block, 255, block, 0)


def _packed(of: Attributes) -> bytes:
    access, change, status = (
        divmod(ns, 10**9) for ns in (of.access_ns, of.change_ns, of.status_ns)
    )
    return _ATTRIBUTES.pack(
        of.inode, of.size, of.blocks, access[0], change[0], status[0],
        access[1], change[1], status[1], of.mode, of.links, of.user, of.group, of.device, 4096, 0,
    )  # fmt: skip
