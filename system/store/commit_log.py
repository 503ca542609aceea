"""The commit log on a Disk: data and index files, hard state, synced-to mark, checkpoint.

One flusher thread calls the writing methods, in order; `read`, `read_entries` and `log_end_at`
may be called by another thread at the same time. Source: DLedger's DLedgerMmapFileStore;
DLEDGER.md B.3; DESIGN.md decision 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from system.raft.batch import Batch, LogEnd
from system.store.disk import Disk, StoreError

DATA_FILE_BYTES = 1 << 30
INDEX_FILE_BYTES = 160 << 20


class LogDamaged(StoreError):
    """Data that had been synced is not there any more. The node must not vote until repaired."""


class OutsideLog(StoreError):
    """Asked for an index or a byte range that the log does not hold."""


@dataclass(frozen=True, slots=True)
class HardState:
    """Raft's durable state (DLedger's currterm): the term and whom the node voted for in it."""

    term: int = 0
    voted_for: str | None = None


class CommitLog:
    """The log of one node. Any DiskFailed poisons it: every later call raises it again."""

    end: LogEnd
    """What is written."""
    synced: LogEnd
    """What is known to be durable (moved by `sync`)."""
    begin_index: int
    """Index of the first entry held (0 until old files are deleted)."""
    spans: tuple[tuple[int, int], ...]
    """(term, first index) of each run of entries of one term, in order."""
    state: HardState
    torn_bytes: int
    """How many bytes of a torn tail recovery truncated."""
    committed_index: int
    """From the checkpoint, clamped to the end; -1 if none."""

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

        Raises LogDamaged for damage below the synced-to mark, DiskFailed, DiskFull.
        """
        raise NotImplementedError

    def append(self, batch: Batch) -> None:
        """Write a batch behind the end. It must continue the log. Not durable until `sync`.

        Raises DiskFull (nothing was appended), DiskFailed.
        """
        raise NotImplementedError

    def truncate(self, end_index: int) -> LogEnd:
        """Remove every entry behind `end_index` (-1: all), durable on return."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make everything appended durable."""
        raise NotImplementedError

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Make term and vote durable."""
        raise NotImplementedError

    def save_checkpoint(self, committed_index: int) -> None:
        """Save the committed index, a hint for the next start (DLedger: every 3 s)."""
        raise NotImplementedError

    def advance_mark(self) -> None:
        """Move the durable synced-to mark up to what is synced. It may lag."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the files; nothing is flushed that was not synced."""
        raise NotImplementedError

    def read(self, position: int, size: int) -> bytes:
        """Read bytes of one data file (a message for a pull). Raises OutsideLog."""
        raise NotImplementedError

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Read whole entries from `first_index` on, of one term and one file, at least one.

        Stops before `bytes_max` unless the first entry is larger. Raises OutsideLog.
        """
        raise NotImplementedError

    def log_end_at(self, index: int) -> LogEnd:
        """Return the log's end if it ended with entry `index`. Raises OutsideLog."""
        raise NotImplementedError
