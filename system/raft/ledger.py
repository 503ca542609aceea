"""A member's log: what is in it, and how much of it is durable and committed.

Every change becomes a numbered write for the shell; a message that depends on a write is
held back until that write is durable (`PendingWrites`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable

from shaketable.system.raft.membership import MembershipLog
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    CompactedError,
    EntryReader,
    Install,
    InvariantError,
    LogEnd,
    Message,
    SaveState,
    Snapshot,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

# The core's view of its log: terms by index, start and end, and the recent entries' bytes.
#
# Terms are kept as spans, since a term's entries are contiguous; older bytes are read
# back through an `EntryReader`.


class LogView:
    """Terms, start, end and tail of one member's log.

    `start` is the last entry that is no longer kept, with the byte position after it: a snapshot
    replaces that entry and all before it. In a new log it is where the first entry goes. `spans`
    lists (first_index, term) of the kept entries, both rising; internally a span before them
    holds the term of `start`. An empty log ends where it starts. Not thread-safe.
    """

    def __init__(
        self,
        reader: EntryReader,
        spans: Iterable[tuple[int, int]] = (),
        end_index: int = -1,
        end_position: int = 0,
        tail_bytes_max: int = 16 << 20,
        *,
        start: LogEnd | None = None,
    ) -> None:
        self._reader = reader
        self.start = start or LogEnd()
        self._firsts: list[int] = [self.start.index]
        self._terms: list[int] = [self.start.term]
        for first, term in spans:
            if first > self.start.index and term != self._terms[-1]:
                self._firsts.append(first)
                self._terms.append(term)
        self.end_index = max(end_index, self.start.index)
        self.end_position = max(end_position, self.start.position)
        self._tail: list[Batch] = []
        self._before_tail = self.end_position  # where the entry before the tail ends
        self._tail_bytes = 0
        self._tail_bytes_max = tail_bytes_max
        self._stored_index = self.end_index  # entries up to here can be read back

    @property
    def end_term(self) -> int:
        """Term of the last entry; in an empty log the term of `start` (-1 for a new log)."""
        return self._terms[-1]

    def term_starts_after(self, index: int) -> list[int]:
        """Return the first index of each term that starts after `index` (>= the log's start)."""
        return self._firsts[bisect_right(self._firsts, index) :]

    def end(self) -> LogEnd:
        """Return the log's end with its chain CRC, for the encoder of the next entries."""
        if self.end_index == self.start.index:
            return self.start
        last = (
            self._tail[-1]
            if self._tail
            else self._reader.read_entries(self.end_index, 1).until(self.end_index)
        )
        return LogEnd(self.end_index, self.end_term, self.end_position, last.last_chain_crc())

    def term_at(self, index: int) -> int:
        """Return the term of entry `index`, or of the log's start (-1 in a new log)."""
        firsts = self._firsts
        if index >= firsts[-1]:
            assert index <= self.end_index, f"no entry {index}, the log ends at {self.end_index}"
            return self._terms[-1]
        assert index >= firsts[0], f"no entry {index}, the log starts at {self.start.index}"
        return self._terms[bisect_right(firsts, index) - 1]

    def last_at_most(self, index: int, term: int) -> int:
        """Return the largest index <= `index` (and <= the end) whose term is <= `term`.

        `start.index - 1` if that lies before the log's start. Leader and follower use it to skip
        a whole term in one comparison (Raft section 5.3).
        """
        at = min(index, self.end_index)
        span = bisect_right(self._firsts, at) - 1
        while span >= 0 and self._terms[span] > term:
            at = self._firsts[span] - 1
            span -= 1
        return at if span >= 0 else self.start.index - 1

    def append(self, batch: Batch) -> None:
        """Append a batch. Raises InvariantError if it does not continue the log."""
        if batch.first_index != self.end_index + 1 or batch.position < self.end_position:
            raise InvariantError(
                f"batch {batch.first_index}@{batch.position} does not follow "
                f"{self.end_index}@{self.end_position}"
            )
        if batch.term < self.end_term:
            raise InvariantError(f"term falls from {self.end_term} to {batch.term}")
        if batch.term != self.end_term:
            self._firsts.append(batch.first_index)
            self._terms.append(batch.term)
        if not self._tail:
            self._before_tail = self.end_position
        self.end_index = batch.last_index
        self.end_position = batch.end_position
        self._tail.append(batch)
        self._tail_bytes += len(batch.data)
        self._trim()

    def truncate(self, end_index: int) -> None:
        """Remove every entry after `end_index`, which is not before the log's start."""
        assert self.start.index <= end_index < self.end_index
        while self._firsts[-1] > end_index:
            self._firsts.pop()
            self._terms.pop()
        while self._tail and self._tail[-1].last_index > end_index:
            last = self._tail.pop()
            self._tail_bytes -= len(last.data)
            if last.first_index <= end_index:
                kept = last.until(end_index)
                self._tail.append(kept)
                self._tail_bytes += len(kept.data)
        self.end_index = end_index
        self._stored_index = min(self._stored_index, end_index)
        if self._tail:
            self.end_position = self._tail[-1].end_position
        elif end_index == self.start.index:
            self.end_position = self.start.position
        else:
            self.end_position = (
                self._reader.read_entries(end_index, 1).until(end_index).end_position
            )

    def compact(self, start: LogEnd) -> None:
        """Remove the entries up to `start`, which is the end of one of them."""
        assert self.start.index < start.index <= self.end_index, f"{start} is not in the log"
        assert self.term_at(start.index) == start.term, f"{start} is not of this log"
        span = bisect_right(self._firsts, start.index) - 1
        del self._firsts[:span], self._terms[:span]
        self._firsts[0] = start.index
        drop = 0
        while drop < len(self._tail) and self._tail[drop].last_index <= start.index:
            self._tail_bytes -= len(self._tail[drop].data)
            drop += 1
        self._drop(drop)
        self.start = start

    def reset(self, end: LogEnd) -> None:
        """Remove everything: the log starts and ends at `end` (a snapshot was installed)."""
        self.start = end
        self._firsts[:] = [end.index]
        self._terms[:] = [end.term]
        self.end_index = self._stored_index = end.index
        self.end_position = end.position
        self._tail.clear()
        self._tail_bytes = 0

    def stored(self, index: int) -> None:
        """Note entries up to `index` as written: they can be read back and leave memory."""
        self._stored_index = max(self._stored_index, min(index, self.end_index))
        self._trim()

    def batches_from(self, first_index: int, bytes_max: int) -> tuple[Batch, ...]:
        """Return contiguous batches from `first_index` on: one term, one file, at least one.

        At most about `bytes_max` bytes; the first batch is returned even if it is larger. Raises
        CompactedError for an entry at or before the log's start.
        """
        if first_index <= self.start.index:
            raise CompactedError(
                f"entry {first_index} is gone, the log starts after {self.start.index}"
            )
        assert first_index <= self.end_index
        if not self._tail or first_index < self._tail[0].first_index:
            found = self._reader.read_entries(first_index, bytes_max)
            # The files may still hold entries that a truncation has not removed yet: from its
            # first entry on, the tail is what counts.
            last = self._tail[0].first_index - 1 if self._tail else self.end_index
            return (found.until(last) if found.last_index > last else found,)
        at = len(self._tail) - 1
        if first_index < self._tail[at].first_index:
            at = bisect_right(self._tail, first_index, key=_first_index) - 1
        needed = self._tail[at : at + _PUSH_BATCHES_MAX]
        if needed[0].first_index < first_index:
            needed[0] = needed[0].after(first_index - 1)
        return _sendable(needed, bytes_max)

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes of one entry from byte `position` of the log on.

        For bytes before the log's start the reader decides: it finds them in the plain commit
        log that an upgraded group started with, or raises.
        """
        if not self._tail or position < self._tail[0].position:
            return self._reader.read(position, size)
        batch = self._tail[bisect_right(self._tail, position, key=_position) - 1]
        at = position - batch.position
        assert at + size <= len(batch.data), f"{size} bytes at {position} span batches"
        return batch.data[at : at + size]

    def read_some(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes of the log from any position, perhaps none.

        For a position that a client sent: no message need start there. Raises the reader's error
        if it does not hold that many bytes.
        """
        if not self._tail:
            return self._reader.read(position, size)
        if position < self._tail[0].position:
            # The tail may begin in a new file. Between the entry before it and there, the files
            # may still hold entries that a truncation has not removed yet.
            there = min(size, self._before_tail - position)
            return self._reader.read(position, there) if there > 0 else b""
        batch = self._tail[bisect_right(self._tail, position, key=_position) - 1]
        at = position - batch.position
        return batch.data[at : at + size]

    def _trim(self) -> None:
        """Drop the oldest quarter of a tail that is over its limit, as far as it is stored."""
        if self._tail_bytes <= self._tail_bytes_max:
            return
        drop = 0
        while (
            drop < len(self._tail) - 1
            and self._tail_bytes > self._tail_bytes_max * 3 // 4
            and self._tail[drop].last_index <= self._stored_index
        ):
            self._tail_bytes -= len(self._tail[drop].data)
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        """Forget the tail's first batches: they are read back from the files."""
        if count:
            self._before_tail = self._tail[count - 1].end_position
            del self._tail[:count]


_PUSH_BATCHES_MAX = 256


def _first_index(batch: Batch) -> int:
    return batch.first_index


def _position(batch: Batch) -> int:
    return batch.position


def _sendable(batches: list[Batch], bytes_max: int) -> tuple[Batch, ...]:
    """Return the leading batches that fit into one push: one term, one file, `bytes_max`."""
    if len(batches) == 1:
        return (batches[0],)
    out = [batches[0]]
    size = len(batches[0].data)
    for batch in batches[1:]:
        size += len(batch.data)
        contiguous = batch.term == out[0].term and batch.position == out[-1].end_position
        if not contiguous or size > bytes_max:
            break
        out.append(batch)
    return tuple(out)


# Writes that are not durable yet, and the messages that wait for them.
#
# Source: Raft figure 2 ("updated on stable storage before responding to RPCs"); DLedger does
# so neither for votes nor for entries (DLEDGER.md E16, E18).

# The member's log.

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
