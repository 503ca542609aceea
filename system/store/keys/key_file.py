"""One file of the key index, as its writer sees it.

Header of 40 bytes: store time of the first and of the last item i64, their positions in the log
i64, used slots i32, item count i32, which starts at 1. Then the hash slots, i32 each: the number
of the slot's newest item. Then the items, 20 bytes each: hash i32, position i64, seconds since
the header's first time i32, number of the slot's next older item i32.

Items and header are durable before a slot is written. So when the header says what the last
checkpoint says, no slot names an item behind it; and a slot that does names a whole item.
Source: RocketMQ's IndexFile and IndexHeader; DLEDGER.md B.2.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shaketable.system.store.disk import Disk, File
from shaketable.system.store.keys.key_hashes import HashedKeys

SLOTS = 5_000_000
"""maxHashSlotNum's default."""
ITEMS = 20_000_000
"""maxIndexNum's default: items of a file, of which number 0 is never used."""
SLOT_BYTES = 4
ITEM = struct.Struct(">iqii")
ITEM_BYTES = ITEM.size
HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size

_PUT_SLOT = struct.Struct(">i").pack_into
_ITEM_DTYPE = np.dtype([("hash", ">i4"), ("position", ">i8"), ("seconds", ">i4"), ("older", ">i4")])
_PREVIOUS_AT_16 = struct.Struct(">16xi").unpack
_PAGE_BYTES = 4096
_READ_BYTES_MAX = 1 << 20
_SECONDS_MAX = (1 << 31) - 1
_EMPTY_HEADER_COUNT = 1

assert HEADER_BYTES == 40
assert ITEM_BYTES == 20


class Header(NamedTuple):
    """A file's header: times in ms since the epoch, positions in the log in bytes."""

    begin_ms: int = 0
    end_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    slot_count: int = 0
    item_count: int = _EMPTY_HEADER_COUNT


class Sizes(NamedTuple):
    """How many slots and items a file has."""

    slots: int = SLOTS
    items: int = ITEMS

    @property
    def items_at(self) -> int:
        """Where item 0 stands in a file."""
        return HEADER_BYTES + self.slots * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of a file."""
        return self.items_at + self.items * ITEM_BYTES


def has_header(file: File, sizes: Sizes, header: Header) -> bool:
    """Whether a file has its full size and this header."""
    is_whole = file.size == sizes.file_bytes
    return is_whole and file.pread(HEADER_BYTES, 0) == HEADER.pack(*header)


class KeyFileWriter:
    """The index file that is being filled.

    New items and the slot table are in memory until `flush` (20 MB at the default size, of
    which only what is used takes memory).
    """

    def __init__(self, file: File, sizes: Sizes, header: Header) -> None:
        self._file = file
        self._sizes = sizes
        self._slots, self._items_max = sizes
        self._items = bytearray()
        self._flushed_count = header.item_count
        self._table: NDArray[np.int32] | None = None  # as it stands in the file, big-endian
        self._is_dirty = np.zeros(-(-self._slots * SLOT_BYTES // _PAGE_BYTES), np.bool_)
        self._begin_ms, self._end_ms, self._begin_position, self._end_position = header[:4]
        self._slot_count, self._item_count = header[4:]

    @classmethod
    def create(cls, disk: Disk, path: str, sizes: Sizes) -> KeyFileWriter:
        """Create an empty file; its name is not durable before a `Disk.sync_dir`."""
        file = disk.create(path, sizes.file_bytes, reserve=False)
        return cls(file, sizes, Header())

    @property
    def header(self) -> Header:
        """The header with all items put so far."""
        return Header(
            self._begin_ms,
            self._end_ms,
            self._begin_position,
            self._end_position,
            self._slot_count,
            self._item_count,
        )

    @property
    def room(self) -> int:
        """How many further items go in."""
        return self._items_max - self._item_count

    def put(self, keys: HashedKeys) -> None:
        """Add at most `room` items: not in the file before `flush`. Raises DiskFailed."""
        count, first = len(keys.hashes), self._item_count
        assert 0 < count <= self.room
        if first == _EMPTY_HEADER_COUNT:
            self._begin_ms, self._begin_position = int(keys.store_ms[0]), int(keys.positions[0])
        items = np.empty(count, _ITEM_DTYPE)
        items["hash"] = keys.hashes
        items["position"] = keys.positions
        items["seconds"] = np.clip((keys.store_ms - self._begin_ms) // 1000, 0, _SECONDS_MAX)
        items["older"] = self._chain(keys.hashes % self._slots, first)
        self._items += items.tobytes()
        # RocketMQ takes the last store time; the clock of another leader may be behind.
        self._end_ms = max(self._end_ms, int(keys.store_ms.max()))
        self._end_position = int(keys.positions[-1])
        self._item_count = first + count

    def _chain(self, slots: NDArray[np.int32], first: int) -> NDArray[np.int32]:
        """Enter items, numbered from `first`, into their slots; return each one's next older."""
        table = self._table
        if table is None:
            table = self._table = self._read_table()
        order = np.argsort(slots, kind="stable")
        slots = slots[order]
        numbers = (first + order).astype(np.int32)
        begins_run = np.empty(len(slots), np.bool_)
        begins_run[0] = True
        np.not_equal(slots[1:], slots[:-1], out=begins_run[1:])
        ends_run = np.roll(begins_run, -1)
        of_runs = slots[begins_run]
        older = np.empty(len(slots), np.int32)
        older[1:] = numbers[:-1]
        older[begins_run] = table[of_runs]
        self._slot_count += int(np.count_nonzero(older[begins_run] == 0))
        table[of_runs] = numbers[ends_run]
        self._is_dirty[of_runs.astype(np.int64) * SLOT_BYTES // _PAGE_BYTES] = True
        in_order = np.empty_like(older)
        in_order[order] = older
        return in_order

    def flush(self) -> None:
        """Make all items durable, then findable. Raises DiskFull, DiskFailed.

        After a DiskFull the file is to be opened anew and cut.
        """
        if not self._items:
            return
        at = self._sizes.items_at + self._flushed_count * ITEM_BYTES
        self._file.pwrite([self._items], at)
        self._file.pwrite([HEADER.pack(*self.header)], 0)
        self._file.sync()
        assert self._table is not None, "items without slots"
        pages = np.flatnonzero(self._is_dirty)
        table = self._table.view(np.uint8)
        for run in np.split(pages, np.flatnonzero(np.diff(pages) > 1) + 1):
            start, behind = int(run[0]) * _PAGE_BYTES, (int(run[-1]) + 1) * _PAGE_BYTES
            self._file.pwrite([table[start:behind].tobytes()], HEADER_BYTES + start)
        self._file.sync()
        self._is_dirty[:] = False
        self._items.clear()
        self._flushed_count = self.header.item_count

    def close(self) -> None:
        """Close the file; what was not flushed is lost."""
        self._file.close()

    def cut(self) -> bool:
        """Bring the file back to the header it was opened with; durable on return.

        Returns whether that was possible: not if an item of a slot's chain is damaged.
        """
        if has_header(self._file, self._sizes, self.header):
            return True
        if self._file.size != self._sizes.file_bytes:
            return False
        table_bytes = self._sizes.slots * SLOT_BYTES
        for first, behind in self._file.data_ranges(HEADER_BYTES):
            first_page = max(0, first - HEADER_BYTES) // _PAGE_BYTES
            for number in range(first_page, -(-min(behind, self._sizes.items_at) // _PAGE_BYTES)):
                if number * _PAGE_BYTES < table_bytes and not self._cut_page(number):
                    return False
        self._file.sync()
        self._file.pwrite([HEADER.pack(*self.header)], 0)
        self._file.sync()
        return True

    def _cut_page(self, number: int) -> bool:
        """Lower the slots of one page that name items behind the header's count."""
        page = self._read_page(number)
        slots = array("i", bytes(page))
        assert slots.itemsize == SLOT_BYTES
        if sys.byteorder == "little":
            slots.byteswap()
        count = self._item_count
        if max(slots) < count and min(slots) >= 0:
            return True
        for place, item in enumerate(slots):
            found = item
            while found >= count:
                data = self._file.pread(ITEM_BYTES, self._sizes.items_at + found * ITEM_BYTES)
                older = _PREVIOUS_AT_16(data)[0] if len(data) == ITEM_BYTES else -1
                if not 0 <= older < found:
                    return False
                found = older
            if found < 0:
                return False
            _PUT_SLOT(page, place * SLOT_BYTES, found)
        self._file.pwrite([page], HEADER_BYTES + number * _PAGE_BYTES)
        return True

    def _read_page(self, number: int) -> bytearray:
        at = number * _PAGE_BYTES
        size = min(_PAGE_BYTES, self._sizes.slots * SLOT_BYTES - at)
        return bytearray(self._file.pread(size, HEADER_BYTES + at)).ljust(size, b"\0")

    def _read_table(self) -> NDArray[np.int32]:
        """Read the slots that the file has data for; all others are 0."""
        table_bytes = self._sizes.slots * SLOT_BYTES
        table = np.zeros(self._sizes.slots, ">i4")
        filled = table.view(np.uint8)
        for begin, end in self._file.data_ranges(HEADER_BYTES):
            start, behind = max(0, begin - HEADER_BYTES), min(end - HEADER_BYTES, table_bytes)
            for at in range(start, behind, _READ_BYTES_MAX):
                data = self._file.pread(min(_READ_BYTES_MAX, behind - at), HEADER_BYTES + at)
                filled[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return table
