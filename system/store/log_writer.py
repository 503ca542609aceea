"""Carries out the core's writes on a commit log, in order, and makes them durable together.

The node's flusher runs it in a thread, the simulated worlds call it inline: the same code decides
in both what may be acknowledged.
Source: RocketMQ's GroupCommitService (SYNC_FLUSH) and FlushRealTimeService (ASYNC_FLUSH);
DESIGN.md decision 1; DLEDGER.md E8, E18, E32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, Protocol

from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.protocol import (
    Append,
    Compact,
    Install,
    SaveState,
    Snapshot,
    Truncate,
    Write,
)
from shaketable.system.store.disk import DiskFull

AckPolicy = Literal["fsync", "page-cache"]
"""When entries count as written.

`fsync`: once they are on the disk; one fsync for all writes of a call (group commit). An
acknowledged message survives the loss of power of every node at once.

`page-cache`: once the operating system has them. They survive the death of the process, not of
the machine: after a loss of power a node may lack entries that it has acknowledged, and where a
majority lost power together, acknowledged messages are gone. The shell calls `LogWriter.sync`
every FLUSH_INTERVAL_MS, which bounds how much. Term and vote, truncations, snapshots and the
log's begin are synced under either policy.
"""
FLUSH_INTERVAL_MS = 500.0
"""How often `sync` is called under `page-cache` (RocketMQ's flushIntervalCommitLog; DLedger's
flushFileInterval is 10 ms)."""


class WritableLog(Protocol):
    """What writes are carried out on: a `CommitLog`, or a `NativeCommitLog`."""

    @property
    def start(self) -> LogEnd:
        """The place in front of the first entry held."""

    end: LogEnd
    """What is written."""

    @property
    def committed_index(self) -> int:
        """What was known to be committed at the start."""

    def append(self, batch: Batch) -> None:
        """Write a batch at the end. Raises DiskFull (nothing was appended), DiskFailed."""

    def truncate(self, end_index: int) -> LogEnd:
        """Remove every entry behind `end_index`, durably."""

    def compact(self, snapshot: Snapshot) -> None:
        """Let the log begin at the snapshot."""

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by the snapshot."""

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable."""

    def log_end_at(self, index: int) -> LogEnd:
        """Return the log's end if it ended with entry `index`. Raises OutsideLog."""

    def sync(self) -> None:
        """Make everything appended durable. Raises DiskFailed."""

    def advance_watermark(self) -> None:
        """Move the durable mark up to what is synced."""

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the committed index, a hint for the next start."""

    def close(self) -> None:
        """Sync what was appended, and close the files."""


class LogWriter:
    """Writes to one log; not thread-safe, as CommitLog's writing methods are not."""

    def __init__(self, log: WritableLog, ack: AckPolicy = "fsync") -> None:
        self.log = log
        self.ack = ack

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Carry out `writes` in order; what was done is as durable as the policy says on return.

        Returns the writes left undone because the disk is full, in order, empty as a rule: the
        first of them certainly did not happen, and all are to be given again later (of them only
        a compaction may have been made already, to make room). Raises DiskFailed: nothing of the
        call may be acknowledged, and the node must stop.
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
        """Move the synced-to mark up to what is synced; it lags while the disk is full."""
        with suppress(DiskFull):
            self.log.advance_watermark()

    def _make_room(self, left: Sequence[Write]) -> None:
        """Remove what has expired, although it is asked for behind what found no room.

        Else the one write that frees the disk waits for those that need the room. What a
        compaction stands for was committed and durable here when the core gave it, so nothing
        undone in front of it touches that; it stays among `left` and is passed over later.
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
