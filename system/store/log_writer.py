"""Carries out the core's writes on a commit log, in order, with group commit.

The node's flusher runs it in a thread, the simulated worlds call it inline: in both, the same code
decides what may be acknowledged.
Source: RocketMQ's GroupCommitService (SYNC_FLUSH) and FlushRealTimeService (ASYNC_FLUSH);
DESIGN.md decision 1; DLEDGER.md E8, E18, E32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, Protocol

from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    Install,
    LogEnd,
    SaveState,
    Snapshot,
    Truncate,
    Write,
)
from shaketable.system.store.disk import DiskFull

AckPolicy = Literal["fsync", "page-cache"]
"""When entries count as written.

`fsync`: once they are on disk; one fsync for all writes of a call (group commit). Acknowledged
messages survive a power loss of all nodes at once.

`page-cache`: once the operating system has them. They survive a process crash but not a power
loss: a node may then lack entries that it acknowledged, and if a majority loses power together,
acknowledged messages are lost. The shell calls `LogWriter.sync` every FLUSH_INTERVAL_MS, which
bounds the loss. Term and vote, truncations, snapshots and the log's start are synced under either
policy.
"""
FLUSH_INTERVAL_MS = 500.0
"""How often `sync` is called under `page-cache` (RocketMQ's flushIntervalCommitLog; DLedger's
flushFileInterval is 10 ms)."""


class WritableLog(Protocol):
    """The log that writes are carried out on: a `CommitLog` or a `PlainCommitLog`."""

    @property
    def start(self) -> LogEnd:
        """The place before the first entry held."""

    end: LogEnd
    """The log's end, written but perhaps not durable."""

    @property
    def committed_index(self) -> int:
        """The commit index that was saved before the last start."""

    def append(self, batch: Batch) -> None:
        """Append a batch. Raises DiskFull (nothing was appended), DiskFailed."""

    def truncate(self, end_index: int) -> LogEnd:
        """Remove every entry after `end_index`, durably."""

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the entries up to the snapshot's end by the snapshot."""

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by the snapshot."""

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable."""

    def log_end_at(self, index: int) -> LogEnd:
        """Return the end that the log would have after entry `index`. Raises OutsideLog."""

    def sync(self) -> None:
        """Make everything appended durable. Raises DiskFailed."""

    def advance_watermark(self) -> None:
        """Move the durable watermark up to the synced end."""

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the committed index as a hint for the next start."""

    def close(self) -> None:
        """Sync all appends and close the files."""


class LogWriter:
    """Writes to one log. Not thread-safe, like CommitLog's writing methods."""

    def __init__(self, log: WritableLog, ack: AckPolicy = "fsync") -> None:
        self.log = log
        self.ack = ack

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Carry out `writes` in order; on return they are as durable as the policy requires.

        Returns the writes not carried out because the disk is full, usually none. The first of
        them definitely did not happen, and the caller must retry them all (only a compaction among
        them may already be done, to free space). Raises DiskFailed: nothing of this call may be
        acknowledged, and the node must stop.
        """
        left: Sequence[Write] = ()
        must_sync = False
        for at, write in enumerate(writes):
            try:
                self._write(write)
            except DiskFull:
                left = writes[at:]
                self._make_room(left)
                break
            must_sync = must_sync or isinstance(write, Append)
        if must_sync and self.ack == "fsync":
            self.sync()
        return left

    def sync(self) -> None:
        """Make everything appended durable. Raises DiskFailed."""
        self.log.sync()

    def advance_watermark(self) -> None:
        """Move the durable watermark up to the synced end; it lags while the disk is full."""
        with suppress(DiskFull):
            self.log.advance_watermark()

    def _make_room(self, left: Sequence[Write]) -> None:
        """Run the last compaction in `left` ahead of the writes that found no room.

        Otherwise the one write that frees space would wait for those that need it. This is safe:
        the compacted entries were committed and durable here when the core issued the compaction,
        so no earlier write in `left` touches them. It stays in `left` and is skipped later.
        """
        log, last = self.log, None
        for write in left:
            if isinstance(write, Install):
                break
            if isinstance(write, Compact):
                last = write.snapshot
        if last is None or not log.start.index < last.end.index <= log.end.index:
            return
        if log.log_end_at(last.end.index) == last.end:
            with suppress(DiskFull):
                log.compact(last)

    def _write(self, write: Write) -> None:
        """Carry out one write."""
        if isinstance(write, Append):
            self.log.append(write.batch)
        elif isinstance(write, SaveState):
            self.log.save_state(write.term, write.voted_for)
        elif isinstance(write, Truncate):
            self.log.truncate(write.end_index)
        elif isinstance(write, Compact):
            if write.snapshot.end.index >= self.log.start.index:  # else `_make_room` went further
                self.log.compact(write.snapshot)
        else:
            assert isinstance(write, Install)
            self.log.install(write.snapshot)
