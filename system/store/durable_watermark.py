"""The durable watermark: the log is known to be on disk up to there.

Bytes after the watermark may be torn by a crash, and recovery truncates them; damage before it
means that the disk lost synced data (DESIGN.md decision 2). The file `syncedto` has two slots of
4 KiB, each with a CRC, written alternately: a crash during a write leaves the other slot intact.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Self

from shaketable.system.raft.batch import LogEnd
from shaketable.system.store.disk import Disk, File, replace_file
from shaketable.system.store.hard_state import LogDamaged

SLOT_BYTES = 4096
_MAGIC = b"syncedto"
_RECORD = struct.Struct(">8sQ?QqqqIqqqIqq")
_CRC = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class WatermarkRecord:
    """The contents of one slot.

    `start` is the log's start (the place before its first entry), `end` the durable watermark.
    Up to byte `cut_until` a truncation was to write zeros: old bytes may still be on the disk
    there, even if zeros are read (after a failed fsync they are in the page cache only).
    `is_complete` is false only until the folder of a new node is complete. `native_end` is where
    the native commit log of before the upgrade ends and DLedger's entries start (RocketMQ's
    dividedCommitlogOffset), 0 if there was none.
    """

    sequence: int
    is_complete: bool
    data_file_bytes: int
    start: LogEnd
    end: LogEnd
    cut_until: int
    native_end: int = 0


class DurableWatermark:
    """The current watermark and its file."""

    def __init__(self, file: File, record: WatermarkRecord) -> None:
        self._file = file
        self.record = record

    @classmethod
    def create(cls, disk: Disk, path: str, data_file_bytes: int, native_end: int = 0) -> Self:
        """Create the watermark of a new, empty log, which starts at the native log's end."""
        start = LogEnd(position=native_end)
        record = WatermarkRecord(1, False, data_file_bytes, start, start, 0, native_end)
        replace_file(disk, path, bytes(SLOT_BYTES) + _encode(record))
        return cls(disk.open(path), record)

    @classmethod
    def open(cls, disk: Disk, path: str) -> Self:
        """Read the newest intact slot. Raises LogDamaged if none is."""
        file = disk.open(path)
        slots = (file.pread(SLOT_BYTES, number * SLOT_BYTES) for number in (0, 1))
        records = [record for slot in slots if (record := _decode(slot))]
        if not records:
            file.close()
            raise LogDamaged(path, "neither slot of the synced-to mark can be read")
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
        self._file.pwrite([_encode(record)], record.sequence % 2 * SLOT_BYTES)
        self._file.sync()
        self.record = record


def _encode(record: WatermarkRecord) -> bytes:
    packed = _RECORD.pack(
        _MAGIC,
        record.sequence,
        record.is_complete,
        record.data_file_bytes,
        *_fields(record.start),
        *_fields(record.end),
        record.cut_until,
        record.native_end,
    )
    return (packed + _CRC.pack(zlib.crc32(packed))).ljust(SLOT_BYTES, b"\0")


def _decode(slot: bytes) -> WatermarkRecord | None:
    packed, crc = slot[: _RECORD.size], slot[_RECORD.size : _RECORD.size + _CRC.size]
    if len(slot) < SLOT_BYTES or crc != _CRC.pack(zlib.crc32(packed)):
        return None
    magic, sequence, is_complete, data_file_bytes, *ends, cut_until, native_end = _RECORD.unpack(
        packed
    )
    if magic != _MAGIC:
        return None
    start, end = LogEnd(*ends[:4]), LogEnd(*ends[4:])
    return WatermarkRecord(
        sequence, is_complete, data_file_bytes, start, end, cut_until, native_end
    )


def _fields(end: LogEnd) -> tuple[int, int, int, int]:
    return end.index, end.term, end.position, end.chain_crc
