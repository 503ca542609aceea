"""Planted bugs in replication and commitment."""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.member_state import Follower
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Batch, PushRequest, PushResponse, Role


class _CountsUnsynced(Follower):
    """Acknowledges entries that are only in memory."""

    __slots__ = ()

    def _acknowledged_match(self) -> int:
        return self.matched_index


class AckBeforeFsync(RaftCore):
    """A member with this follower."""

    follower_type = _CountsUnsynced


ACK_BEFORE_FSYNC = Mutant(
    "ack-before-fsync",
    AckBeforeFsync,
    about="""
    A follower acknowledges entries that are in its memory and not yet on its disk.

    A crash then loses a copy that was counted, and with two of them what was committed.

    Source: Raft figure 2 (respond to RPCs after updating stable storage); dissertation 10.2.1,
    where only the leader may write in parallel with sending.
    """,
)


class AckBeforeQuorum(RaftCore):
    """Answers appends as soon as they are in the leader's own memory."""

    def _acknowledged_index(self) -> int:
        if self.role is Role.LEADER:
            return self.log.end_index
        return self.ledger.commit_index

    def _read_point(self) -> int:
        return self.log.end_index


ACK_BEFORE_QUORUM = Mutant(
    "ack-before-quorum",
    AckBeforeQuorum,
    about="""
    The leader acknowledges an append before its followers have the entry.

    Entries, commitment and reads stay as they should be: a read waits until what was acknowledged
    before it is committed. So without faults nothing shows; with them, an acknowledged entry that
    no follower had is truncated by the next leader.

    Source: the acknowledgement of asynchronous replication where a majority was promised
    (RocketMQ's ASYNC_MASTER; DLEDGER.md section D.2 and bug E33, SYNC_MASTER without waiting:
    https://github.com/apache/rocketmq CommitLog.handleHA 5.3.3).
    """,
)


class _CountsLearners(Leadership):
    """Counts learners' copies towards a majority of the voters."""

    def adopt(self, membership: Membership, now_ms: float) -> None:
        super().adopt(membership, now_ms)
        self.voting = list(self.dispatchers.values())


class LearnersCount(RaftCore):
    """A leader with this counting."""

    leadership_type = _CountsLearners


LEARNERS_COUNT = Mutant(
    "learners-count",
    LearnersCount,
    about="""
    A learner's copy counts towards the majority that commits.

    A new member has no vote yet, so that an entry may be committed which no majority of voters has,
    and the next leader lacks it.

    Source: dissertation 4.2.1 (a server that catches up is not counted yet).
    """,
)


class CommitByCounting(RaftCore):
    """Commits an entry of any term once a majority has it."""

    def _may_commit(self, index: int) -> bool:
        return index >= 0


COMMIT_BY_COUNTING = Mutant(
    "commit-by-counting",
    CommitByCounting,
    about="""
    A leader commits entries of earlier terms because a majority has them.

    Such an entry may still be overwritten by a leader of a later term (Raft figure 8), although it
    was called committed, read and acknowledged. DLedger 0.3.1.2 takes the median of all watermarks
    without a look at the entry's term.

    Source: https://github.com/openmessaging/dledger/issues/4 (bug E1); Raft section 5.4.2.
    """,
)


class _CommitsUnmatchedTail(Follower):
    """Limits the commit index by its own log's end, without checking that entries match."""

    __slots__ = ()

    def _commit_point(self, push: PushRequest) -> int:
        return min(push.commit_index, self._ledger.log.end_index)


class _TruncatesCommitted(Ledger):
    """Truncates committed entries and keeps its commit index."""

    def _may_truncate(self, end_index: int) -> bool:
        return True


class CommittedSurvivesTruncation(RaftCore):
    """A member with both parts."""

    follower_type = _CommitsUnmatchedTail
    ledger_type = _TruncatesCommitted


COMMITTED_SURVIVES_TRUNCATION = Mutant(
    "committed-survives-truncation",
    CommittedSurvivesTruncation,
    about="""
    A follower calls everything up to its own end committed, and truncation leaves that so.

    It commits min(commitIndex, its end) although its tail may differ from the leader's. When the
    tail is truncated, the committed index stays above the end of the log, and applied entries are
    not those of the group any more.

    Source: https://github.com/openmessaging/dledger/issues/316 and
    https://github.com/openmessaging/dledger/issues/317 (bug E3): DLedger's handleDoCommit and
    truncate.
    """,
)


class _NeverClampsCommitIndex(Follower):
    """Never limits the leader's commit index."""

    __slots__ = ()

    def _commit_point(self, push: PushRequest) -> int:
        return push.commit_index


class _CommitsBeyondEnd(Ledger):
    """Accepts a commit index beyond the end of its log."""

    def commit(self, index: int) -> bool:
        is_new = index > self.commit_index
        self.commit_index = max(self.commit_index, index)
        return is_new


class UnclampedCommitIndex(RaftCore):
    """A member with both parts."""

    follower_type = _NeverClampsCommitIndex
    ledger_type = _CommitsBeyondEnd


UNCLAMPED_COMMIT_INDEX = Mutant(
    "unclamped-commit-index",
    UnclampedCommitIndex,
    about="""
    A follower takes over the leader's commit index as it is, also beyond its own end.

    What it appends there later counts as committed at once, even when it comes from a leader of its
    own making and is to be truncated.

    Source: https://github.com/openmessaging/dledger/issues/278 (bug E4).
    """,
)


class _AlwaysReplacesTail(Ledger):
    """Truncates its tail at every push, even if it matches, and even committed entries."""

    def _last_matching_index(self, batch: Batch) -> int:
        return max(self.log.start.index, batch.first_index - 1)

    def _may_truncate(self, end_index: int) -> bool:
        return True


class StalePushTruncates(RaftCore):
    """A member with this ledger."""

    ledger_type = _AlwaysReplacesTail


STALE_PUSH_TRUNCATES = Mutant(
    "stale-push-truncates",
    StalePushTruncates,
    about="""
    A follower replaces its tail by every push, also by an old one that only repeats what it has.

    A push that was delayed on the way removes newer entries which the follower has acknowledged
    since, and which may be committed.

    Source: Raft figure 2, AppendEntries receiver, step 3 (only a *conflicting* entry is deleted); a
    trap that Ongaro's raft-dev list and MIT's 6.824 guide name first.
    """,
)


class _NeverForgetsPushes(Follower):
    """Remembers every push that came too early, and never clears that map."""

    __slots__ = ("_write_requests",)

    def __init__(self, ledger: Ledger, member: str, term: int) -> None:
        super().__init__(ledger, member, term)
        self._write_requests: dict[int, None] = {}

    def take_push(self, push: PushRequest, *, is_full: bool) -> PushResponse | None:
        if push.batches:
            first_index = push.batches[0].first_index
            if first_index in self._write_requests:
                return None
            if push.prev_index > self._ledger.log.end_index:
                self._write_requests[first_index] = None
        return super().take_push(push, is_full=is_full)


class RepeatedPushRefused(RaftCore):
    """A member with this map."""

    follower_type = _NeverForgetsPushes


REPEATED_PUSH_REFUSED = Mutant(
    "repeated-push-refused",
    RepeatedPushRefused,
    about="""
    A follower refuses a push that begins where one came too early before.

    DLedger left a request in its writeRequestMap after it had timed out, so that each
    retransmission was answered REPEATED_PUSH: the follower never catches up.

    Source: https://github.com/openmessaging/dledger/issues/251 and
    https://github.com/openmessaging/dledger/issues/331 (bug E6).
    """,
)


class _NeverCompares(EntryDispatcher):
    """Never falls back to the compare state."""

    __slots__ = ()

    def refused(self, prev_index: int) -> bool:
        return self.state is not DispatchState.APPEND and super().refused(prev_index)

    def is_stalled(self, now_ms: float) -> bool:
        return False


class IdleFollowerNotRefilled(RaftCore):
    """A leader with these dispatchers."""

    dispatcher_type = _NeverCompares


IDLE_FOLLOWER_NOT_REFILLED = Mutant(
    "idle-follower-not-refilled",
    IdleFollowerNotRefilled,
    about="""
    A dispatcher that streams sends only what is new, whatever the follower reports missing.

    While nothing is appended, a follower that lost pushes on the way stays behind for ever:
    DLedger's dispatcher in APPEND sends only COMMITs then and ignores their result.

    Source: https://github.com/openmessaging/dledger/issues/61 (bug E11).
    """,
)


class _NeverInstalls(EntryDispatcher):
    """Compares again from the log's start where it should send the snapshot."""

    __slots__ = ()

    def install(self, compacted_index: int) -> None:
        self._start_over(DispatchState.COMPARE, compacted_index + 1)


class ExpiredEntriesNotServed(RaftCore):
    """A leader with these dispatchers."""

    dispatcher_type = _NeverInstalls


EXPIRED_ENTRIES_NOT_SERVED = Mutant(
    "expired-entries-not-served",
    ExpiredEntriesNotServed,
    about="""
    A leader whose old entries have expired goes on comparing with a follower that needs them.

    No snapshot is sent, so that a follower behind the retained log never catches up; DLedger's
    leader looped on get() below its begin index.

    Source: https://github.com/openmessaging/dledger/issues/87 and
    https://github.com/apache/rocketmq/issues/1778 (bug E10).
    """,
)


PLUGINS = (
    ACK_BEFORE_FSYNC,
    ACK_BEFORE_QUORUM,
    LEARNERS_COUNT,
    COMMIT_BY_COUNTING,
    COMMITTED_SURVIVES_TRUNCATION,
    UNCLAMPED_COMMIT_INDEX,
    STALE_PUSH_TRUNCATES,
    REPEATED_PUSH_REFUSED,
    IDLE_FOLLOWER_NOT_REFILLED,
    EXPIRED_ENTRIES_NOT_SERVED,
)
