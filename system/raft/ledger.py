"""A member's own log with what is durable and what is committed of it.

Every change becomes a numbered write for the shell; nothing that rests on a write may
be said before it is durable (`PendingWrites`).
"""

from __future__ import annotations

from system.raft.batch import Batch
from system.raft.log_view import LogView
from system.raft.pending_writes import PendingWrites
from system.raft.protocol import Append, InvariantError, SaveState, Truncate, Write


class Ledger:
    """The log of one member.

    Invariants: durable_index <= log.end_index; commit_index <= log.end_index and never
    falls; no entry at or below commit_index is ever removed.
    """

    def __init__(self, log: LogView) -> None:
        self.log = log
        self.pending = PendingWrites()
        self.durable_index = log.end_index
        self.commit_index = -1
        self._writes: list[Write] = []

    @property
    def checkpoint_index(self) -> int:
        """Highest index that is both committed and durable here.

        What is committed by others may still be another entry on this disk.
        """
        return min(self.commit_index, self.durable_index)

    def take_writes(self) -> list[Write]:
        """Return the writes since the last call, in order."""
        writes, self._writes = self._writes, []
        return writes

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Write term and vote."""
        self._write(SaveState(term, voted_for))

    def append(self, batch: Batch) -> None:
        """Put a batch at the end."""
        self.log.append(batch)
        self._write(Append(batch))

    def agrees_at(self, index: int, term: int) -> bool:
        """True if entry `index` stands here with `term` (prevLogIndex, prevLogTerm)."""
        return index <= self.log.end_index and self.log.term_at(index) == term

    def accept(self, batch: Batch) -> None:
        """Append what is new of a leader's batch; remove what contradicts it (Raft figure 2).

        Raises InvariantError where that would remove a committed entry.
        """
        same = self.log.last_at_most(batch.last_index, batch.term)
        if same >= batch.first_index and self.log.term_at(same) == batch.term:
            # Log matching: what stands at `same` with that term, stands below it too.
            if same == batch.last_index:
                return
            batch = batch.after(same)
        if batch.first_index <= self.log.end_index:
            self._truncate(batch.first_index - 1)
        self.append(batch)

    def commit(self, index: int) -> bool:
        """Entries up to `index` are committed; True if that is new."""
        assert index <= self.log.end_index, f"commit {index} beyond the end {self.log.end_index}"
        if index <= self.commit_index:
            return False
        self.commit_index = index
        return True

    def synced(self, write_seq: int) -> None:
        """All writes up to `write_seq` are durable."""
        for index in self.pending.synced(write_seq):
            self.durable_index = max(self.durable_index, index)
        self.log.stored(self.durable_index)

    def _truncate(self, end_index: int) -> None:
        if end_index < self.commit_index:
            raise InvariantError(
                f"committed entries {end_index + 1}..{self.commit_index} would be removed"
            )
        self.log.truncate(end_index)
        self.durable_index = min(self.durable_index, end_index)
        self._write(Truncate(end_index))

    def _write(self, write: Write) -> None:
        self.pending.add(write)
        self._writes.append(write)
