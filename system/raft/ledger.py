"""A member's own log with what is durable and what is committed of it.

Every change becomes a numbered write for the shell; nothing that rests on a write may
be said before it is durable (`PendingWrites`).
"""

from __future__ import annotations

from collections import deque

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.membership_log import MembershipLog
from shaketable.system.raft.protocol import (
    Append,
    Compact,
    Install,
    InvariantError,
    Message,
    SaveState,
    Snapshot,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

# What is written but not yet durable, and what may not be said before it is.
#
# Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); DLedger
# keeps neither rule (bugs E16 and E18 of DLEDGER.md).

HELD_MAX = 256
"""Messages that wait for writes: a few for each member, and for strangers that asked."""


class PendingWrites:
    """Numbers the writes and holds messages back until the writes they rest on are durable.

    Invariant: synced_seq <= write_seq, state_seq <= write_seq.
    """

    __slots__ = ("_appended", "_held", "state_seq", "synced_seq", "write_seq")

    def __init__(self) -> None:
        self.write_seq = 0
        self.synced_seq = 0
        self.state_seq = 0
        self._appended: deque[tuple[int, int]] = deque()  # (seq, last index)
        self._held: list[tuple[int, str, Message]] = []

    def add(self, write: Write) -> None:
        """Number a write."""
        self.write_seq += 1
        if isinstance(write, SaveState):
            self.state_seq = self.write_seq
        elif isinstance(write, Append):
            self._appended.append((self.write_seq, write.batch.last_index))
        elif isinstance(write, Truncate):
            # An append that is cut back proves no more than what is left of it: the same
            # entries, appended again later, are durable with that later write.
            end = write.end_index
            self._appended = deque((seq, min(last, end)) for seq, last in self._appended)
        elif isinstance(write, Install):
            self._appended.clear()
            self._appended.append((self.write_seq, write.snapshot.end.index))

    def hold(self, seq: int, peer: str, message: Message) -> bool:
        """Keep `message` until write `seq` is durable; False if it may go at once.

        To each peer the newest message of a kind replaces an older one that still waits: a
        write may be stuck for as long as the disk is full. Past HELD_MAX the oldest is lost,
        as any message may be.
        """
        if seq <= self.synced_seq:
            return False
        name = (peer, _kind(message))
        self._held = [kept for kept in self._held if (kept[1], _kind(kept[2])) != name]
        self._held.append((seq, peer, message))
        del self._held[:-HELD_MAX]
        return True

    def synced(self, seq: int) -> list[int]:
        """Writes up to `seq` are durable; return up to which index each append counts."""
        assert seq <= self.write_seq, "nothing can be durable before it is written"
        self.synced_seq = max(self.synced_seq, seq)
        durable = []
        while self._appended and self._appended[0][0] <= seq:
            durable.append(self._appended.popleft()[1])
        return durable

    def release(self, term: int) -> list[tuple[str, Message]]:
        """Return the messages that may go now; those of an older term are dropped.

        Votes are kept whatever their term: a granted pre-vote carries the asked one.
        """
        ready = [held for held in self._held if held[0] <= self.synced_seq]
        if ready:
            self._held = [held for held in self._held if held[0] > self.synced_seq]
        return [
            (peer, message)
            for _, peer, message in ready
            if message.term >= term or isinstance(message, VoteResponse)
        ]


def _kind(message: Message) -> tuple[type[Message], bool]:
    """What may replace what: a vote is no pre-vote, and the word of neither is the other's."""
    is_pre_vote = isinstance(message, VoteRequest | VoteResponse) and message.pre_vote
    return type(message), is_pre_vote


class Ledger:
    """The log of one member, the memberships in it, and the snapshot in front of it.

    Invariants: durable_index <= log.end_index; log.start.index <= commit_index <=
    log.end_index, and commit_index never falls; no entry at or below commit_index is ever
    removed but by compaction. `snapshot` stands exactly at the log's begin; None only
    where the log begins at nothing (index -1, position 0).
    """

    def __init__(
        self, log: LogView, memberships: MembershipLog, snapshot: Snapshot | None = None
    ) -> None:
        self.log = log
        self.memberships = memberships
        self.snapshot = snapshot
        self.pending = PendingWrites()
        self.durable_index = log.end_index
        self.commit_index = log.start.index
        self._writes: list[Write] = []

    @property
    def checkpoint_index(self) -> int:
        """Highest index that is both committed and durable here.

        What is committed by others may still be another entry on this disk.
        """
        return min(self.commit_index, self.durable_index)

    @property
    def has_writes(self) -> bool:
        """True if something is to be written since the last `take_writes`."""
        return bool(self._writes)

    def take_writes(self) -> list[Write]:
        """Return the writes since the last call, in order."""
        writes, self._writes = self._writes, []
        return writes

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Write term and vote."""
        self._write(SaveState(term, voted_for))

    def append(self, batch: Batch) -> None:
        """Put a batch at the end; a membership in it is in force at once."""
        self.log.append(batch)
        if batch.memberships:
            for index, membership in batch.memberships:
                self.memberships.append(index, membership)
        self._write(Append(batch))

    def agrees_at(self, index: int, term: int, position: int = -1) -> bool:
        """True if what stands at `index` here is the leader's (prevLogIndex, prevLogTerm).

        `position` is the leader's byte position behind it, looked at where our log begins:
        two logs that begin in different places share nothing. What was compacted here was
        committed, so that a leader has it. Raises InvariantError where the leader lacks
        what is committed here.
        """
        start = self.log.start
        if index < start.index:
            return True
        if index > self.log.end_index:
            return False
        is_same = self.log.term_at(index) == term
        if index == start.index and position not in (-1, start.position):
            is_same = False
        if not is_same and 0 <= index <= self.commit_index:
            raise InvariantError(f"entry {index} is committed, the leader has another one")
        return is_same

    def accept(self, batch: Batch) -> None:
        """Append what is new of a leader's batch; remove what contradicts it (Raft figure 2).

        Raises InvariantError where that would remove a committed entry.
        """
        if batch.first_index <= self.log.end_index:
            same = self._last_matching_index(batch)
            if same >= batch.last_index:
                return
            if same >= batch.first_index:
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

    def compact(self, snapshot: Snapshot) -> None:
        """Let `snapshot` stand for the committed entries up to its end."""
        assert snapshot.end.index <= self.commit_index, "only what is committed is compacted"
        self.log.compact(snapshot.end)
        self.memberships.compact(snapshot.end.index)
        self.snapshot = snapshot
        self._write(Compact(snapshot))

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a leader's snapshot.

        Raises InvariantError where that would remove a committed entry.
        """
        if snapshot.end.index < self.commit_index:
            raise InvariantError(
                f"committed entries {snapshot.end.index + 1}..{self.commit_index} "
                "would be removed by a snapshot"
            )
        self.log.reset(snapshot.end)
        self.memberships.reset(snapshot.membership, snapshot.membership_index)
        self.snapshot = snapshot
        self.commit_index = snapshot.end.index
        self.durable_index = -1
        self._write(Install(snapshot))

    def synced(self, write_seq: int) -> bool:
        """All writes up to `write_seq` are durable; True if entries or a snapshot are among."""
        durable = self.pending.synced(write_seq)
        for index in durable:
            self.durable_index = max(self.durable_index, index)
        if not durable:
            return False
        self.log.stored(self.durable_index)
        return True

    # ---- decisions that calibration may break, each in a method of its own -------------

    def _last_matching_index(self, batch: Batch) -> int:
        """Last index up to which our log holds the batch's entries, or one below them all.

        Log matching: what stands at an index with that term, stands below it too.
        """
        start = self.log.start.index
        if batch.last_index <= start:
            return batch.last_index  # compacted, so it was committed: the leader has the same
        same = self.log.last_at_most(batch.last_index, batch.term)
        if same > start and self.log.term_at(same) == batch.term:
            return same
        return max(start, batch.first_index - 1)

    def _durable_after_truncate(self, end_index: int) -> int:
        """Up to where the log is durable once it ends at `end_index`."""
        return min(self.durable_index, end_index)

    def _may_truncate(self, end_index: int) -> bool:
        """True if nothing that is committed lies behind `end_index`."""
        return end_index >= self.commit_index

    def _truncate(self, end_index: int) -> None:
        if not self._may_truncate(end_index):
            raise InvariantError(
                f"committed entries {end_index + 1}..{self.commit_index} would be removed"
            )
        self.log.truncate(end_index)
        self.memberships.truncate(end_index)
        self.durable_index = self._durable_after_truncate(end_index)
        self._write(Truncate(end_index))

    def _write(self, write: Write) -> None:
        self.pending.add(write)
        self._writes.append(write)
