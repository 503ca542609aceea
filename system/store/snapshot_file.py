"""The file `snapshot`, which replaces the entries before the log's start.

It is replaced atomically, so that a crash leaves the old or the new one. The log's start, in the
watermark's record, moves to it afterwards: if the two differ at the next start, a compaction or an
installation was interrupted, and `replaces_log` says which.
Source: Raft section 7; DLedger 0.4.0's SnapshotManager; DESIGN.md decision 3.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import msgspec

from shaketable.system.raft.batch import LogEnd
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.disk import Disk, read_file, replace_file
from shaketable.system.store.hard_state import LogDamaged

_HEAD = struct.Struct(">8sI")  # magic, CRC-32 of all that follows
_MAGIC = b"snapshot"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as stored in the file.

    With `replaces_log` it came from the leader, and nothing of the existing log is kept; without,
    it was taken from this log, and the entries after it are kept.
    """

    snapshot: Snapshot
    replaces_log: bool


class _Record(msgspec.Struct, frozen=True):
    index: int
    term: int
    position: int
    chain_crc: int
    membership: Membership
    membership_index: int
    replaces_log: bool
    state: bytes


def path_of(folder: str) -> str:
    """Return the path of the snapshot of the log in `folder`."""
    return f"{folder}/snapshot"


def save_snapshot(disk: Disk, folder: str, stored: StoredSnapshot) -> None:
    """Replace the stored snapshot durably. Raises DiskFull, DiskFailed."""
    snapshot, end = stored.snapshot, stored.snapshot.end
    record = _Record(
        end.index,
        end.term,
        end.position,
        end.chain_crc,
        snapshot.membership,
        snapshot.membership_index,
        stored.replaces_log,
        snapshot.state,
    )
    data = msgspec.msgpack.encode(record)
    replace_file(disk, path_of(folder), _HEAD.pack(_MAGIC, zlib.crc32(data)) + data)


def load_snapshot(disk: Disk, folder: str) -> StoredSnapshot | None:
    """Read the snapshot, None if there is none. Raises LogDamaged if it is damaged."""
    path = path_of(folder)
    if not disk.exists(path):
        return None
    raw = read_file(disk, path)
    data = raw[_HEAD.size :]
    if raw[: _HEAD.size] != _HEAD.pack(_MAGIC, zlib.crc32(data)):
        raise LogDamaged(path, "the snapshot cannot be read: its CRC does not fit")
    try:
        record = msgspec.msgpack.decode(data, type=_Record)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LogDamaged(path, f"the snapshot cannot be read: {error}") from None
    end = LogEnd(record.index, record.term, record.position, record.chain_crc)
    snapshot = Snapshot(end, record.membership, record.membership_index, record.state)
    return StoredSnapshot(snapshot, record.replaces_log)
