"""The index: a unit of 32 bytes for each entry, at index * 32, to find any entry in one read.

A unit is magic i32 1, pos i64, size i32, index i64, term i64. The index can be rebuilt from the
data at any time, so it need not be synced before an entry is acknowledged.
Source: DLedger's DLedgerIndexEntry; DLEDGER.md B.3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shaketable.system.raft.protocol import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.store.disk import StoreError
from shaketable.system.store.entry import BLANK_BYTES, ENTRY_MAGIC
from shaketable.system.store.group_events import (
    MEMBERSHIP_CHANNEL,
    DamagedMembership,
    memberships_in,
)
from shaketable.system.store.segment_files import OutsideLog, SegmentFiles

UNIT = struct.Struct(">iqiqq")
UNIT_BYTES = UNIT.size
UNIT_MAGIC = 1
_UNITS_BYTES_MAX = 65_536 * UNIT_BYTES
"""Bytes of units compared or written at once by a rebuild."""
_pack_unit = UNIT.pack

assert UNIT_BYTES == 32


class IndexUnit(NamedTuple):
    """Where an entry is stored."""

    position: int
    size: int
    term: int


def read_unit(files: SegmentFiles, index: int) -> IndexUnit:
    """Read the unit of entry `index`. Raises OutsideLog if there is none."""
    data = files.read(index * UNIT_BYTES, UNIT_BYTES)
    if len(data) == UNIT_BYTES:
        magic, position, size, stored_index, term = UNIT.unpack(data)
        if magic == UNIT_MAGIC and stored_index == index:
            return IndexUnit(position, size, term)
    raise OutsideLog(f"entry {index} is not in the index")


class IndexRebuilder:
    """Compares the index with the entries that a scan finds, and rewrites units that differ."""

    def __init__(self, files: SegmentFiles, first_index: int) -> None:
        self._files = files
        self._next = first_index
        self._units = bytearray()

    def add(self, position: int, size: int, index: int, term: int) -> None:
        """Add the next entry of the scan."""
        units = self._units
        units += _pack_unit(UNIT_MAGIC, position, size, index, term)
        if len(units) == _UNITS_BYTES_MAX:
            self._write_where_wrong()

    def finish(self) -> None:
        """Write what is left, remove every later unit, and make all of it durable."""
        self._write_where_wrong()
        at = self._next * UNIT_BYTES
        self._files.fill_up(max(0, at - 1))
        self._files.fill_up(at)
        self._files.cut(at, self._files.data_end(at))

    def _write_where_wrong(self) -> None:
        at = self._next * UNIT_BYTES
        units = memoryview(self._units)
        while units:
            room = self._files.start_of(at) + self._files.file_bytes - at
            part, units = units[:room], units[room:]
            if not self._files.has(at) or self._files.read(at, len(part)) != part:
                self._files.fill_up(at)
                self._files.write_across(part, at)
            at += len(part)
        self._next = at // UNIT_BYTES
        self._units = bytearray()


# Reading entries by way of the index, and checking a batch before it is appended.
#
# Source: DLedger's DLedgerMmapFileStore (get, appendAsFollower).

_ENTRY_FIELDS = struct.Struct(">iiqq8xi").unpack_from  # magic, size, index, term, channel
_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from


TRUNCATION_RACE_ERRORS = (OutsideLog, DamagedMembership)
"""Errors of a read that races with a truncation: some of its bytes may be zeros already."""


class NotContiguous(StoreError):  # noqa: N818 - a finding about the batch
    """A batch does not continue the log, or a snapshot does not belong to it."""


def check_append(batch: Batch, end: LogEnd, data: SegmentFiles) -> tuple[bytes, LogEnd]:
    """Check that a batch continues the log after `end`; return its index units and the new end.

    Raises NotContiguous; AssertionError if its bytes are not the entries that it declares.
    """
    start = data.start_of(batch.position)
    continues = batch.position == end.position or (
        batch.position == start == data.start_of(end.position) + data.file_bytes
        and end.position > data.start_of(end.position)
    )
    fits = batch.end_position + BLANK_BYTES <= start + data.file_bytes
    follows = batch.first_index == end.index + 1 and batch.term >= end.term
    if not (continues and fits and follows and batch.count):
        raise NotContiguous(
            f"entries {batch.first_index}..{batch.last_index} of term {batch.term} at"
            f" {batch.position}..{batch.end_position} do not continue {end}"
        )
    units, at, last = [], 0, 0
    entries, position = batch.data, batch.position
    for index in range(batch.first_index, batch.last_index + 1):
        _, size, stored_index, term, _ = _ENTRY_FIELDS(entries, at)
        assert stored_index == index, f"entry {stored_index} is at {index}"
        units.append(UNIT.pack(UNIT_MAGIC, position + at, size, index, term))
        last, at = at, at + size
    assert at == len(entries), f"{len(entries) - at} bytes after entry {batch.last_index}"
    (chain_crc,) = _CHAIN_CRC_AT_36(entries, last)
    new_end = LogEnd(batch.last_index, batch.term, batch.end_position, chain_crc)
    return b"".join(units), new_end


def read_batch(
    data: SegmentFiles, index: SegmentFiles, first_index: int, bytes_max: int, end_position: int
) -> Batch:
    """Read whole entries from `first_index` on, of one term and one file, at least one.

    Raises OutsideLog, also if the files change at the same time.
    """
    unit = read_unit(index, first_index)
    size = min(max(bytes_max, unit.size), end_position - unit.position)
    entries = data.read(unit.position, size)
    at = count = 0
    has_memberships = False
    while at + ENTRY_HEADER_BYTES <= len(entries):
        magic, entry_bytes, _, term, channel = _ENTRY_FIELDS(entries, at)
        if magic != ENTRY_MAGIC or term != unit.term or at + entry_bytes > len(entries):
            break
        at += entry_bytes
        count += 1
        if channel == MEMBERSHIP_CHANNEL:
            has_memberships = True
    if not count:
        raise OutsideLog(f"entry {first_index} is being truncated")
    entries = entries[:at]
    memberships = memberships_in(entries) if has_memberships else ()
    return Batch(first_index, count, unit.term, unit.position, entries, memberships)


def read_log_end(data: SegmentFiles, index: SegmentFiles, entry_index: int) -> LogEnd:
    """Return the end that the log would have after that entry. Raises as `read_batch` does."""
    unit = read_unit(index, entry_index)
    header = data.read(unit.position, ENTRY_HEADER_BYTES)
    if len(header) < ENTRY_HEADER_BYTES:
        raise OutsideLog(f"entry {entry_index} is being truncated")
    chain_crc: int = _CHAIN_CRC_AT_36(header)[0]
    return LogEnd(entry_index, unit.term, unit.position + unit.size, chain_crc)
