"""Namespaces of mounts, and a FUSE file system mounted in one.

The mount is in a namespace of the server's own: as root in a plain one, else in a new user
namespace, in which the user is the same. So it is seen by the processes that enter there, and ends
with the last of them, whatever happens.

Source: mount_namespaces(7), user_namespaces(7), mount(2), Documentation/filesystems/fuse.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from shaketable.harness.network.enter import CLONE_NEWUSER, unshare

CLONE_NEWNS: Final = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 1 << 1, 1 << 2, 1 << 14, 1 << 18
MNT_DETACH: Final = 2
DEVICE: Final = "/dev/fuse"


def move_into_own_namespace() -> None:
    """Move this process into a mount namespace of its own. It must have one thread.

    Raises:
        OSError: the kernel refuses; its text says what.
    """
    try:
        unshare(CLONE_NEWNS)
    except PermissionError:
        user, group = os.geteuid(), os.getegid()
        try:
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
        except OSError as error:
            raise OSError(error.errno, f"no user namespace: {error.strerror}") from error
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount("none", "/", None, MS_REC | MS_PRIVATE, None)


def open_device() -> int:
    """Open the kernel's FUSE device.

    Raises:
        OSError: it is missing, or may not be opened; its text says what.
    """
    try:
        return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, f"cannot open {DEVICE}: {error.strerror}") from error


def mount(device: int, folder: Path) -> None:
    """Mount a new FUSE file system on a folder. Raises OSError: the kernel refuses."""
    options = (
        f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()},"
        "default_permissions,allow_other"
    )
    try:
        _mount("shaketable", str(folder), "fuse.shaketable", MS_NOSUID | MS_NODEV, options)
    except OSError as error:
        raise OSError(error.errno, f"cannot mount a FUSE file system: {error.strerror}") from error


def unmount(device: int, folder: Path) -> None:
    """Unmount it at once; calls that still wait for it fail (idempotent)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.umount2(os.fsencode(folder), MNT_DETACH)
    with suppress(OSError):
        os.close(device)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, data)]
    if libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
