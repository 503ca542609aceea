"""The key index: messages by topic and key, in files index/<yyyyMMddHHmmssSSS>.

A query returns candidates: keys of the same hash are not distinguished, and times are whole
seconds. The caller reads the messages and filters them (`has_key`).
Source: RocketMQ's IndexService and IndexFile; DLEDGER.md B.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from shaketable.system.store.disk import Disk, DiskFailed
from shaketable.system.store.keys.key_file import (
    HEADER_BYTES,
    ITEM,
    ITEM_BYTES,
    SLOT_BYTES,
    HashedKeys,
    Header,
    KeyFileWriter,
    KeyItem,
    Sizes,
    has_header,
    hashed_keys,
    key_hash,
)
from shaketable.system.store.message import keys_in
from shaketable.system.store.segment_files import OpenFiles

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
