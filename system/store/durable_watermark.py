"""The synced-to mark: up to where the log is known to have reached the disk.

What lies behind the mark may be torn by a crash and is truncated; damage in front of it means
that the disk lost synced data (DESIGN.md decision 2). The file `syncedto` has two slots of 4 KiB,
written in turn and each with a CRC: a crash while one is written leaves the other.
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
    """What one slot says.

    `start` is the log's end in front of its first entry, `end` the end that is synced. Up to
    `cut_until` old bytes may stand on the disk that were to be zeroed, even where zeros are read
    (an fsync that failed leaves them in the page cache alone).
    `is_complete` is false only until the folder of a new node is complete. `native_end` is where
    the old native commit log ends and DLedger's entries start (RocketMQ's dividedCommitlogOffset),
    0 where there was none.
    """

    sequence: int
    is_complete: bool
    data_file_bytes: int
    start: LogEnd
    end: LogEnd
    cut_until: int
    native_end: int = 0


class DurableWatermark:
    """The mark and its file."""

    def __init__(self, file: File, record: WatermarkRecord) -> None:
        self._file = file
        self.record = record

    @classmethod
    def create(cls, disk: Disk, path: str, data_file_bytes: int, native_end: int = 0) -> Self:
        """Start the mark of a new, empty log, behind a native log if there is one."""
        start = LogEnd(position=native_end)
        record = WatermarkRecord(1, False, data_file_bytes, start, start, 0, native_end)
        replace_file(disk, path, bytes(SLOT_BYTES) + _encode(record))
        return cls(disk.open(path), record)

    @classmethod
    def open(cls, disk: Disk, path: str) -> Self:
        """Read the newer slot that is whole; raises LogDamaged if none is."""
        file = disk.open(path)
        slots = (file.pread(SLOT_BYTES, number * SLOT_BYTES) for number in (0, 1))
        records = [record for slot in slots if (record := _decode(slot))]
        if not records:
            file.close()
            raise LogDamaged(path, "neither slot of the synced-to mark can be read")
        return cls(file, max(records, key=lambda record: record.sequence))

    def move(self, end: LogEnd, cut_until: int = 0) -> None:
        """Make another end durable, higher or lower; `cut_until` before a cut begins."""
        sequence = self.record.sequence + 1
        self._write(replace(self.record, sequence=sequence, end=end, cut_until=cut_until))

    def set_start(self, start: LogEnd, end: LogEnd) -> None:
        """Make another begin, and the end that goes with it, durable at once."""
        sequence = self.record.sequence + 1
        self._write(replace(self.record, sequence=sequence, start=start, end=end, cut_until=0))

    def complete(self) -> None:
        """Say durably that the folder of the new node is complete."""
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
