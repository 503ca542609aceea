"""Planted bugs in the log's files, their recovery and their durability."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.protocol import Batch, LogEnd, Write
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed, File
from shaketable.system.store.entry import ENTRY_MAGIC, HEADER, chain_crc
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.recovery import LogScan
from shaketable.system.store.segment_files import SegmentFiles


class AckFromPageCache(LogWriter):
    """Reports writes as durable without fsync."""

    def sync(self) -> None:
        """Do nothing: leave it to the operating system."""
        return


ACK_FROM_PAGE_CACHE = Mutant(
    "ack-from-page-cache",
    log_writer=AckFromPageCache,
    about="""
    An append counts as durable when the operating system has it.

    Where a majority loses power at once, acknowledged messages are gone. DLedger acknowledges from
    the page cache and ignores flushDiskType=SYNC_FLUSH.

    Source: DLedgerCommitLog and DLedgerMmapFileStore (bug E18), https://github.com/apache/rocketmq
    (store, DLedgerCommitLog.java)
    """,
)


class _NeverSyncsNames(SegmentFiles):
    """Syncs the files but not their directory."""

    def sync_names(self) -> None:
        """Do nothing: leave it to the operating system."""


class DirectoryNotSynced(CommitLog):
    """A log with these files."""

    files_type = _NeverSyncsNames


DIRECTORY_NOT_SYNCED = Mutant(
    "directory-not-synced",
    commit_log=DirectoryNotSynced,
    hunt=Hunt("log", ("power", "kill")),
    about="""
    A new data file is synced, and the folder that names it is not.

    After a loss of power the file is gone, with every entry that was synced into it and
    acknowledged.

    Source: https://github.com/etcd-io/etcd/issues/6368 (parent directories of the WAL are not
    synced) and https://github.com/ClickHouse/ClickHouse/issues/116316 (Keeper's changelog).
    """,
)


class _SwallowsSyncErrors(SegmentFiles):
    """Considers a failed fsync successful."""

    def _sync_file(self, file: File) -> None:
        with suppress(DiskFailed):
            file.sync()


class FlushErrorSwallowed(CommitLog):
    """A log with these files."""

    files_type = _SwallowsSyncErrors


FLUSH_ERROR_SWALLOWED = Mutant(
    "flush-error-swallowed",
    commit_log=FlushErrorSwallowed,
    about="""
    An fsync that fails is logged, and what it should have written counts as durable.

    The kernel drops the pages and lets the next fsync succeed; the message was answered SEND_OK.

    Source: https://github.com/apache/rocketmq/issues/2706 and
    https://github.com/apache/rocketmq/pull/4306 (bug E32).
    """,
)


class FlushedBeyondTruncation(CommitLog):
    """Skips fsync below the highest position that was ever flushed."""

    _flushed_position = 0

    def sync(self) -> None:
        """Sync only if the log's end is above the highest flushed position."""
        if self.end.position <= self._flushed_position:
            self.synced = self.end
            return
        super().sync()
        self._flushed_position = self.end.position

    def truncate(self, end_index: int) -> LogEnd:
        """Truncate, but keep the flushed position."""
        self._flushed_position = max(self._flushed_position, self.synced.position)
        return super().truncate(end_index)


FLUSHED_BEYOND_TRUNCATION = Mutant(
    "flushed-beyond-truncation",
    commit_log=FlushedBeyondTruncation,
    about="""
    After a truncation the position up to which data are flushed stays where it was.

    What is appended in place of the removed tail lies below that position, so that no fsync is done
    for it, and a loss of power takes what was acknowledged.

    Source: https://github.com/openmessaging/dledger/commit/998e421 (bug E13).
    """,
)


class MarkAheadOfFsync(CommitLog):
    """Moves the durable watermark on write, not on fsync."""

    def append(self, batch: Batch) -> None:
        """Write, and move the durable watermark at once."""
        super().append(batch)
        self._watermark.move(self.end)


MARK_AHEAD_OF_FSYNC = Mutant(
    "mark-ahead-of-fsync",
    commit_log=MarkAheadOfFsync,
    about="""
    The durable watermark runs ahead of the fsync, up to the log's end.

    After a loss of power the mark vouches for entries that are gone: the member finds its log
    damaged and does not start, although nothing damaged it.

    Source: https://github.com/apache/rocketmq/issues/10666 (bug E31), where positions and files
    part in the same way; Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), on
    what is persisted out of order.
    """,
)


class PartialWriteNotRetried(LogWriter):
    """Reports writes that did not fit as done."""

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Carry out the writes that fit; report none as left."""
        super().carry_out(writes)
        return ()


PARTIAL_WRITE_NOT_RETRIED = Mutant(
    "partial-write-not-retried",
    log_writer=PartialWriteNotRetried,
    about="""
    What a full disk left undone of a batch of writes is forgotten, and counts as done.

    An exception in the middle of a batch append left the rest uncompleted and untried
    again; here the rest even counts as durable.

    Source: https://github.com/openmessaging/dledger/issues/142 (bug E8).
    """,
)


class FullDiskSkipsSync(LogWriter):
    """Leaves out the fsync of writes before one that did not fit."""

    _is_full = False

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Carry out the writes; return those that are left."""
        self._is_full = False
        return super().carry_out(writes)

    def sync(self) -> None:
        """Sync, unless the disk was full just now."""
        if not self._is_full:
            super().sync()

    def _make_room(self, left: Sequence[Write]) -> None:
        self._is_full = True
        super()._make_room(left)


FULL_DISK_SKIPS_SYNC = Mutant(
    "full-disk-skips-sync",
    log_writer=FullDiskSkipsSync,
    hunt=Hunt("log", ("disk-full", "power")),
    about="""
    If a batch of writes fills the disk, those of it that fitted count as durable without an fsync.

    Until there is room again a loss of power takes what was acknowledged.

    Source: our own, after https://github.com/openmessaging/dledger/issues/142 (bug E8), where an
    exception in the middle of a batch skips what comes after it.
    """,
)


class _ChecksHeadersOnly(LogScan):
    """Checks an entry's header, but not its body."""

    def _verify(self, window: memoryview, at: int, position: int) -> LogEnd:
        head = window[at : at + HEADER.size]
        if len(head) == HEADER.size:
            magic, size, index, term, stored, _, chain, _, _ = HEADER.unpack(head)
            fits = (magic, index, stored) == (ENTRY_MAGIC, self.end.index + 1, position)
            if fits and chain == chain_crc(self.end.chain_crc, head) and at + size <= len(window):
                return LogEnd(index, term, position + size, chain)
        return super()._verify(window, at, position)


class TornBodyAccepted(CommitLog):
    """A log with this recovery."""

    scan_type = _ChecksHeadersOnly


TORN_BODY_ACCEPTED = Mutant(
    "torn-body-accepted",
    commit_log=TornBodyAccepted,
    hunt=Hunt("log", ("power", "crash-loop")),
    about="""
    Recovery checks the head of an entry, and not its body.

    Where the head of the last entry reached the disk and its body did not, zeros are served as a
    message, voted with, and sent to others.

    Source: https://github.com/apache/rocketmq/issues/7437 (a message of which the end was not
    written passes the check at recovery, since its properties are in no CRC).
    """,
)


class TruncationInMemory(CommitLog):
    """Truncates in memory only: neither the files nor the durable watermark."""

    def _truncate(self, end_index: int) -> LogEnd:
        end = self.log_end_at(end_index)
        self.spans = tuple(span for span in self.spans if span[0] <= end_index)
        self.memberships = tuple(held for held in self.memberships if held[0] <= end_index)
        self.synced = min(self.synced, end, key=lambda end: end.index)
        self.end = end
        self._truncations += 1
        return end


TRUNCATION_IN_MEMORY = Mutant(
    "truncation-in-memory",
    commit_log=TruncationInMemory,
    about="""
    A truncation moves the positions in memory and leaves the files as they are.

    After a restart the removed entries are there again and may win an election; or what was
    written over them contradicts the durable watermark, and the member does not start.

    Source: https://github.com/apache/rocketmq/issues/10666 (bug E31).
    """,
)


PLUGINS = (
    ACK_FROM_PAGE_CACHE,
    DIRECTORY_NOT_SYNCED,
    FLUSH_ERROR_SWALLOWED,
    FLUSHED_BEYOND_TRUNCATION,
    FULL_DISK_SKIPS_SYNC,
    MARK_AHEAD_OF_FSYNC,
    PARTIAL_WRITE_NOT_RETRIED,
    TORN_BODY_ACCEPTED,
    TRUNCATION_IN_MEMORY,
)
