"""The small files beside the log: `currterm` and `checkpoint` (Java properties), and `abort`.

They hold DLedger's keys and a `crc32` of our own, which DLedger ignores: a damaged vote must not
be read as another vote. Source: DLedger's MemberState and DLedgerMmapFileStore; DLEDGER.md B.3,
E16.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from pathlib import PurePosixPath

from shaketable.system.store.disk import Disk, StoreError, read_file, replace_file

_NODE_ID = re.compile(r"[A-Za-z0-9_.-]+")
_REMEDY = "restore this node from the group; it does not vote until then"


class LogDamaged(StoreError):  # noqa: N818 - a finding about the files
    """Synced data is lost or damaged. The node must not vote until it is restored.

    It could elect a leader that lacks entries which this node had acknowledged.
    """

    def __init__(self, path: str, finding: str) -> None:
        super().__init__(f"{path}: {finding}; {_REMEDY}")


@dataclass(frozen=True, slots=True)
class HardState:
    """Raft's durable state (DLedger's currterm): the current term and the vote in it."""

    term: int = 0
    voted_for: str | None = None


def save_hard_state(disk: Disk, folder: str, state: HardState) -> None:
    """Make term and vote durable."""
    if state.voted_for is not None and not _NODE_ID.fullmatch(state.voted_for):
        raise ValueError(f"node id {state.voted_for!r} is not made of letters, digits, _ . -")
    _save(disk, f"{folder}/currterm", currTerm=state.term, voteLeader=state.voted_for or "")


def load_hard_state(disk: Disk, folder: str) -> HardState:
    """Read term and vote. Raises LogDamaged if they are missing or damaged.

    A default would let the node vote twice in one term.
    """
    path = f"{folder}/currterm"
    if not disk.exists(path):
        raise LogDamaged(path, "the file with this node's term and vote is missing")
    try:
        values = _parse(read_file(disk, path))
        return HardState(int(values["currTerm"]), values["voteLeader"] or None)
    except (ValueError, KeyError):
        raise LogDamaged(path, "this node's term and vote cannot be read") from None


def save_committed_index(disk: Disk, folder: str, end_index: int, committed_index: int) -> None:
    """Write the checkpoint durably."""
    _save(disk, f"{folder}/checkpoint", endIndex=end_index, committedIndex=committed_index)


def load_committed_index(disk: Disk, folder: str) -> int:
    """Read the checkpoint's committed index; -1 if it is missing or damaged."""
    path = f"{folder}/checkpoint"
    if not disk.exists(path):
        return -1
    try:
        return int(_parse(read_file(disk, path))["committedIndex"])
    except (ValueError, KeyError):
        return -1


def mark_running(disk: Disk, root: str) -> bool:
    """Create the file `abort` durably; return whether it existed: the last run was killed.

    Source: RocketMQ's DefaultMessageStore (createTempFile).
    """
    path = f"{root}/abort"
    was_aborted = disk.exists(path)
    if not was_aborted:
        disk.create(path, 0, reserve=False).close()
    disk.sync_dir(str(PurePosixPath(path).parent))
    return was_aborted


def mark_stopped(disk: Disk, root: str) -> None:
    """Remove `abort`: the shutdown was clean."""
    path = f"{root}/abort"
    if disk.exists(path):
        disk.unlink(path)
        disk.sync_dir(str(PurePosixPath(path).parent))


def _save(disk: Disk, path: str, **values: int | str) -> None:
    text = "".join([f"{key}={value}\n" for key, value in values.items()]).encode()
    replace_file(disk, path, text + b"crc32=%08x\n" % zlib.crc32(text))


def _parse(data: bytes) -> dict[str, str]:
    """Parse properties. Raises ValueError if they are not as `_save` wrote them."""
    text, found, crc = data.rpartition(b"crc32=")
    if not found or crc != b"%08x\n" % zlib.crc32(text):
        raise ValueError("crc32 does not fit")
    pairs = [line.partition("=") for line in text.decode().splitlines()]
    return {key: value for key, _, value in pairs}
