"""RocketMQ's `abort` file: it stands there while a node runs, and after one that did not end well.

Source: DefaultMessageStore.createTempFile and isTempFileExist; DLEDGER.md B.2.
"""

from __future__ import annotations

from system.store.disk import Disk

ABORT_FILE = "abort"


def place_abort_marker(disk: Disk, store_root: str) -> bool:
    """Put the marker there; return whether the last node to run here left one behind."""
    path = f"{store_root}/{ABORT_FILE}"
    if disk.exists(path):
        return True
    disk.make_dirs(store_root)
    disk.create(path, 0, reserve=False).close()
    disk.sync_dir(store_root)
    return False


def remove_abort_marker(disk: Disk, store_root: str) -> None:
    """Take it away, durably: everything was written and closed in order."""
    path = f"{store_root}/{ABORT_FILE}"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_dir(store_root)
