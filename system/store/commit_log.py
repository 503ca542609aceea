"""The commit log: data and index files, hard state, snapshot, durable watermark, checkpoint.

One flusher thread calls the writing methods, in order; `read`, `read_entries` and `log_end_at`
may be called by another thread at the same time. A snapshot replaces the entries before the log's
start. Source: DLedger's DLedgerMmapFileStore; DLEDGER.md B.3; DESIGN.md decision 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Self

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, LogEnd, Snapshot
from shaketable.system.store.disk import Disk, DiskFailed, DiskFull, StoreError
from shaketable.system.store.entry import BLANK, BLANK_BYTES, BLANK_MAGIC
from shaketable.system.store.index_units import (
    TRUNCATION_RACE_ERRORS,
    UNIT_BYTES,
    NotContiguous,
    check_append,
    read_batch,
    read_log_end,
    read_unit,
)
from shaketable.system.store.plain_log import PlainLog, remove_plain_log, upgrade_plain_log
from shaketable.system.store.recovery import LogScan, recover
from shaketable.system.store.segment_files import OutsideLog, SegmentFiles
from shaketable.system.store.state_files import (
    DurableWatermark,
    HardState,
    LogDamaged,
    StoredSnapshot,
    load_committed_index,
    load_hard_state,
    load_snapshot,
    mark_running,
    mark_stopped,
    save_committed_index,
    save_hard_state,
    save_snapshot,
    snapshot_path,
)

__all__ = ["CommitLog", "HardState", "LogDamaged", "NotContiguous", "OutsideLog"]

DATA_FILE_BYTES = 1 << 30
INDEX_FILE_BYTES = 160 << 20


class CommitLog:
    """The log of one node. After a DiskFailed every later call raises it again.

    A retried fsync could succeed although the kernel dropped the pages (fsyncgate), so a failed
    log is never used again.
    """

    end: LogEnd
    """The log's end, written but perhaps not durable."""
    synced: LogEnd
    """The durable end (set by `sync`, `truncate`, `compact`, `install` and `open`)."""
    spans: tuple[tuple[int, int], ...]
    """(first index, term) of each run of entries of one term, in order."""
    memberships: tuple[tuple[int, Membership], ...]
    """(index, membership) of each membership entry held, in order; the membership in force at the
    log's start is the snapshot's, or the configuration's."""
    snapshot: Snapshot | None
    """The snapshot at the log's start; None only if no entry has been removed."""
    state: HardState
    torn_bytes: int
    """How many bytes of a torn tail recovery truncated."""
    committed_index: int
    """The checkpoint's, clamped to the log's start and end; -1 if none."""
    was_aborted: bool
    """The last run did not close the log: the file `abort` existed."""
    plain_log: PlainLog | None
    """The plain commit log of before the upgrade, as long as it is kept."""

    files_type: ClassVar[type[SegmentFiles]] = SegmentFiles
    scan_type: ClassVar[type[LogScan]] = LogScan

    def __init__(
        self, found: LogFolder, root: str, index_file_bytes: int, *, was_aborted: bool
    ) -> None:
        """Recover the log in a folder; use `open`."""
        disk = found.disk
        self._disk = disk
        self._root = root
        self._folder = found.path
        self._watermark = found.watermark
        self._failure: DiskFailed | None = None
        self._truncations = 0
        self._leftover: tuple[int, int] | None = None  # see _finish_cut
        self.was_aborted = was_aborted
        self.state = found.state
        self.snapshot = found.snapshot
        file_bytes = found.watermark.record.data_file_bytes
        self._data = self.files_type(disk, f"{found.path}/data", file_bytes, reserve=True)
        self._index = self.files_type(disk, f"{found.path}/index", index_file_bytes, reserve=False)
        found.finish_interrupted(self._data, self._index)
        self.plain_log = found.open_plain()
        recovered = recover(self._data, self._index, self._watermark, self.scan_type)
        self.end = self.synced = recovered.end
        self.spans = recovered.spans
        self.memberships = recovered.memberships
        self.torn_bytes = recovered.torn_bytes
        known = load_committed_index(disk, self._folder)
        self.committed_index = max(min(known, self.end.index), self.start.index)
        if known > self.committed_index:
            # Those entries were lost with a page cache. Other entries may take their indices, so
            # the checkpoint must not call these committed at the next start.
            self.save_checkpoint(self.committed_index)

    @classmethod
    def open(
        cls,
        disk: Disk,
        root: str,
        self_id: str,
        data_file_bytes: int = DATA_FILE_BYTES,
        index_file_bytes: int = INDEX_FILE_BYTES,
        plain_log: str | None = None,
    ) -> Self:
        """Open `<root>/dledger-<self_id>`, creating it if new, and recover.

        `plain_log` is storePathCommitLog: a new log upgrades a plain commit log found there,
        and its first entry (index 0) goes where that ends. A log created without one ignores it.
        The file `<root>/abort` exists until `close`.

        Raises LogDamaged for damage before the durable watermark, PlainLogDamaged, StoreError
        for a file size other than the log was created with, DiskFailed, DiskFull.
        """
        assert index_file_bytes % UNIT_BYTES == 0
        disk.make_dirs(root)
        was_aborted = mark_running(disk, root)
        found = LogFolder.open(disk, f"{root}/dledger-{self_id}", data_file_bytes, plain_log)
        return cls(found, root, index_file_bytes, was_aborted=was_aborted)

    @property
    def start(self) -> LogEnd:
        """The end of the entries that are no longer held: index -1 if none was ever removed.

        Its position is not 0 if the log continues a plain log.
        """
        return self._watermark.record.start

    @property
    def first_index(self) -> int:
        """Index of the first entry held (0 until the first compaction)."""
        return self.start.index + 1

    def append(self, batch: Batch) -> None:
        """Append a batch, which must continue the log. It is not durable until `sync`.

        Raises DiskFull (nothing was appended), DiskFailed, NotContiguous.
        """
        with self._writing():
            self._finish_cut()
            end, data = self.end, self._data
            units, new_end = check_append(batch, end, data)
            if not data.has(batch.position):
                data.create(batch.position)
            self._index.write_across(units, batch.first_index * UNIT_BYTES)
            try:
                if batch.position != end.position and data.has(end.position):
                    left = batch.position - end.position
                    data.write([BLANK.pack(BLANK_MAGIC, left)], end.position)
                data.write([batch.data], batch.position)
            except DiskFull:
                self._undo_append(batch)
                raise
            if batch.term != end.term or not self.spans:
                self.spans = (*self.spans, (batch.first_index, batch.term))
            if batch.memberships:
                self.memberships += batch.memberships
            self.end = new_end

    def truncate(self, end_index: int) -> LogEnd:
        """Remove every entry after `end_index` (-1: all), durable on return.

        The watermark is lowered first. After a crash in the middle the log may still have its old
        tail, or part of it, but a missing tail is then no damage. The bytes are zeroed: entries of
        an old tail could fit the chain again later (DLEDGER.md E31).
        """
        with self._writing():
            return self._truncate(end_index)

    def _truncate(self, end_index: int) -> LogEnd:
        self._finish_cut()
        target, end = self.log_end_at(end_index), self.end
        if target == end:
            return target
        until = self._last_byte(target)
        lowered = min(target, self._watermark.record.end, key=lambda end: end.index)
        self._watermark.move(lowered, until)
        self.spans = tuple(span for span in self.spans if span[0] <= end_index)
        self.memberships = tuple(held for held in self.memberships if held[0] <= end_index)
        if self.synced.index > end_index:
            self.synced = target
        self._leftover = until, end.index
        self.end = target
        self._truncations += 1  # after `end`: a reader that used the old end sees the change
        self._finish_cut()
        return target

    def sync(self) -> None:
        """Make everything appended durable, except the index, which recovery rebuilds from data."""
        with self._writing():
            if self.synced.position < self.end.position:
                self._data.sync()
                self.synced = self.end

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the entries up to `snapshot.end` (one held, or the log's start) by the snapshot.

        The snapshot is durable before the log's start moves, and that before files are removed,
        so the next start can finish whatever a crash interrupted. Data and index files wholly
        before the first entry left are removed, and the plain log with the first entries. Raises
        OutsideLog, NotContiguous for a snapshot of another log (nothing was changed), DiskFull
        (call again), DiskFailed.
        """
        with self._writing():
            self._finish_cut()
            start = snapshot.end
            held = self.log_end_at(start.index)
            if held != start:
                raise NotContiguous(f"a snapshot at {start} is not of this log, which has {held}")
            first_position = start.position
            if start.index < self.end.index:
                first_position = read_unit(self._index, start.index + 1).position
            save_snapshot(self._disk, self._folder, StoredSnapshot(snapshot, replaces_log=False))
            if start != self.start:
                set_log_start(self._watermark, start)
                self.synced = max(self.synced, start, key=lambda end: end.index)
                self._drop_before(first_position)
            self.snapshot = snapshot

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by the leader's snapshot, durable on return.

        The snapshot is durable before anything is removed, and is flagged as replacing the log, so
        that after a crash the next start removes the rest. The next entry goes to
        `snapshot.end.position` or to the start of the data file after it. Raises NotContiguous
        for a snapshot before the log's start, DiskFull (call again), DiskFailed.
        """
        with self._writing():
            self._finish_cut()
            end = snapshot.end
            if end.index < self.start.index:
                raise NotContiguous(f"a snapshot at {end} is before the start {self.start}")
            is_at_start = end == self.start
            if is_at_start:
                self._truncate(end.index)
            stored = StoredSnapshot(snapshot, replaces_log=not is_at_start)
            save_snapshot(self._disk, self._folder, stored)
            if not is_at_start:
                replace_log(self._data, self._index, self._watermark, end)
                self.spans, self.memberships = (), ()
                self.end = self.synced = end
                self._truncations += 1
                self._drop_plain()
            self.snapshot = snapshot

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable."""
        with self._writing():
            state = HardState(term, voted_for)
            save_hard_state(self._disk, self._folder, state)
            self.state = state

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the committed index as a hint for the next start (DLedger: every 3 s)."""
        with self._writing():
            save_committed_index(self._disk, self._folder, self.end.index, committed_index)
            self.committed_index = committed_index

    def advance_watermark(self) -> None:
        """Move the durable watermark up to the synced end; it may lag."""
        with self._writing():
            if self._watermark.record.end != self.synced:
                self._finish_cut()  # moving it clears `cut_until`, so no zeros may be missing
                self._index.sync()
                self._watermark.move(self.synced)

    def close(self) -> None:
        """Sync all appends and close the files; after a failure only close them."""
        try:
            if self._failure is None:
                self.sync()
                mark_stopped(self._disk, self._root)
        finally:
            for files in (self._data, self._index, self._watermark, self.plain_log):
                if files is not None:
                    files.close()

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one data file (a message for a pull). Raises OutsideLog.

        Messages from before an upgrade are read from the plain log.
        """
        self._check_alive()
        plain_log = self.plain_log
        if plain_log is not None and position < plain_log.end:
            return plain_log.read(position, size)
        while True:
            truncations = self._truncations
            if not self.start.position <= position <= self.end.position - size:
                break
            data = self._data.read(position, size)
            if self._truncations == truncations:
                if len(data) == size:
                    return data
                break
        raise OutsideLog(f"bytes {position}..{position + size} of a log up to {self.end.position}")

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Read whole entries from `first_index` on, of one term and one file, at least one.

        Stops before `bytes_max` unless the first entry is larger. Raises OutsideLog.
        """
        # No lock is shared with the writer: if a truncation ran meanwhile, read again.
        while True:
            self._check_alive()
            truncations = self._truncations
            end = self.end
            if not self.first_index <= first_index <= end.index:
                raise OutsideLog(f"entry {first_index} of {self.first_index}..{end.index}")
            try:
                found = read_batch(self._data, self._index, first_index, bytes_max, end.position)
            except TRUNCATION_RACE_ERRORS:
                if self._truncations == truncations:
                    raise
            else:
                if self._truncations == truncations:  # else what was read may be part zeros
                    return found

    def log_end_at(self, index: int) -> LogEnd:
        """Return the end that the log would have after entry `index`. Raises OutsideLog."""
        self._check_alive()
        truncations, start, end = self._truncations, self.start, self.end
        if index == end.index:
            return end
        if index == start.index:
            return start
        if not start.index < index < end.index:
            raise OutsideLog(f"entry {index} of a log {self.first_index}..{end.index}")
        found = read_log_end(self._data, self._index, index)
        if self._truncations != truncations:
            raise OutsideLog(f"entry {index} is being truncated")
        return found

    def _undo_append(self, batch: Batch) -> None:
        """Remove what a full disk left of an append, so that it definitely did not happen."""
        end = self.end
        until = batch.end_position if batch.position == end.position else end.position + BLANK_BYTES
        self._leftover = until, batch.last_index
        with suppress(DiskFull):
            self._finish_cut()

    def _finish_cut(self) -> None:
        """Remove what is after the end, left by an unfinished truncation or a failed append.

        On a full disk even zeros may find no room: then the next write tries again first.
        """
        if self._leftover is not None:
            until, last_index = self._leftover
            self._cut(self.end, until, last_index)
            self._leftover = None
            self.synced = self.end

    def _drop_before(self, first_position: int) -> None:
        """After the log's start moved up: remove what is before the first entry."""
        index, end_index = self.first_index, self.end.index
        next_firsts = (*(first for first, _ in self.spans[1:]), end_index + 1)
        self.spans = tuple(
            (max(first, index), term)
            for (first, term), next_first in zip(self.spans, next_firsts, strict=True)
            if next_first > index
        )
        self.memberships = tuple(held for held in self.memberships if held[0] >= index)
        self._data.remove_below(first_position)
        self._index.remove_below(index * UNIT_BYTES)
        self._drop_plain()

    def _drop_plain(self) -> None:
        """Remove the plain log once this log no longer starts where that ends."""
        plain_log = self.plain_log
        if plain_log is not None and self.start.position != plain_log.end:
            self.plain_log = None
            plain_log.remove()

    def _last_byte(self, end: LogEnd) -> int:
        """Return where the data after `end` stop in its file."""
        if self._data.start_of(self.end.position) == self._data.start_of(end.position):
            return self.end.position
        return self._data.data_end(end.position)

    def _cut(self, end: LogEnd, until: int, last_index: int) -> None:
        """Zero the data from `end` to byte `until` and the units up to `last_index`.

        Later data and index files are removed.
        """
        self._data.cut(end.position, until)
        units_at = (end.index + 1) * UNIT_BYTES
        file_end = self._index.start_of(units_at) + self._index.file_bytes
        self._index.cut(units_at, min((last_index + 1) * UNIT_BYTES, file_end))

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise DiskFailed(str(self._failure)) from self._failure

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Raise an earlier failure again; record a new one."""
        self._check_alive()
        try:
            yield
        except DiskFailed as error:
            self._failure = error
            raise


# The log's folder at a start: create it, or finish what a crash interrupted.
#
# Write order for a new folder: end of the plain log, watermark, `currterm`, watermark complete.
# For a compaction: snapshot, watermark, files. For an installation: snapshot, files, watermark.
# The order makes each intermediate state recognizable, so that it is finished before the scan.


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The contents of a log's folder besides data and index files."""

    disk: Disk
    path: str
    watermark: DurableWatermark
    state: HardState
    stored: StoredSnapshot | None
    plain_folder: str | None

    @classmethod
    def open(
        cls, disk: Disk, path: str, data_file_bytes: int, plain_folder: str | None
    ) -> LogFolder:
        """Open the folder, creating it if new. Raises StoreError as CommitLog.open does."""
        disk.make_dirs(f"{path}/data")
        disk.make_dirs(f"{path}/index")
        watermark = _open_watermark(disk, path, data_file_bytes, plain_folder)
        if watermark.record.data_file_bytes != data_file_bytes:
            raise StoreError(
                f"{path} has data files of {watermark.record.data_file_bytes} bytes:"
                f" set mappedFileSizeCommitLog to that, not to {data_file_bytes}"
            )
        state = load_hard_state(disk, path)
        # Written again: after a crash between rename and fsync of the folder, the name that we
        # just read may not be durable, and a vote must not be forgotten.
        save_hard_state(disk, path, state)
        stored = load_snapshot(disk, path)
        start = watermark.record.start
        if stored is None and start.index >= 0:
            raise LogDamaged(
                snapshot_path(path), f"the snapshot is missing, the log starts at {start}"
            )
        if stored is not None and stored.snapshot.end.index < start.index:
            raise LogDamaged(
                snapshot_path(path), f"the snapshot is older than the log's start, {start}"
            )
        return cls(disk, path, watermark, state, stored, plain_folder)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot at the log's start."""
        return self.stored.snapshot if self.stored else None

    def finish_interrupted(self, data: SegmentFiles, index: SegmentFiles) -> None:
        """Finish a compaction or installation that wrote its snapshot and not the new start."""
        stored, watermark = self.stored, self.watermark
        if stored is None or stored.snapshot.end == watermark.record.start:
            return
        save_snapshot(self.disk, self.path, stored)  # its name may not be durable yet
        if stored.replaces_log:
            replace_log(data, index, watermark, stored.snapshot.end)
        else:
            set_log_start(watermark, stored.snapshot.end)

    def open_plain(self) -> PlainLog | None:
        """Open the plain log that this log continues, None if there is none or it was removed.

        If the log no longer starts where that ends, files of it left by a crash are removed:
        entries were compacted, or the snapshot of a leader with other old messages replaced the
        log.
        """
        record = self.watermark.record
        if not record.plain_end:
            return None
        if record.start.position != record.plain_end:
            if self.plain_folder is not None:
                remove_plain_log(
                    self.disk, self.plain_folder, record.data_file_bytes, record.plain_end
                )
            return None
        if self.plain_folder is None:
            raise StoreError(
                f"{self.path} continues a plain commit log of {record.plain_end} bytes:"
                " set storePathCommitLog to the folder of that log"
            )
        return PlainLog(self.disk, self.plain_folder, record.data_file_bytes, record.plain_end)


def set_log_start(watermark: DurableWatermark, start: LogEnd) -> None:
    """Move the log's start up, and a lower watermark with it: the snapshot covers that part."""
    watermark.set_start(start, max(start, watermark.record.end, key=lambda end: end.index))


def replace_log(
    data: SegmentFiles, index: SegmentFiles, watermark: DurableWatermark, end: LogEnd
) -> None:
    """Remove all entries: an empty log that starts and ends at `end` is left.

    All files are removed before the watermark moves, including the one that `end` is in: after
    `end` an old tail could fit the chain and reappear (rocketmq#10666, DLEDGER.md E31).
    """
    index.remove_all()
    data.remove_all()
    watermark.set_start(end, end)


def _open_watermark(
    disk: Disk, folder: str, data_file_bytes: int, plain_folder: str | None
) -> DurableWatermark:
    """Open the watermark; in a new folder create it and `currterm`, in a crash-safe order."""
    path = f"{folder}/syncedto"
    if disk.exists(path):
        watermark = DurableWatermark.open(disk, path)
    else:
        for name in ("currterm", "checkpoint", "snapshot"):
            if disk.exists(f"{folder}/{name}"):
                raise LogDamaged(path, "the durable watermark is missing")
        if disk.names(f"{folder}/data"):
            raise LogDamaged(path, "the durable watermark is missing")
        plain_end = 0
        if plain_folder is not None:
            plain_end = upgrade_plain_log(disk, plain_folder, data_file_bytes)
        watermark = DurableWatermark.create(disk, path, data_file_bytes, plain_end)
    if not watermark.record.is_complete:
        save_hard_state(disk, folder, HardState())  # syncs the folder, and so `syncedto`'s name
        watermark.complete()
    return watermark
