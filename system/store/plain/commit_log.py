"""The commit log of a master-slave broker, in RocketMQ's own format.

Files named by their first byte's position hold messages back to back, and a blank if the next one
did not fit (DLEDGER.md B.1). There is no index and no durable watermark: a torn tail and damage
cannot be distinguished, and recovery ends the log at the first byte that is no message. The
flushed position (`masterFlushedOffset` in RocketMQ's `checkpoint`) only limits how much of the log
recovery scans.

One flusher calls the writing methods, in order; `read`, `read_entries` and `log_end_at` may be
called by another thread at the same time. Source: RocketMQ's CommitLog (recoverNormally,
recoverAbnormally, truncateDirtyFiles) and StoreCheckpoint; DLEDGER.md B.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Self

from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.protocol import Snapshot
from shaketable.system.store.broker_checkpoint import STORE_CHECKPOINT_BYTES
from shaketable.system.store.disk import Disk, DiskFailed, DiskFull, StoreError
from shaketable.system.store.index_units import NotContiguous
from shaketable.system.store.message import DamagedMessage
from shaketable.system.store.plain.batch import (
    PlainBatch,
    plain_batch,
    plain_end,
    verified_size,
    whole_bytes,
)
from shaketable.system.store.plain.log import SCAN_BYTES
from shaketable.system.store.segment_files import NAME_DIGITS, OutsideLog, SegmentFiles
from shaketable.system.store.state_files import mark_running, mark_stopped

FILES_SCANNED_MIN = 3
"""After a crash, recovery scans at least this many of the last files (RocketMQ's number)."""
_FLUSHED = struct.Struct(">q")
_FLUSHED_AT = 24
"""Where `checkpoint` holds masterFlushedOffset."""


class PlainCommitLog:
    """The log of one broker. After a DiskFailed every later call raises it again.

    Indices are byte positions (`system.store.plain.batch`): `end.index` is `end.position` - 1.
    """

    end: LogEnd
    """The log's end, written but perhaps not durable."""
    synced: LogEnd
    """The durable end."""
    was_aborted: bool
    """The last run did not close the log: the file `abort` existed."""
    torn_bytes: int
    """How many bytes recovery removed after the last valid message."""

    def __init__(
        self, disk: Disk, root: str, folder: str, file_bytes: int, *, was_aborted: bool
    ) -> None:
        """Recover the log in a folder; use `open`."""
        self.folder = folder
        self.was_aborted = was_aborted
        self.torn_bytes = 0
        self._disk = disk
        self._root = root
        self._failure: DiskFailed | None = None
        self._leftover: int | None = None  # up to where a failed append may have written
        self._files = SegmentFiles(disk, folder, file_bytes, reserve=True)
        starts = self._files.starts
        self._check_files(starts)
        self._start = plain_end(starts[0] if starts else 0)
        self.end = self._start
        if starts:
            self.end = self._recover(starts)
        self.synced = self.end

    @classmethod
    def open(cls, disk: Disk, root: str, folder: str, file_bytes: int) -> Self:
        """Open storePathCommitLog `folder` of the store at `root`, created if new, and recover.

        Raises StoreError for a wrong file size or a missing file, DiskFailed.
        """
        disk.make_dirs(root)
        disk.make_dirs(folder)
        was_aborted = mark_running(disk, root)
        return cls(disk, root, folder, file_bytes, was_aborted=was_aborted)

    @property
    def start(self) -> LogEnd:
        """The place before the oldest byte held."""
        return self._start

    @property
    def file_bytes(self) -> int:
        """Size of its files (mappedFileSizeCommitLog)."""
        return self._files.file_bytes

    @property
    def committed_index(self) -> int:
        """The durable index: no other broker has to acknowledge."""
        return self.synced.index

    def append(self, batch: Batch) -> None:
        """Append a batch. It is not durable until `sync`.

        Raises DiskFull (nothing was appended), DiskFailed, NotContiguous.
        """
        with self._writing():
            self._remove_leftover()
            position, files = self.end.position, self._files
            if batch.position != position:
                raise NotContiguous(f"a batch at {batch.position}, the log ends at {position}")
            if not files.has(position):
                files.create(position)
            try:
                files.write([batch.data], position)
            except DiskFull:
                self._leftover = batch.end_position
                with suppress(DiskFull):
                    self._remove_leftover()
                raise
            self.end = plain_end(batch.end_position)

    def sync(self) -> None:
        """Make everything appended durable. Raises DiskFailed."""
        with self._writing():
            end = self.end
            if self.synced.position < end.position:
                self._files.sync()
                self.synced = end

    def compact(self, snapshot: Snapshot) -> None:
        """Remove the files wholly before `snapshot.end`, where one of the files starts."""
        with self._writing():
            position = snapshot.end.position
            if not self.start.position <= position <= self.end.position:
                raise NotContiguous(f"a start at {position} is not of {self.start}..{self.end}")
            self._start = plain_end(position)
            self._files.remove_below(position)

    def install(self, snapshot: Snapshot) -> None:
        """Restart the log, which holds no messages, at `snapshot.end`.

        A new slave starts where its master's last file does. Raises NotContiguous if no file can
        start there.
        """
        with self._writing():
            position = snapshot.end.position
            if position % self._files.file_bytes:
                raise NotContiguous(f"no file starts at {position}: see mappedFileSizeCommitLog")
            self._files.remove_all()
            self._files.create(position)
            self._start = self.end = self.synced = plain_end(position)

    def truncate(self, end_index: int) -> LogEnd:
        """Refuse: a master-slave log is never truncated. Raises NotContiguous."""
        raise NotContiguous(f"a plain commit log is not cut back to {end_index}")

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Refuse: there are no terms and votes. Raises NotContiguous."""
        raise NotContiguous(f"a plain commit log has no term {term} and no vote for {voted_for}")

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the flushed position as a hint for the next start."""
        del committed_index  # the flushed position is what counts here
        with self._writing():
            self._save_flushed(self.synced.position)

    def advance_watermark(self) -> None:
        """Do nothing: there is no durable watermark."""

    def close(self) -> None:
        """Flush all appends and close the files; after a failure only close them."""
        try:
            if self._failure is None:
                self.sync()
                with suppress(DiskFull):
                    self._save_flushed(self.synced.position)
                mark_stopped(self._disk, self._root)
        finally:
            self._files.close()

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one file. Raises OutsideLog."""
        self._check_alive()
        if self.start.position <= position and position + size <= self.end.position:
            data = self._files.read(position, size)
            if len(data) == size:
                return data
        raise OutsideLog(f"bytes {position}..{position + size} of {self.start}..{self.end}")

    def read_entries(self, first_index: int, bytes_max: int) -> PlainBatch:
        """Read whole messages from byte `first_index` on, of one file, at least one.

        Stops before `bytes_max` unless the first message is larger. Raises OutsideLog.
        """
        self._check_alive()
        end_position = self.end.position
        if not self.start.position <= first_index < end_position:
            raise OutsideLog(f"byte {first_index} of {self.start}..{self.end}")
        file_end = self._files.start_of(first_index) + self._files.file_bytes
        held = min(file_end, end_position) - first_index
        data = self._files.read(first_index, min(held, max(bytes_max, 8)))
        whole = whole_bytes(data)
        if not whole:
            size = int.from_bytes(data[:4], "big")
            if not len(data) < size <= held:
                raise OutsideLog(f"there is no message at {first_index}")
            data = self._files.read(first_index, size)
            whole = size
        return plain_batch(first_index, data[:whole])

    def log_end_at(self, index: int) -> LogEnd:
        """Return the end that the log would have after byte `index`. Raises OutsideLog."""
        if not self.start.index <= index <= self.end.index:
            raise OutsideLog(f"byte {index} of {self.start}..{self.end}")
        return plain_end(index + 1)

    # ---- recovery ---------------------------------------------------------------------

    def _check_files(self, starts: list[int]) -> None:
        """Raise StoreError if a file is too large or misplaced, or one in between is missing.

        A file may be shorter: a power loss may lose the size of one of which nothing is flushed.
        """
        file_bytes = self._files.file_bytes
        for name in self._disk.names(self.folder):
            if len(name) != NAME_DIGITS or not name.isdecimal():
                continue
            file = self._disk.open(f"{self.folder}/{name}")
            size = file.size
            file.close()
            if int(name) % file_bytes or size > file_bytes:
                raise StoreError(
                    f"{self.folder}/{name} has {size} bytes: set mappedFileSizeCommitLog to what"
                    f" the log was made with, not to {file_bytes}"
                )
        for before, start in pairwise(starts):
            if start != before + file_bytes:
                raise StoreError(f"{self._files.path(before + file_bytes)} is missing")

    def _recover(self, starts: list[int]) -> LogEnd:
        """Find the log's end, the first position with no valid message, and truncate after it.

        The scan starts at the file of the flushed position, or at one of the last files if that is
        earlier: FILES_SCANNED_MIN of them after a crash, else one.
        """
        file_bytes = self._files.file_bytes
        scanned = FILES_SCANNED_MIN if self.was_aborted else 1
        flushed = self._flushed_position()
        from_the_end = starts[-1] - (scanned - 1) * file_bytes
        start = max(starts[0], min(from_the_end, self._files.start_of(flushed)))
        end = start
        while self._files.has(end) and end == self._files.start_of(end):
            end, is_complete = self._walk(end)
            if not is_complete:
                break
        for first in starts:
            if start <= first <= end:
                self._files.fill_up(first)
        files_end = starts[-1] + file_bytes
        self.torn_bytes = sum(
            self._files.data_end(first) - first
            for first in (end, *(later for later in starts if later > end))
            if first < files_end
        )
        # Messages after the flushed position may be in the page cache only: make them durable.
        self._files.rewrite(max(start, flushed), end)
        if end < files_end:
            # An earlier start may have been killed after it wrote zeros: make those durable, too.
            self._files.cut(end, max(self._files.data_end(end), end + 1))
        else:
            self._files.sync()
        return plain_end(end)

    def _flushed_position(self) -> int:
        """Return the position up to which the log was flushed at least, 0 if unknown."""
        path = f"{self._root}/checkpoint"
        if not self._disk.exists(path):
            return 0
        file = self._disk.open(path)
        data = file.pread(_FLUSHED.size, _FLUSHED_AT)
        file.close()
        if len(data) < _FLUSHED.size:
            return 0
        return max(0, int(_FLUSHED.unpack(data)[0]))

    def _save_flushed(self, position: int) -> None:
        path = f"{self._root}/checkpoint"
        disk = self._disk
        is_new = not disk.exists(path)
        file = disk.create(path, STORE_CHECKPOINT_BYTES) if is_new else disk.open(path)
        try:
            file.grow(STORE_CHECKPOINT_BYTES)
            file.pwrite([_FLUSHED.pack(position)], _FLUSHED_AT)
            file.sync()
        finally:
            file.close()
        if is_new:
            self._disk.sync_dir(self._root)

    def _walk(self, start: int) -> tuple[int, bool]:
        """Verify a file's messages; return where they end, and whether they fill the file."""
        at = window_at = start
        file_end = start + self._files.file_bytes
        window = memoryview(b"")
        try:
            while at < file_end:
                size = verified_size(window, at - window_at, at, file_end - at)
                if not size:
                    if window_at == at and window:
                        return at, False
                    window_at = at
                    window = memoryview(self._files.read(at, min(SCAN_BYTES, file_end - at)))
                    if not window:
                        return at, False
                at += size
        except DamagedMessage:
            return at, False
        return file_end, True

    # ---- failures ---------------------------------------------------------------------

    def _remove_leftover(self) -> None:
        """Remove what a full disk left of an append, so that it definitely did not happen."""
        if self._leftover is not None:
            self._files.zero(self.end.position, self._leftover)
            self._leftover = None

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
