"""A member's log, and how much of it is durable and committed.

Every change becomes a numbered write for the shell; a message that depends on a write is
held back until that write is durable (`PendingWrites`).
"""

from __future__ import annotations

from collections import deque

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.membership import MembershipLog
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

# Writes that are not durable yet, and the messages that wait for them.
#
# Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); DLedger does
# so neither for votes nor for entries (DLEDGER.md E16, E18).

HELD_MAX = 256
"""Limit of messages that wait for writes: a few for each member, and for unknown senders."""


class PendingWrites:
    """Numbers the writes, and holds messages back until the writes they depend on are durable.

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
            # Of an append that is truncated, its sync proves only the entries that are left.
            # The same indices appended again are durable with that later write.
            end = write.end_index
            self._appended = deque((seq, min(last, end)) for seq, last in self._appended)
        elif isinstance(write, Install):
            self._appended.clear()
            self._appended.append((self.write_seq, write.snapshot.end.index))

    def hold(self, seq: int, peer: str, message: Message) -> bool:
        """Hold `message` until write `seq` is durable; False if it may be sent at once.

        For each peer, a message replaces an older one of its kind that still waits: a write may
        be stuck while the disk is full. Beyond HELD_MAX the oldest is dropped, as the network may
        drop any message.
        """
        if seq <= self.synced_seq:
            return False
        name = (peer, _kind(message))
        self._held = [kept for kept in self._held if (kept[1], _kind(kept[2])) != name]
        self._held.append((seq, peer, message))
        del self._held[:-HELD_MAX]
        return True

    def synced(self, seq: int) -> list[int]:
        """Note writes up to `seq` as durable; return the last durable index of each append."""
        assert seq <= self.write_seq, "nothing can be durable before it is written"
        self.synced_seq = max(self.synced_seq, seq)
        durable = []
        while self._appended and self._appended[0][0] <= seq:
            durable.append(self._appended.popleft()[1])
        return durable

    def release(self, term: int) -> list[tuple[str, Message]]:
        """Return the messages that may be sent now; those of an older term are dropped.

        Vote responses are sent whatever their term: a granted pre-vote carries the requested one.
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
    """Return the kind of a message: only one of the same kind may replace it.

    A vote and a pre-vote are different kinds.
    """
    is_pre_vote = isinstance(message, VoteRequest | VoteResponse) and message.pre_vote
    return type(message), is_pre_vote


class Ledger:
    """The log of one member, the memberships in it, and the snapshot before it.

    Invariants: durable_index <= log.end_index; log.start.index <= commit_index <=
    log.end_index, and commit_index never falls; entries up to commit_index are removed only
    by compaction. `snapshot` ends exactly at the log's start; None only if no entry was ever
    removed (index -1, position 0).
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

        A committed entry that is not durable here may still be a different entry on this disk.
        """
        return min(self.commit_index, self.durable_index)

    @property
    def has_writes(self) -> bool:
        """True if writes have accumulated since the last `take_writes`."""
        return bool(self._writes)

    def take_writes(self) -> list[Write]:
        """Return the writes since the last call, in order."""
        writes, self._writes = self._writes, []
        return writes

    def save_state(self, term: int, voted_for: str | None) -> None:
        """Write term and vote."""
        self._write(SaveState(term, voted_for))

    def append(self, batch: Batch) -> None:
        """Append a batch; a membership in it is in force at once (dissertation 4.1)."""
        self.log.append(batch)
        if batch.memberships:
            for index, membership in batch.memberships:
                self.memberships.append(index, membership)
        self._write(Append(batch))

    def agrees_at(self, index: int, term: int, position: int = -1) -> bool:
        """Check (prevLogIndex, prevLogTerm): True if our log holds that entry.

        By Log Matching, all entries before it then equal the leader's, too. `position` is the
        leader's end position of that entry, compared at our log's start only: two logs that start
        at different bytes share no entry. Raises InvariantError if the leader lacks an entry that
        is committed here.
        """
        start = self.log.start
        if index < start.index:
            return True  # compacted here, so committed, so the leader has it (Leader Completeness)
        if index > self.log.end_index:
            return False
        is_same = self.log.term_at(index) == term
        if index == start.index and position not in (-1, start.position):
            is_same = False
        if not is_same and 0 <= index <= self.commit_index:
            raise InvariantError(f"entry {index} is committed, the leader has another one")
        return is_same

    def accept(self, batch: Batch) -> None:
        """Append the new entries of a leader's batch; truncate conflicting ones (Raft figure 2).

        The log is truncated only at a conflict: a delayed push whose entries are all held must
        not remove later ones, which may have been acknowledged. Raises InvariantError if a
        committed entry would be removed.
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
        """Raise the commit index to `index`; True if that is new."""
        assert index <= self.log.end_index, f"commit {index} beyond the end {self.log.end_index}"
        if index <= self.commit_index:
            return False
        self.commit_index = index
        return True

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the committed entries up to the snapshot's end by the snapshot."""
        assert snapshot.end.index <= self.commit_index, "only what is committed is compacted"
        self.log.compact(snapshot.end)
        self.memberships.compact(snapshot.end.index)
        self.snapshot = snapshot
        self._write(Compact(snapshot))

    def install(self, snapshot: Snapshot) -> None:
        """Replace the whole log by a leader's snapshot.

        Nothing is durable until the snapshot is. Raises InvariantError if a committed entry would
        be removed.
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
        """Note writes up to `write_seq` as durable; True if they contain entries or a snapshot."""
        durable = self.pending.synced(write_seq)
        for index in durable:
            self.durable_index = max(self.durable_index, index)
        if not durable:
            return False
        self.log.stored(self.durable_index)
        return True

    # ---- decisions, each in its own method so that a planted bug can override it --------

    def _last_matching_index(self, batch: Batch) -> int:
        """Return the last index up to which our log holds the batch's entries.

        One less than their first if it holds none. Log Matching: if the two logs have an entry of
        the same index and term, they are equal up to it. So our last entry of the batch's term
        within it is the last that matches.
        """
        start = self.log.start.index
        if batch.last_index <= start:
            return batch.last_index  # compacted, so committed: the leader has the same entries
        same = self.log.last_at_most(batch.last_index, batch.term)
        if same > start and self.log.term_at(same) == batch.term:
            return same
        return max(start, batch.first_index - 1)

    def _durable_after_truncate(self, end_index: int) -> int:
        """Return the durable index once the log ends at `end_index`."""
        return min(self.durable_index, end_index)

    def _may_truncate(self, end_index: int) -> bool:
        """True if no entry after `end_index` is committed."""
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
