"""Entries in the log's files, by way of the index: read some, check those to be appended.

Source: DLedger's DLedgerMmapFileStore (get, appendAsFollower).
"""

from __future__ import annotations

import struct

from shaketable.system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from shaketable.system.store.disk import StoreError
from shaketable.system.store.entry import BLANK_BYTES, ENTRY_MAGIC
from shaketable.system.store.group_events import (
    MEMBERSHIP_CHANNEL,
    DamagedMembership,
    memberships_in,
)
from shaketable.system.store.index_units import UNIT, UNIT_MAGIC, read_unit
from shaketable.system.store.segment_files import OutsideLog, SegmentFiles

_ENTRY_FIELDS = struct.Struct(">iiqq8xi").unpack_from  # magic, size, index, term, channel
_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from


HALF_CUT = (OutsideLog, DamagedMembership)
"""What a read ends with that a truncation overtakes: its bytes may be zeros by half."""


class NotContiguous(StoreError):  # noqa: N818 - a finding about the batch
    """A batch does not continue the log, or a snapshot is not of it."""


def check_append(batch: Batch, end: LogEnd, data: SegmentFiles) -> tuple[bytes, LogEnd]:
    """Check that a batch continues the log behind `end`; return its index units, the new end.

    Raises NotContiguous. Bytes that are not the entries announced are an assertion's business.
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
        assert stored_index == index, f"entry {stored_index} stands at {index}"
        units.append(UNIT.pack(UNIT_MAGIC, position + at, size, index, term))
        last, at = at, at + size
    assert at == len(entries), f"{len(entries) - at} bytes behind entry {batch.last_index}"
    (chain_crc,) = _CHAIN_CRC_AT_36(entries, last)
    behind = LogEnd(batch.last_index, batch.term, batch.end_position, chain_crc)
    return b"".join(units), behind


def read_batch(
    data: SegmentFiles, index: SegmentFiles, first_index: int, bytes_max: int, end_position: int
) -> Batch:
    """Read whole entries from `first_index` on, of one term and one file, at least one.

    Raises OutsideLog where the files change at the same time.
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
    """Return the log's end if it ended with that entry. Raises OutsideLog, as `read_batch`."""
    unit = read_unit(index, entry_index)
    header = data.read(unit.position, ENTRY_HEADER_BYTES)
    if len(header) < ENTRY_HEADER_BYTES:
        raise OutsideLog(f"entry {entry_index} is being truncated")
    chain_crc: int = _CHAIN_CRC_AT_36(header)[0]
    return LogEnd(entry_index, unit.term, unit.position + unit.size, chain_crc)
