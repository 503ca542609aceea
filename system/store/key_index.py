"""One key index file, a hash table on disk with chained items: its writer, its keys' hashes.

Header of 40 bytes: store time of the first and of the last item i64, their positions in the log
i64, used slots i32, item count i32, which starts at 1. Then the hash slots, i32 each: the number
of the slot's newest item. Then the items, 20 bytes each: hash i32, position i64, seconds since
the header's first time i32, number of the slot's next older item i32.

Items and header are durable before a slot is written. So if the header equals the checkpoint's,
no slot refers to a later item; and if a slot refers to a later item, that item is complete.
Source: RocketMQ's IndexFile and IndexHeader; DLEDGER.md B.2.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shaketable.system.store.disk import Disk, DiskFailed, File
from shaketable.system.store.message import UNIQ_KEY, find_property, java_hash, keys_in
from shaketable.system.store.segment_files import OpenFiles

SLOTS = 5_000_000
"""maxHashSlotNum's default."""
ITEMS = 20_000_000
"""maxIndexNum's default: items in a file; item number 0 is never used."""
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
        """Where item 0 is in a file."""
        return HEADER_BYTES + self.slots * SLOT_BYTES

    @property
    def file_bytes(self) -> int:
        """Size of a file."""
        return self.items_at + self.items * ITEM_BYTES


def has_header(file: File, sizes: Sizes, header: Header) -> bool:
    """Whether a file has full size and exactly this header."""
    is_whole = file.size == sizes.file_bytes
    return is_whole and file.pread(HEADER_BYTES, 0) == HEADER.pack(*header)


class KeyFileWriter:
    """The index file that is being filled.

    New items and the slot table are in memory until `flush`. The table has 20 MB at the default
    size, of which only used pages take memory.
    """

    def __init__(self, file: File, sizes: Sizes, header: Header) -> None:
        self._file = file
        self._sizes = sizes
        self._slots, self._items_max = sizes
        self._items = bytearray()
        self._flushed_count = header.item_count
        self._table: NDArray[np.int32] | None = None  # as in the file, big-endian
        self._is_dirty = np.zeros(-(-self._slots * SLOT_BYTES // _PAGE_BYTES), np.bool_)
        self._begin_ms, self._end_ms, self._begin_position, self._end_position = header[:4]
        self._slot_count, self._item_count = header[4:]

    @classmethod
    def create(cls, disk: Disk, path: str, sizes: Sizes) -> KeyFileWriter:
        """Create an empty file; its name is durable only after `Disk.sync_dir`."""
        file = disk.create(path, sizes.file_bytes, reserve=False)
        return cls(file, sizes, Header())

    @property
    def header(self) -> Header:
        """The header, counting all items put so far."""
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
        """How many more items fit."""
        return self._items_max - self._item_count

    def put(self, keys: HashedKeys) -> None:
        """Add at most `room` items, in memory until `flush`. Raises DiskFailed."""
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
        # RocketMQ takes the last store time, but a later leader's clock may be slow.
        self._end_ms = max(self._end_ms, int(keys.store_ms.max()))
        self._end_position = int(keys.positions[-1])
        self._item_count = first + count

    def _chain(self, slots: NDArray[np.int32], first: int) -> NDArray[np.int32]:
        """Link items, numbered from `first`, into their slots; return each one's next older item.

        Sorting by slot groups the items of one slot: each is linked to the one before it, the
        oldest to the slot's previous head, and the newest becomes the head.
        """
        table = self._table
        if table is None:
            table = self._table = self._read_table()
        order = np.argsort(slots, kind="stable")
        slots = slots[order]
        numbers = (first + order).astype(np.int32)
        is_run_start = np.empty(len(slots), np.bool_)
        is_run_start[0] = True
        np.not_equal(slots[1:], slots[:-1], out=is_run_start[1:])
        is_run_end = np.roll(is_run_start, -1)
        of_runs = slots[is_run_start]
        older = np.empty(len(slots), np.int32)
        older[1:] = numbers[:-1]
        older[is_run_start] = table[of_runs]
        self._slot_count += int(np.count_nonzero(older[is_run_start] == 0))
        table[of_runs] = numbers[is_run_end]
        self._is_dirty[of_runs.astype(np.int64) * SLOT_BYTES // _PAGE_BYTES] = True
        in_order = np.empty_like(older)
        in_order[order] = older
        return in_order

    def flush(self) -> None:
        """Make all items durable, then findable. Raises DiskFull, DiskFailed.

        After a DiskFull the file must be opened again and cut.
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
            start, stop = int(run[0]) * _PAGE_BYTES, (int(run[-1]) + 1) * _PAGE_BYTES
            self._file.pwrite([table[start:stop].tobytes()], HEADER_BYTES + start)
        self._file.sync()
        self._is_dirty[:] = False
        self._items.clear()
        self._flushed_count = self.header.item_count

    def close(self) -> None:
        """Close the file; unflushed items are lost."""
        self._file.close()

    def cut(self) -> bool:
        """Restore the file to the header that it was opened with; durable on return.

        Returns False if that is impossible, because an item of a slot's chain is damaged.
        """
        if has_header(self._file, self._sizes, self.header):
            self._file.sync()  # a process that was killed may have written it just now
            return True
        if self._file.size != self._sizes.file_bytes:
            return False
        table_bytes = self._sizes.slots * SLOT_BYTES
        for first, stop in self._file.data_ranges(HEADER_BYTES):
            first_page = max(0, first - HEADER_BYTES) // _PAGE_BYTES
            for number in range(first_page, -(-min(stop, self._sizes.items_at) // _PAGE_BYTES)):
                if number * _PAGE_BYTES < table_bytes and not self._cut_page(number):
                    return False
        self._file.sync()
        self._file.pwrite([HEADER.pack(*self.header)], 0)
        self._file.sync()
        return True

    def _cut_page(self, number: int) -> bool:
        """Reset the slots of one page that refer to items at or after the header's count.

        Each chain runs from newer to older items, so its first item below the count was the
        slot's head when the header was written.
        """
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
        """Read the slot table; pages without data in the file are 0."""
        table_bytes = self._sizes.slots * SLOT_BYTES
        table = np.zeros(self._sizes.slots, ">i4")
        filled = table.view(np.uint8)
        for first, last in self._file.data_ranges(HEADER_BYTES):
            start, stop = max(0, first - HEADER_BYTES), min(last - HEADER_BYTES, table_bytes)
            for at in range(start, stop, _READ_BYTES_MAX):
                data = self._file.pread(min(_READ_BYTES_MAX, stop - at), HEADER_BYTES + at)
                filled[at : at + len(data)] = np.frombuffer(data, np.uint8)
        return table


# The hashes of the keys, computed for many messages at once.
#
# A checkpoint has tens of thousands of keys; one by one they would take a third of a follower's
# time, and the interpreter lock from the node's own thread (measured with tests/benchmarks).
# Source: RocketMQ's IndexService.buildKey and IndexFile.indexKeyHashMethod.

KeyItem = tuple[bytes, bytes, int, int]
"""A message that may have keys: topic, properties, position in the log, store time in ms."""

_KEYS_NAME = b"KEYS"
_BYTES_AT_ONCE = 1 << 18
"""Bytes of keys that are hashed in one step, which takes about ten times as much memory."""


class HashedKeys(NamedTuple):
    """Keys of messages in log order: hash (not negative), position, store time in ms."""

    hashes: NDArray[np.int32]
    positions: NDArray[np.int64]
    store_ms: NDArray[np.int64]

    def part(self, start: int, stop: int) -> HashedKeys:
        """Return keys `start` to `stop` (exclusive)."""
        hashes, positions, store_ms = self
        return HashedKeys(hashes[start:stop], positions[start:stop], store_ms[start:stop])


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the hash of an item: of "topic#key", not negative (IndexService)."""
    code = abs(java_hash(key, java_hash(topic + b"#")))
    return code if code < 1 << 31 else 0  # Math.abs(Integer.MIN_VALUE) is negative: 0


def hashed_keys(items: Sequence[KeyItem]) -> HashedKeys:
    """Return each message's UNIQ_KEY and each of its KEYS, hashed with its topic."""
    keys: list[bytes] = []
    owners: list[KeyItem] = []
    for item in items:
        properties = item[1]
        if _KEYS_NAME in properties:
            for key in keys_in(properties):
                keys.append(key)
                owners.append(item)
        elif unique := find_property(properties, UNIQ_KEY):
            keys.append(unique)
            owners.append(item)
    topics = [item[0] for item in owners]
    count = len(owners)
    return HashedKeys(
        _hashes(topics, keys),
        np.fromiter((item[2] for item in owners), np.int64, count),
        np.fromiter((item[3] for item in owners), np.int64, count),
    )


def _hashes(topics: list[bytes], keys: list[bytes]) -> NDArray[np.int32]:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    fronts = {topic: java_hash(topic + b"#") & 0xFFFFFFFF for topic in set(topics)}
    codes = np.fromiter((fronts[topic] for topic in topics), np.uint32, len(keys))
    for length in np.unique(lengths).tolist():
        of_length = np.flatnonzero(lengths == length)
        powers = _powers(length)
        at_once = max(1, _BYTES_AT_ONCE // length)
        for first in range(0, len(of_length), at_once):
            part = of_length[first : first + at_once]
            text = b"".join([keys[number] for number in part.tolist()])
            units = np.frombuffer(text, np.uint8).reshape(-1, length).astype(np.uint32)
            codes[part] = codes[part] * powers[0] + units @ powers[1:]
    hashes = np.abs(codes.view(np.int32))
    hashes[hashes < 0] = 0  # as Math.abs(Integer.MIN_VALUE)
    for number, key in enumerate(keys):
        if not key.isascii():  # Java hashes UTF-16 code units
            hashes[number] = key_hash(topics[number], key)
    return hashes


def _powers(length: int) -> NDArray[np.uint32]:
    """Return 31**length down to 31**0, modulo 2**32."""
    powers = [1]
    for _ in range(length):
        powers.append(powers[-1] * 31 & 0xFFFFFFFF)
    return np.array(powers[::-1], np.uint32)


# The index, over all its files.

OPEN_FILES_MAX = 16
"""Index files open for queries."""
NAMES_MAX = 1024
"""Names of files that are kept: a query needs its files' names for each item that it reads."""
QUERY_STEPS_MAX = 1 << 16
"""Limit of items that one query examines; older ones are not found."""


class KeyFile(NamedTuple):
    """An index file: the time in its name, ms since the epoch, and its header.

    `earliest_ms` is the earliest store time in it. It is before the first message's if a later
    leader's clock was slow; an item's seconds cannot be negative, as in RocketMQ.
    """

    name_ms: int
    header: Header
    earliest_ms: int


class KeyIndex:
    """The index files under `<root>/index`.

    One thread calls the methods except `candidates`, another may query at the same time and
    finds what the last `flush` made durable.
    """

    def __init__(self, disk: Disk, root: str, sizes: Sizes | None = None) -> None:
        self.sizes = sizes or Sizes()
        self._disk = disk
        self._folder = f"{root}/index"
        self._read = OpenFiles(disk, OPEN_FILES_MAX)
        self._writer: KeyFileWriter | None = None
        self._done: tuple[KeyFile, ...] = ()  # full files, oldest first
        self._writer_ms = self._writer_earliest_ms = 0
        self._flushed: tuple[KeyFile, ...] = ()
        self._forgotten: list[KeyFile] = []
        self._generation = 0  # rises when a file may have been replaced by one of the same name
        self._read_generation = 0

    def restore(self, files: Sequence[KeyFile]) -> bool:
        """Restore a checkpoint's files (from `flush`); remove every other file and item.

        Returns False if a file is missing or damaged: then the index is empty, and all messages
        must be put again from the log's start. Raises DiskFull, DiskFailed.
        """
        self._close_writer()
        self._disk.make_dirs(self._folder)
        named = {file_name(file.name_ms) for file in files}
        for name in self._disk.names(self._folder):
            if name not in named:
                self._disk.unlink(f"{self._folder}/{name}")
        self._generation += 1
        self._forgotten = []
        self._done, self._flushed = tuple(files[:-1]), tuple(files)
        if all(self._is_whole(file) for file in files[:-1]) and self._reopen(files[-1:]):
            return True
        self.restore(())
        return False

    def put_messages(self, items: Sequence[KeyItem]) -> None:
        """Add messages in log order, under their UNIQ_KEY and each of their KEYS.

        They are found only after `flush`. Raises DiskFull, DiskFailed; after DiskFull call
        `restore` with the files flushed last.
        """
        self._put(hashed_keys(items))

    def put(self, topic: bytes, key: bytes, position: int, store_ms: int) -> None:
        """Add a message under one key, as `put_messages` does."""
        one = np.array([key_hash(topic, key)], np.int32)
        self._put(HashedKeys(one, np.array([position]), np.array([store_ms])))

    def _put(self, keys: HashedKeys) -> None:
        done, count = 0, len(keys.hashes)
        while done < count:
            writer = self._writer
            if writer is None or not writer.room:
                writer = self._next_file(int(keys.store_ms[done]))
            part = keys.part(done, done + writer.room)
            writer.put(part)
            self._writer_earliest_ms = min(self._writer_earliest_ms, int(part.store_ms.min()))
            done += len(part.hashes)

    def flush(self) -> tuple[KeyFile, ...]:
        """Make every item durable and findable; return the files, oldest first.

        A checkpoint stores that list. Raises DiskFull, DiskFailed.
        """
        if self._writer is not None:
            self._writer.flush()
            self._flushed = (*self._done, self._written(self._writer))
        return self._flushed

    def forget_below(self, position: int) -> None:
        """Drop the files with no message at or after `position`, but never the newest file.

        They stay on disk until `delete_forgotten`: the last checkpoint still lists them.
        """
        old = [file for file in self._done if file.header.end_position < position]
        self._done = tuple(file for file in self._done if file not in old)
        self._flushed = tuple(file for file in self._flushed if file not in old)
        self._forgotten += old

    def delete_forgotten(self) -> None:
        """Remove the dropped files from disk."""
        for file in self._forgotten:
            self._disk.unlink(self._path(file))
        self._forgotten = []

    def candidates(self, topic: bytes, key: bytes, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Yield positions of messages that may have the key, newest first, each once.

        They include all that have the key and were stored from `begin_ms` to `end_ms`
        (inclusive), within QUERY_STEPS_MAX. Raises DiskFailed.
        """
        if self._read_generation != self._generation:
            self._read.close()
            self._read_generation = self._generation
        hash_wanted = key_hash(topic, key)
        steps_left = QUERY_STEPS_MAX
        last = -1  # a message may have two items in a row: its UNIQ_KEY may be among its KEYS
        for file in reversed(self._flushed):
            if file.earliest_ms > end_ms or file.header.end_ms < begin_ms:
                continue
            has_earlier = file.earliest_ms < file.header.begin_ms  # their seconds are 0
            number = self._slot(file, hash_wanted % self.sizes.slots)
            while number > 0 and steps_left:
                steps_left -= 1
                item = self._read_file(file, self.sizes.items_at + number * ITEM_BYTES, ITEM_BYTES)
                if item is None:
                    break
                hash_found, position, seconds, older = ITEM.unpack(item)
                stored_ms = file.header.begin_ms + seconds * 1000
                may_be_earlier = has_earlier and not seconds
                is_early_enough = may_be_earlier or stored_ms <= end_ms
                is_in_time = is_early_enough and begin_ms < stored_ms + 1000
                is_flushed = number < file.header.item_count
                if is_flushed and hash_found == hash_wanted and is_in_time and position != last:
                    last = position
                    yield position
                number = older if older < number else 0

    def close(self) -> None:
        """Close the files; unflushed items are lost."""
        self._close_writer()
        self._read.close()

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = None

    def _reopen(self, newest: Sequence[KeyFile]) -> bool:
        """Open the newest file, if any, for writing, restored; False if it is damaged."""
        for file in newest:
            path = self._path(file)
            if not self._disk.exists(path):
                return False
            writer = KeyFileWriter(self._disk.open(path), self.sizes, file.header)
            is_restored = False
            try:
                is_restored = writer.cut()
            finally:
                if not is_restored:  # damaged, or the disk is full: this is tried again then
                    writer.close()
            if not is_restored:
                return False
            self._writer = writer
            self._writer_ms, self._writer_earliest_ms = file.name_ms, file.earliest_ms
        return True

    def _written(self, writer: KeyFileWriter) -> KeyFile:
        return KeyFile(self._writer_ms, writer.header, self._writer_earliest_ms)

    def _next_file(self, store_ms: int) -> KeyFileWriter:
        """Start the next file, named by its first message's time, but later than the last name."""
        earliest_ms = store_ms
        if self._writer is not None:
            self._writer.flush()
            self._writer.close()
            self._done = (*self._done, self._written(self._writer))
            store_ms = max(store_ms, self._writer_ms + 1)
            self._writer = None
        path = f"{self._folder}/{file_name(store_ms)}"
        self._writer = KeyFileWriter.create(self._disk, path, self.sizes)
        self._writer_ms, self._writer_earliest_ms = store_ms, earliest_ms
        self._disk.sync_dir(self._folder)
        return self._writer

    def _path(self, file: KeyFile) -> str:
        return f"{self._folder}/{file_name(file.name_ms)}"

    def _is_whole(self, file: KeyFile) -> bool:
        """Whether a full file exists and has the checkpoint's header."""
        if not self._disk.exists(self._path(file)):
            return False
        found = self._disk.open(self._path(file))
        try:
            return has_header(found, self.sizes, file.header)
        finally:
            found.close()

    def _slot(self, file: KeyFile, slot: int) -> int:
        data = self._read_file(file, HEADER_BYTES + slot * SLOT_BYTES, SLOT_BYTES)
        return int.from_bytes(data, "big", signed=True) if data else 0

    def _read_file(self, file: KeyFile, position: int, size: int) -> bytes | None:
        """Read from an index file; None past its end, or if it has been removed meanwhile."""
        try:
            data = self._read.get(self._path(file)).pread(size, position)
        except DiskFailed:
            if file in self._flushed or self._disk.exists(self._path(file)):
                raise
            return None
        return data if len(data) == size else None


def has_key(topic_wanted: bytes, key: bytes, topic: bytes, properties: bytes) -> bool:
    """Whether a message of this topic and these properties has the key."""
    return topic == topic_wanted and key in keys_in(properties)


@lru_cache(maxsize=NAMES_MAX)
def file_name(time_ms: int) -> str:
    """Return a time in ms since the epoch as yyyyMMddHHmmssSSS, in UTC."""
    days, day_ms = divmod(max(0, time_ms), 86_400_000)
    seconds, millis = divmod(day_ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    year, month, day = _date(days)
    return f"{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}{millis:03}"


def _date(days: int) -> tuple[int, int, int]:
    """Return year, month and day, `days` after 1970-01-01.

    Counts in eras of 400 years that start in March, so that a leap day is a year's last day
    (Howard Hinnant's civil_from_days).
    """
    days += 719_468  # since 0000-03-01
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return era * 400 + year + (month <= 2), month, day
