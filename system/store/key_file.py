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

from system.store.disk import Disk, File

SLOTS = 5_000_000
"""maxHashSlotNum's default."""
ITEMS = 20_000_000
"""maxIndexNum's default: items of a file, of which number 0 is never used."""
SLOT_BYTES = 4
ITEM = struct.Struct(">iqii")
ITEM_BYTES = ITEM.size
HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = HEADER.size

_SLOT = struct.Struct(">i")
_SLOT_AT = _SLOT.unpack_from
_PUT_SLOT = _SLOT.pack_into
_PACK_ITEM = ITEM.pack
_PREVIOUS_AT_16 = struct.Struct(">16xi").unpack
_PAGE_BYTES = 4096
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

    New items and changed pages of the slot table are in memory until `flush`; pages that were
    read stay (20 MB at the default size, for this one file).
    """

    def __init__(self, file: File, sizes: Sizes, header: Header) -> None:
        self._file = file
        self._sizes = sizes
        self._slots, self._items_max = sizes
        self._items = bytearray()
        self._flushed_count = header.item_count
        self._pages: dict[int, bytearray] = {}
        self._dirty_pages: dict[int, None] = {}
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
    def is_full(self) -> bool:
        """Whether no further item goes in."""
        return self._item_count >= self._items_max

    def put(self, key_hash: int, position: int, store_ms: int) -> None:
        """Add an item: not in the file before `flush`. Raises DiskFailed."""
        number = self._item_count
        assert number < self._items_max
        if number == _EMPTY_HEADER_COUNT:
            self._begin_ms, self._begin_position = store_ms, position
        page_number, at = divmod(key_hash % self._slots * SLOT_BYTES, _PAGE_BYTES)
        page = self._pages.get(page_number)
        if page is None:
            page = self._pages[page_number] = self._read_page(page_number)
        self._dirty_pages[page_number] = None
        (previous,) = _SLOT_AT(page, at)
        seconds = min(max(0, (store_ms - self._begin_ms) // 1000), _SECONDS_MAX)
        self._items += _PACK_ITEM(key_hash, position, seconds, previous)
        _PUT_SLOT(page, at, number)
        if previous == 0:
            self._slot_count += 1
        # RocketMQ takes the last store time; the clock of another leader may be behind.
        self._end_ms = max(self._end_ms, store_ms)
        self._end_position = position
        self._item_count = number + 1

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
        for number in sorted(self._dirty_pages):
            self._file.pwrite([self._pages[number]], HEADER_BYTES + number * _PAGE_BYTES)
        self._file.sync()
        self._dirty_pages.clear()
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
