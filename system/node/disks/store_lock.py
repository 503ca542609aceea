"""Lock of a store folder, so that only one process uses it: RocketMQ's `lock` file.

It is a kernel lock (flock), so it is released however the process ends.
Source: BrokerController / DefaultMessageStore.start (lock file); Linux man page flock(2).
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_FILE = "lock"


class StoreInUseError(Exception):
    """Another process uses the store folder. The message is one line that names the folder."""


def lock_store(folder: Path) -> int:
    """Lock a store folder for this process and return the open file that holds the lock.

    Raises StoreInUseError, and OSError if the folder or the file cannot be created.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK_FILE
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StoreInUseError(
            f"{folder} is in use by another process, which holds {path}; "
            "end it or set storePathRootDir to another folder"
        ) from None
    os.truncate(fd, 0)
    os.write(fd, b"%d\n" % os.getpid())
    return fd
