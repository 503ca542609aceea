"""The index: one unit of 32 bytes an entry, at index * 32, so that any entry is found at once.

A unit is magic i32 1, pos i64, size i32, index i64, term i64. The index can be rebuilt from the
data at any time, so it need not be synced before an entry is acknowledged.
Source: DLedger's DLedgerIndexEntry; DLEDGER.md B.3.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shaketable.system.store.segment_files import OutsideLog, SegmentFiles

UNIT = struct.Struct(">iqiqq")
UNIT_BYTES = UNIT.size
UNIT_MAGIC = 1
_UNITS_MAX = 65_536
"""Units compared or written at once by a rebuild."""

assert UNIT_BYTES == 32


class IndexUnit(NamedTuple):
    """Where an entry stands."""

    position: int
    size: int
    term: int


def read_unit(files: SegmentFiles, index: int) -> IndexUnit:
    """Read the unit of entry `index`; raises OutsideLog if there is none."""
    data = files.read(index * UNIT_BYTES, UNIT_BYTES)
    if len(data) == UNIT_BYTES:
        magic, position, size, stored_index, term = UNIT.unpack(data)
        if magic == UNIT_MAGIC and stored_index == index:
            return IndexUnit(position, size, term)
    raise OutsideLog(f"entry {index} is not in the index")


class IndexRebuilder:
    """Takes the entries that a scan finds and writes the units that disagree."""

    def __init__(self, files: SegmentFiles, first_index: int) -> None:
        self._files = files
        self._next = first_index
        self._units = bytearray()

    def add(self, position: int, size: int, index: int, term: int) -> None:
        """Take the next entry."""
        self._units += UNIT.pack(UNIT_MAGIC, position, size, index, term)
        if len(self._units) == _UNITS_MAX * UNIT_BYTES:
            self._write_where_wrong()

    def finish(self) -> None:
        """Write what is left, remove every unit behind it, and make all of it durable."""
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
