"""The commit log on a Disk: data and index files, hard state, synced-to mark, checkpoint.

One flusher thread calls the writing methods, in order; `read`, `read_entries` and `log_end_at`
may be called by another thread at the same time. Source: DLedger's DLedgerMmapFileStore;
DLEDGER.md B.3; DESIGN.md decision 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from system.raft.batch import ENTRY_HEADER_BYTES, Batch, LogEnd
from system.store.disk import Disk, DiskFailed, DiskFull, StoreError
from system.store.entry import BLANK, BLANK_BYTES, BLANK_MAGIC, ENTRY_MAGIC
from system.store.hard_state import (
    HardState,
    LogDamaged,
    load_committed_index,
    load_hard_state,
    save_committed_index,
    save_hard_state,
)
from system.store.index_units import UNIT, UNIT_BYTES, UNIT_MAGIC, read_unit
from system.store.recovery import recover
from system.store.segment_files import OutsideLog, SegmentFiles
from system.store.synced_mark import SyncedMark

__all__ = ["CommitLog", "HardState", "LogDamaged", "NotContiguous", "OutsideLog"]

DATA_FILE_BYTES = 1 << 30
INDEX_FILE_BYTES = 160 << 20

_ENTRY_FIELDS = struct.Struct(">iiqq").unpack_from  # magic, size, index, term
_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from


class NotContiguous(StoreError):  # noqa: N818 - a finding about the batch
    """A batch does not continue the log."""


class CommitLog:
    """The log of one node. Any DiskFailed poisons it: every later call raises it again."""

    end: LogEnd
    """What is written."""
    synced: LogEnd
    """What is known to be durable (moved by `sync`, `truncate` and `open`)."""
    spans: tuple[tuple[int, int], ...]
    """(first index, term) of each run of entries of one term, in order."""
    state: HardState
    torn_bytes: int
    """How many bytes of a torn tail recovery truncated."""
    committed_index: int
    """From the checkpoint, clamped to the end; -1 if none."""

    def __init__(self, disk: Disk, folder: str, mark: SyncedMark, index_file_bytes: int) -> None:
        """Recover the log in `folder`; use `open`."""
        self._disk = disk
        self._folder = folder
        self._mark = mark
        self._failure: DiskFailed | None = None
        self._truncations = 0
        self.state = load_hard_state(disk, folder)
        save_hard_state(disk, folder, self.state)  # its name may stand in the page cache alone
        file_bytes = mark.mark.data_file_bytes
        self._data = SegmentFiles(disk, f"{folder}/data", file_bytes, reserve=True)
        self._index = SegmentFiles(disk, f"{folder}/index", index_file_bytes, reserve=False)
        recovered = recover(self._data, self._index, mark)
        self.end = self.synced = recovered.end
        self.spans = recovered.spans
        self.torn_bytes = recovered.torn_bytes
        self.committed_index = min(load_committed_index(disk, folder), self.end.index)

    @classmethod
    def open(
        cls,
        disk: Disk,
        root: str,
        self_id: str,
        data_file_bytes: int = DATA_FILE_BYTES,
        index_file_bytes: int = INDEX_FILE_BYTES,
    ) -> Self:
        """Open `<root>/dledger-<self_id>`, creating it if new, and recover.

        Raises LogDamaged for damage below the synced-to mark, StoreError for another file size
        than the log was made with, DiskFailed, DiskFull.
        """
        assert index_file_bytes % UNIT_BYTES == 0
        folder = f"{root}/dledger-{self_id}"
        disk.make_dirs(f"{folder}/data")
        disk.make_dirs(f"{folder}/index")
        mark = _open_mark(disk, folder, data_file_bytes)
        if mark.mark.data_file_bytes != data_file_bytes:
            raise StoreError(
                f"{folder} has data files of {mark.mark.data_file_bytes} bytes:"
                f" set mappedFileSizeCommitLog to that, not to {data_file_bytes}"
            )
        return cls(disk, folder, mark, index_file_bytes)

    @property
    def begin_index(self) -> int:
        """Index of the first entry held (0 until old files are deleted)."""
        return self._mark.mark.begin.index + 1

    def append(self, batch: Batch) -> None:
        """Write a batch behind the end. It must continue the log. Not durable until `sync`.

        Raises DiskFull (nothing was appended), DiskFailed, NotContiguous.
        """
        with self._writing():
            end = self.end
            units, behind = self._check(batch)
            try:
                if batch.position != end.position:
                    left = batch.position - end.position
                    self._data.write([BLANK.pack(BLANK_MAGIC, left)], end.position)
                if not self._data.has(batch.position):
                    self._data.create(batch.position)
                self._data.write([batch.data], batch.position)
                self._index.write_across(units, batch.first_index * UNIT_BYTES)
            except DiskFull:
                self._undo_append(batch)
                raise
            if batch.term != end.term or not self.spans:
                self.spans = (*self.spans, (batch.first_index, batch.term))
            self.end = behind

    def truncate(self, end_index: int) -> LogEnd:
        """Remove every entry behind `end_index` (-1: all), durable on return.

        The mark is lowered first: a crash in the middle leaves a log that may still have its old
        tail, or part of it, but none that has to have it (E31: the tail is really removed).
        """
        with self._writing():
            target = self.log_end_at(end_index)
            if target == self.end:
                return target
            old_end, until = self.end, self._last_byte(target)
            lowered = min(target, self._mark.mark.end, key=lambda end: end.index)
            self._mark.move(lowered, until)
            self.spans = tuple(span for span in self.spans if span[0] <= target.index)
            self.end = target
            self._truncations += 1  # behind the end: a reader that saw the old end sees this move
            self._cut(target, until, old_end.index)
            self.synced = target
            return target

    def sync(self) -> None:
        """Make everything appended durable. The index is not waited for: data rebuild it."""
        with self._writing():
            self._data.sync()
            self.synced = self.end

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable."""
        with self._writing():
            state = HardState(term, voted_for)
            save_hard_state(self._disk, self._folder, state)
            self.state = state

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the committed index, a hint for the next start (DLedger: every 3 s)."""
        with self._writing():
            save_committed_index(self._disk, self._folder, self.end.index, committed_index)
            self.committed_index = committed_index

    def advance_mark(self) -> None:
        """Move the durable synced-to mark up to what is synced. It may lag."""
        with self._writing():
            if self._mark.mark.end != self.synced:
                self._index.sync()
                self._mark.move(self.synced)

    def close(self) -> None:
        """Close the files; nothing is flushed that was not synced."""
        self._data.close()
        self._index.close()
        self._mark.close()

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one data file (a message for a pull). Raises OutsideLog."""
        self._check_alive()
        while position >= 0 and position + size <= self.end.position:
            truncations = self._truncations
            data = self._data.read(position, size)
            if len(data) == size and self._truncations == truncations:
                return data
            if self._truncations == truncations:
                break
        raise OutsideLog(f"bytes {position}..{position + size} of a log up to {self.end.position}")

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Read whole entries from `first_index` on, of one term and one file, at least one.

        Stops before `bytes_max` unless the first entry is larger. Raises OutsideLog.
        """
        while True:
            self._check_alive()
            truncations = self._truncations
            try:
                found = self._read_entries(first_index, bytes_max)
            except OutsideLog:
                if self._truncations == truncations or first_index > self.end.index:
                    raise
            else:
                if self._truncations == truncations:  # else what was read may be half cut
                    return found

    def _read_entries(self, first_index: int, bytes_max: int) -> Batch:
        end = self.end
        if not self.begin_index <= first_index <= end.index:
            raise OutsideLog(f"entry {first_index} of a log {self.begin_index}..{end.index}")
        unit = read_unit(self._index, first_index)
        size = min(max(bytes_max, unit.size), end.position - unit.position)
        data = self._data.read(unit.position, size)
        at = count = 0
        while at + ENTRY_HEADER_BYTES <= len(data):
            magic, entry_bytes, _, term = _ENTRY_FIELDS(data, at)
            if magic != ENTRY_MAGIC or term != unit.term or at + entry_bytes > len(data):
                break
            at += entry_bytes
            count += 1
        if not count:
            raise OutsideLog(f"entry {first_index} is being truncated")
        return Batch(first_index, count, unit.term, unit.position, data[:at])

    def log_end_at(self, index: int) -> LogEnd:
        """Return the log's end if it ended with entry `index`. Raises OutsideLog."""
        self._check_alive()
        truncations, begin, end = self._truncations, self._mark.mark.begin, self.end
        if index == end.index:
            return end
        if index == begin.index:
            return begin
        if not begin.index < index < end.index:
            raise OutsideLog(f"entry {index} of a log {self.begin_index}..{end.index}")
        unit = read_unit(self._index, index)
        header = self._data.read(unit.position, ENTRY_HEADER_BYTES)
        if len(header) < ENTRY_HEADER_BYTES or self._truncations != truncations:
            raise OutsideLog(f"entry {index} is being truncated")
        return LogEnd(index, unit.term, unit.position + unit.size, _CHAIN_CRC_AT_36(header)[0])

    def _check(self, batch: Batch) -> tuple[bytes, LogEnd]:
        """Check that a batch continues the log; return its index units and the end behind it."""
        end, data = self.end, batch.data
        start = self._data.start_of(batch.position)
        continues = batch.position == end.position or (
            batch.position == start == self._data.start_of(end.position) + self._data.file_bytes
            and end.position > self._data.start_of(end.position)
        )
        fits = batch.end_position + BLANK_BYTES <= start + self._data.file_bytes
        follows = batch.first_index == end.index + 1 and batch.term >= end.term
        if not (continues and fits and follows and batch.count):
            raise NotContiguous(
                f"entries {batch.first_index}..{batch.last_index} of term {batch.term} at"
                f" {batch.position}..{batch.end_position} do not continue {end}"
            )
        units, at, last = [], 0, 0
        for index in range(batch.first_index, batch.last_index + 1):
            _, size, stored_index, term = _ENTRY_FIELDS(data, at)
            assert stored_index == index, f"entry {stored_index} stands at {index}"
            units.append(UNIT.pack(UNIT_MAGIC, batch.position + at, size, index, term))
            last, at = at, at + size
        assert at == len(data), f"{len(data) - at} bytes behind the entries of {batch.last_index}"
        (chain_crc,) = _CHAIN_CRC_AT_36(data, last)
        behind = LogEnd(batch.last_index, batch.term, batch.end_position, chain_crc)
        return b"".join(units), behind

    def _undo_append(self, batch: Batch) -> None:
        """Remove what a full disk left of an append, so that it certainly did not happen."""
        end = self.end
        until = batch.end_position if batch.position == end.position else end.position + BLANK_BYTES
        try:
            self._cut(end, until, batch.last_index)
        except DiskFull as error:
            raise DiskFailed(f"cannot take back a write on a full disk: {error}") from error

    def _last_byte(self, end: LogEnd) -> int:
        """Return where the data behind `end` stop in its file."""
        if self._data.start_of(self.end.position) == self._data.start_of(end.position):
            return self.end.position
        return self._data.data_end(end.position)

    def _cut(self, end: LogEnd, until: int, last_index: int) -> None:
        """Remove the data from `end` to byte `until`, and the index units up to `last_index`."""
        self._data.cut(end.position, until)
        units_at = (end.index + 1) * UNIT_BYTES
        file_end = self._index.start_of(units_at) + self._index.file_bytes
        self._index.cut(units_at, min((last_index + 1) * UNIT_BYTES, file_end))

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise DiskFailed(str(self._failure)) from self._failure

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse after a failure; remember one."""
        self._check_alive()
        try:
            yield
        except DiskFailed as error:
            self._failure = error
            raise


def _open_mark(disk: Disk, folder: str, data_file_bytes: int) -> SyncedMark:
    """Open the mark; in a new folder create it and `currterm`, in an order that a crash bears."""
    path = f"{folder}/syncedto"
    if disk.exists(path):
        mark = SyncedMark.open(disk, path)
    else:
        for name in ("currterm", "checkpoint"):
            if disk.exists(f"{folder}/{name}"):
                raise LogDamaged(path, "the synced-to mark is missing")
        if disk.names(f"{folder}/data"):
            raise LogDamaged(path, "the synced-to mark is missing")
        mark = SyncedMark.create(disk, path, data_file_bytes)
    if not mark.mark.is_complete:
        save_hard_state(disk, folder, HardState())  # syncs the folder: the mark's name as well
        mark.complete()
    return mark
