"""The small files beside the log: hard state, checkpoint, durable watermark, snapshot.

`currterm` and `checkpoint` (Java properties) hold DLedger's keys and a `crc32` of our own, which
DLedger ignores: a damaged vote must not be read as another vote.
Source: DLedger's MemberState and DLedgerMmapFileStore; DLEDGER.md B.3, E16.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Self

import msgspec

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot
from shaketable.system.store.disk import Disk, File, StoreError, read_file, replace_file

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
    _save_properties(
        disk, f"{folder}/currterm", currTerm=state.term, voteLeader=state.voted_for or ""
    )


def load_hard_state(disk: Disk, folder: str) -> HardState:
    """Read term and vote. Raises LogDamaged if they are missing or damaged.

    A default would let the node vote twice in one term.
    """
    path = f"{folder}/currterm"
    if not disk.exists(path):
        raise LogDamaged(path, "the file with this node's term and vote is missing")
    try:
        values = _parse_properties(read_file(disk, path))
        return HardState(int(values["currTerm"]), values["voteLeader"] or None)
    except (ValueError, KeyError):
        raise LogDamaged(path, "this node's term and vote cannot be read") from None


def save_committed_index(disk: Disk, folder: str, end_index: int, committed_index: int) -> None:
    """Write the checkpoint durably."""
    _save_properties(
        disk, f"{folder}/checkpoint", endIndex=end_index, committedIndex=committed_index
    )


def load_committed_index(disk: Disk, folder: str) -> int:
    """Read the checkpoint's committed index; -1 if it is missing or damaged."""
    path = f"{folder}/checkpoint"
    if not disk.exists(path):
        return -1
    try:
        return int(_parse_properties(read_file(disk, path))["committedIndex"])
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


def _save_properties(disk: Disk, path: str, **values: int | str) -> None:
    text = "".join([f"{key}={value}\n" for key, value in values.items()]).encode()
    replace_file(disk, path, text + b"crc32=%08x\n" % zlib.crc32(text))


def _parse_properties(data: bytes) -> dict[str, str]:
    """Parse properties. Raises ValueError if they are not as `_save_properties` wrote them."""
    text, found, crc = data.rpartition(b"crc32=")
    if not found or crc != b"%08x\n" % zlib.crc32(text):
        raise ValueError("crc32 does not fit")
    pairs = [line.partition("=") for line in text.decode().splitlines()]
    return {key: value for key, _, value in pairs}


# The durable watermark: the log is known to be on disk up to there.
#
# Bytes after the watermark may be torn by a crash, and recovery truncates them; damage before it
# means that the disk lost synced data (DESIGN.md decision 2). The file `syncedto` has two slots of
# 4 KiB, each with a CRC, written alternately: a crash during a write leaves the other slot intact.

SLOT_BYTES = 4096
_WATERMARK_MAGIC = b"syncedto"
_SLOT = struct.Struct(">8sQ?QqqqIqqqIqq")
_SLOT_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class WatermarkRecord:
    """The contents of one slot.

    `start` is the log's start (the place before its first entry), `end` the durable watermark.
    Up to byte `cut_until` a truncation was to write zeros: old bytes may still be on the disk
    there, even if zeros are read (after a failed fsync they are in the page cache only).
    `is_complete` is false only until the folder of a new node is complete. `plain_end` is where
    the plain commit log of before the upgrade ends and DLedger's entries start (RocketMQ's
    dividedCommitlogOffset), 0 if there was none.
    """

    sequence: int
    is_complete: bool
    data_file_bytes: int
    start: LogEnd
    end: LogEnd
    cut_until: int
    plain_end: int = 0


class DurableWatermark:
    """The current watermark and its file."""

    def __init__(self, file: File, record: WatermarkRecord) -> None:
        self._file = file
        self.record = record

    @classmethod
    def create(cls, disk: Disk, path: str, data_file_bytes: int, plain_end: int = 0) -> Self:
        """Create the watermark of a new, empty log, which starts at the plain log's end."""
        start = LogEnd(position=plain_end)
        record = WatermarkRecord(1, False, data_file_bytes, start, start, 0, plain_end)
        replace_file(disk, path, bytes(SLOT_BYTES) + _encode_slot(record))
        return cls(disk.open(path), record)

    @classmethod
    def open(cls, disk: Disk, path: str) -> Self:
        """Read the newest intact slot. Raises LogDamaged if none is."""
        file = disk.open(path)
        slots = (file.pread(SLOT_BYTES, number * SLOT_BYTES) for number in (0, 1))
        records = [record for slot in slots if (record := _decode_slot(slot))]
        if not records:
            file.close()
            raise LogDamaged(path, "neither slot of the durable watermark can be read")
        return cls(file, max(records, key=lambda record: record.sequence))

    def move(self, end: LogEnd, cut_until: int = 0) -> None:
        """Move the watermark up or down, durably; pass `cut_until` before zeros are written."""
        sequence = self.record.sequence + 1
        self._write(replace(self.record, sequence=sequence, end=end, cut_until=cut_until))

    def set_start(self, start: LogEnd, end: LogEnd) -> None:
        """Change the log's start and its watermark in one durable write."""
        sequence = self.record.sequence + 1
        self._write(replace(self.record, sequence=sequence, start=start, end=end, cut_until=0))

    def complete(self) -> None:
        """Record durably that the folder of the new node is complete."""
        self._write(replace(self.record, sequence=self.record.sequence + 1, is_complete=True))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, record: WatermarkRecord) -> None:
        self._file.pwrite([_encode_slot(record)], record.sequence % 2 * SLOT_BYTES)
        self._file.sync()
        self.record = record


def _encode_slot(record: WatermarkRecord) -> bytes:
    packed = _SLOT.pack(
        _WATERMARK_MAGIC,
        record.sequence,
        record.is_complete,
        record.data_file_bytes,
        *_end_fields(record.start),
        *_end_fields(record.end),
        record.cut_until,
        record.plain_end,
    )
    return (packed + _SLOT_CRC.pack(zlib.crc32(packed))).ljust(SLOT_BYTES, b"\0")


def _decode_slot(slot: bytes) -> WatermarkRecord | None:
    packed, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + _SLOT_CRC.size]
    if len(slot) < SLOT_BYTES or crc != _SLOT_CRC.pack(zlib.crc32(packed)):
        return None
    magic, sequence, is_complete, data_file_bytes, *ends, cut_until, plain_end = _SLOT.unpack(
        packed
    )
    if magic != _WATERMARK_MAGIC:
        return None
    start, end = LogEnd(*ends[:4]), LogEnd(*ends[4:])
    return WatermarkRecord(sequence, is_complete, data_file_bytes, start, end, cut_until, plain_end)


def _end_fields(end: LogEnd) -> tuple[int, int, int, int]:
    return end.index, end.term, end.position, end.chain_crc


# The file `snapshot`, which replaces the entries before the log's start.
#
# It is replaced atomically, so that a crash leaves the old or the new one. The log's start, in the
# watermark's record, moves to it afterwards: if the two differ at the next start, a compaction or
# an installation was interrupted, and `replaces_log` says which.
# Source: Raft section 7; DLedger 0.4.0's SnapshotManager; DESIGN.md decision 3.

_SNAPSHOT_HEAD = struct.Struct(">8sI")  # magic, CRC-32 of all that follows
_SNAPSHOT_MAGIC = b"snapshot"


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot as stored in the file.

    With `replaces_log` it came from the leader, and nothing of the existing log is kept; without,
    it was taken from this log, and the entries after it are kept.
    """

    snapshot: Snapshot
    replaces_log: bool


class _SnapshotRecord(msgspec.Struct, frozen=True):
    index: int
    term: int
    position: int
    chain_crc: int
    membership: Membership
    membership_index: int
    replaces_log: bool
    state: bytes


def snapshot_path(folder: str) -> str:
    """Return the path of the snapshot of the log in `folder`."""
    return f"{folder}/snapshot"


def save_snapshot(disk: Disk, folder: str, stored: StoredSnapshot) -> None:
    """Replace the stored snapshot durably. Raises DiskFull, DiskFailed."""
    snapshot, end = stored.snapshot, stored.snapshot.end
    record = _SnapshotRecord(
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
    replace_file(
        disk, snapshot_path(folder), _SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, zlib.crc32(data)) + data
    )


def load_snapshot(disk: Disk, folder: str) -> StoredSnapshot | None:
    """Read the snapshot, None if there is none. Raises LogDamaged if it is damaged."""
    path = snapshot_path(folder)
    if not disk.exists(path):
        return None
    raw = read_file(disk, path)
    data = raw[_SNAPSHOT_HEAD.size :]
    if raw[: _SNAPSHOT_HEAD.size] != _SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, zlib.crc32(data)):
        raise LogDamaged(path, "the snapshot cannot be read: its CRC does not fit")
    try:
        record = msgspec.msgpack.decode(data, type=_SnapshotRecord)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise LogDamaged(path, f"the snapshot cannot be read: {error}") from None
    end = LogEnd(record.index, record.term, record.position, record.chain_crc)
    snapshot = Snapshot(end, record.membership, record.membership_index, record.state)
    return StoredSnapshot(snapshot, record.replaces_log)
