"""Read regular files of untrusted folders: without blocking on pipes, and bounded in size.

A run's folder may have been unpacked from a download, or written by another harness.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


class NoPlainFileError(Exception):
    """There is no regular file at that path, or it is too large; the message states which."""


def open_plain(path: Path, *, follow_links: bool = True) -> tuple[BinaryIO, int]:
    """Open a regular file; return it with its size in bytes.

    Raises:
        NoPlainFileError: it does not exist, is not a regular file, or is not readable.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise NoPlainFileError(getattr(error, "strerror", None) or str(error)) from error
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        os.close(handle)
        raise NoPlainFileError("not a regular file")
    return os.fdopen(handle, "rb"), facts.st_size


def read_plain(path: Path, bytes_max: int, *, follow_links: bool = True) -> bytes:
    """Read a regular file of at most `bytes_max` bytes.

    Raises:
        NoPlainFileError: there is none, it cannot be read, or it is larger.
    """
    file, _ = open_plain(path, follow_links=follow_links)
    with file:
        try:
            data = file.read(bytes_max + 1)
        except OSError as error:
            raise NoPlainFileError(error.strerror or str(error)) from error
    if len(data) > bytes_max:
        raise NoPlainFileError(f"more than {bytes_max >> 20} MiB")
    return data
