"""Planted bugs in who leads, and in what a leader may do.

Elections, votes, terms, leases; reads, membership changes, transfers.
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership, ReadRounds, Transfer
from shaketable.system.raft.member_state import DiskHealth, Elector
from shaketable.system.raft.protocol import (
    NotLeaderError,
    PushResponse,
    RaftConfig,
    Role,
    Token,
    VoteRequest,
)

# Elections, votes, terms and leases.


class DoubleVote(RaftCore):
    """Votes for several candidates in one term."""

    def _may_vote_for(self, request: VoteRequest) -> bool:
        return True


DOUBLE_VOTE = Mutant(
    "double-vote",
    DoubleVote,
    about="""
    A voter gives its vote to every candidate of a term.

    Two candidates of one term both win.

    Source: Raft section 5.2 ("at most one candidate in a given term"); DLedger keeps it by
    REJECT_ALREADY_VOTED (DLEDGER.md section C.3).
    """,
)


class VoteForShorterLog(RaftCore):
    """Considers every candidate's log up to date."""

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


VOTE_FOR_SHORTER_LOG = Mutant(
    "vote-for-shorter-log",
    VoteForShorterLog,
    about="""
    A voter does not ask whether the candidate has everything that may be committed.

    A member that lacks committed entries is elected, and they are overwritten.

    Source: Raft section 5.4.1; what DLedger's REJECT_SMALL_LEDGER_END_INDEX is for (DLEDGER.md
    section C.3).
    """,
)


class VoteNotAwaited(RaftCore):
    """Answers before its hard state is durable."""

    def _hard_state_seq(self) -> int:
        return 0


VOTE_NOT_AWAITED = Mutant(
    "vote-not-awaited",
    VoteNotAwaited,
    about="""
    A vote is sent before it is durable.

    A voter that crashes right after it forgets the vote and gives another one in the same term: two
    leaders of one term. DLedger writes currterm without fsync and swallows the errors.

    Source: DLedger's MemberState and IOUtils (bug E16), https://github.com/openmessaging/dledger
    (MemberState.java)
    """,
)


class EndTermIsCurrentTerm(RaftCore):
    """Reports the current term as the term of its last entry."""

    def _log_end_term(self) -> int:
        return self.term


END_TERM_IS_CURRENT_TERM = Mutant(
    "end-term-is-current-term",
    EndTermIsCurrentTerm,
    about="""
    Elections compare a member's current term where its last entry's term belongs.

    A member that has fallen behind and has seen a newer term looks complete, is elected, and
    truncates what the others had committed. DLedger set ledgerEndTerm to currTerm when a follower
    appended or truncated.

    Source: https://github.com/apache/rocketmq/issues/2178 and
    https://github.com/openmessaging/dledger/issues/52 (bug E2).
    """,
)


class LearnerStands(RaftCore):
    """A member that campaigns even as a learner."""

    def _may_campaign(self) -> bool:
        return bool(self.membership.voters) and self._disk.may_lead(self._now_ms)


LEARNER_STANDS = Mutant(
    "learner-stands",
    LearnerStands,
    hunt=Hunt("log", ("wipe", "members", "partition")),
    about="""
    A member without a vote starts an election when it hears no leader.

    Source: https://github.com/lni/dragonboat/issues/94 (an observer becomes a follower by a
    snapshot, and may start to vote and campaign).
    """,
)


class NoPrevote(RaftCore):
    """Campaigns without a pre-vote, and lets candidates disturb a live leader."""

    def _start_pre_vote(self) -> None:
        if self._may_campaign():
            self._campaign()
        else:
            self._become_follower(self.term, None)

    def _must_not_disturb(self, request: VoteRequest) -> bool:
        return False


NO_PREVOTE = Mutant(
    "no-prevote",
    NoPrevote,
    about="""
    A member that hears no other raises its term at once, and all follow the highest term.

    A member that can send but not hear deposes the leader again and again; after a partition heals,
    the leader of the majority has to go for nothing (a re-election storm).

    Source: https://github.com/openmessaging/dledger/pull/25,
    https://github.com/openmessaging/dledger/pull/37 and
    https://github.com/openmessaging/dledger/issues/60 (bug E12); dissertation 4.2.3 and 9.6.
    """,
)


class _CountsAnyAnswer(Elector):
    """Compares only the term of an answer."""

    __slots__ = ()

    def granted(self, voter: str, term: int, *, pre_vote: bool) -> None:
        """Count any answer as a vote."""
        super().granted(voter, term, pre_vote=self.pre_vote)


class PrevotesCountAsVotes(RaftCore):
    """A candidate with this elector."""

    elector_type = _CountsAnyAnswer


PREVOTES_COUNT_AS_VOTES = Mutant(
    "prevotes-count-as-votes",
    PrevotesCountAsVotes,
    about="""
    A candidate counts answers to its pre-vote as votes, when they come late.

    It leads with votes that bind no voter, while another one is elected in the same term.

    Source: https://github.com/canonical/raft/issues/196, fixed by
    https://github.com/canonical/raft/pull/248.
    """,
)


class LeaseAfterRestart(RaftCore):
    """Votes right after a start, even with leases on."""

    def _last_contact_before_start_ms(self) -> float:
        return float("-inf")


LEASE_AFTER_RESTART = Mutant(
    "lease-after-restart",
    LeaseAfterRestart,
    about="""
    A voter that restarts forgets that it promised the leader not to vote for a while.

    With leases on, a leader answers reads from a lease that rests on that promise; the restarted
    voter elects another leader meanwhile, and reads are stale.

    Source: dissertation 6.4.1; a trap of every lease whose promise is kept in memory.
    """,
)


class DeafToHigherTerms(RaftCore):
    """Does not step down when it sees a higher term while it leads."""

    def _on_push_response(self, response: PushResponse) -> None:
        if self.role is Role.LEADER and response.term > self.term:
            return
        super()._on_push_response(response)


DEAF_TO_HIGHER_TERMS = Mutant(
    "deaf-to-higher-terms",
    DeafToHigherTerms,
    about="""
    A leader that has a majority ignores a follower's higher term.

    The follower cannot accept an older term's pushes and never rejoins: the group runs on with one
    copy less until the next election, unnoticed.

    Source: https://github.com/openmessaging/dledger/issues/247,
    https://github.com/openmessaging/dledger/issues/248 and
    https://github.com/openmessaging/dledger/issues/325 (bug E5): EXPIRED_TERM is ignored while the
    heartbeat reaches a quorum.
    """,
)


class _IgnoresDiskHealth(DiskHealth):
    """Ignores stalls, and lets a member with a full disk lead."""

    __slots__ = ()

    def is_stalled(self, now_ms: float) -> bool:
        return False

    def may_lead(self, now_ms: float) -> bool:
        return True


class _NeverLeaves(Leadership):
    """Never transfers leadership because it must step down."""

    def continue_transfer(self, now_ms: float, *, must_step_down: bool) -> None:
        if not must_step_down:
            super().continue_transfer(now_ms, must_step_down=False)


class LeadsWithDeadDisk(RaftCore):
    """A member with both parts."""

    disk_type = _IgnoresDiskHealth
    leadership_type = _NeverLeaves


LEADS_WITH_DEAD_DISK = Mutant(
    "leads-with-dead-disk",
    LeadsWithDeadDisk,
    about="""
    A leader keeps the leadership while its disk takes nothing.

    It refuses every append, or waits for ever, and no other member can be elected as long as its
    heartbeats go on.

    Source: https://github.com/openmessaging/dledger/issues/287 (bug E15): heartbeats and elections
    ignore disk errors.
    """,
)


# What a leader may do: serve reads, change members, transfer the leadership.


class ReadBeforeTermStart(RaftCore):
    """A leader that serves reads before its term's first entry is committed."""

    def read(self, token: Token, now_ms: float) -> None:
        """Start a read, whatever is committed. Raises NotLeaderError, TooManyReadsError."""
        leading = self._leadership
        if leading is None or leading.is_ready:
            super().read(token, now_ms)
            return
        self._now_ms = now_ms
        if leading.reads_waiting >= self.config.reads_waiting_max:
            raise NotLeaderError(self.leader)
        leading.reads.ask(token, self._read_point())


READ_BEFORE_TERM_START = Mutant(
    "read-before-term-start",
    ReadBeforeTermStart,
    hunt=Hunt("log"),  # the ends of queues: a pull waits for the leader's table of topics
    about="""
    A new leader serves reads before an entry of its own term is committed.

    Its commit index may be behind that of the leader before, and so is what it serves.

    Source: https://github.com/etcd-io/etcd/issues/7331, fixed by
    https://github.com/etcd-io/etcd/pull/7332; dissertation 6.4.
    """,
)


class _JoinsOpenRound(ReadRounds):
    """Adds a read to the round that is under way."""

    __slots__ = ()

    def ask(self, token: Token, read_index: int) -> None:
        if self._open:
            self._open.append((self.round, token, read_index))
        else:
            super().ask(token, read_index)


class ReadJoinsOpenRound(RaftCore):
    """A leader with these rounds."""

    reads_type = _JoinsOpenRound


READ_JOINS_OPEN_ROUND = Mutant(
    "read-joins-open-round",
    ReadJoinsOpenRound,
    about="""
    A read is confirmed by a round of heartbeats that was sent before it arrived.

    A voter may have echoed that round, then voted for another leader, which has committed more
    since: what a deposed leader serves is stale.

    Source: our own; dissertation 6.4, step 3: the round of heartbeats follows the read.
    """,
)


class _LeaseNeverEnds(ReadRounds):
    """Holds its lease without asking a quorum."""

    __slots__ = ()

    def __init__(self, config: RaftConfig) -> None:
        super().__init__(config)

    def holds_lease(self, now_ms: float) -> bool:
        return True


class StaleRead(RaftCore):
    """A leader that confirms every read at once."""

    reads_type = _LeaseNeverEnds


STALE_READ = Mutant(
    "stale-read",
    StaleRead,
    about="""
    A leader answers reads at once, without asking whether it still leads.

    A leader that was cut off, and replaced without knowing it, serves what has been overtaken.
    DLedger's GET checks neither commitment nor a lease.

    Source: DLedgerServer.handleGet (bug E19), https://github.com/openmessaging/dledger
    (DLedgerServer.java)
    """,
)


class _AllowsAnyChange(Leadership):
    """Checks neither that the term's first entry nor that an earlier change is committed."""

    def change_refusal(self) -> str | None:
        return None


class ChangeBeforeTermStart(RaftCore):
    """A leader that changes the membership at any time."""

    leadership_type = _AllowsAnyChange


CHANGE_BEFORE_TERM_START = Mutant(
    "change-before-term-start",
    ChangeBeforeTermStart,
    about="""
    A new leader may change the membership before an entry of its own term is committed.

    Two leaders' changes can then be in force whose majorities share no voter, and both commit.

    Source: Ongaro, "bug in single-server membership changes", raft-dev, 10 July 2015,
    https://groups.google.com/g/raft-dev/c/t4xj6dJTP6E
    """,
)


class _NeverGivesUp(Transfer):
    """Waits for its target without a timeout."""

    __slots__ = ()

    def give_up(self, now_ms: float) -> bool:
        """Never give up."""
        del now_ms
        return False


class TransferNeverGivenUp(RaftCore):
    """A leader that never aborts a leadership transfer."""

    transfer_type = _NeverGivesUp


TRANSFER_NEVER_GIVEN_UP = Mutant(
    "transfer-never-given-up",
    TransferNeverGivenUp,
    hunt=Hunt("log", ("transfer", "pause", "partition")),
    about="""
    A handover that does not come about is never given up: the leader refuses all appends.

    Source: https://github.com/hashicorp/raft/pull/493 (leadershipTransferInProgress stayed true
    after a transfer that failed) and https://github.com/hashicorp/raft/issues/696.
    """,
)


class _TickedAfterReads(Leadership):
    """Counts the interval to the next tick from each heartbeat, also from those for reads."""

    def send_heartbeats(self, now_ms: float) -> None:
        """Put the next tick off."""
        self.heartbeat_due_ms = now_ms + self._config.heartbeat_interval_ms
        super().send_heartbeats(now_ms)


class ReadsPutOffTicks(RaftCore):
    """A leader that is not ticked while it is read from."""

    leadership_type = _TickedAfterReads


READS_PUT_OFF_TICKS = Mutant(
    "reads-put-off-ticks",
    ReadsPutOffTicks,
    hunt=Hunt("queue", ("transfer", "pause", "partition")),
    about="""
    A leader that is read from all the time neither ends a transfer in time nor sends again what was
    lost.

    Each round of heartbeats that confirms reads puts off the leader's next tick.

    Source: our own system, until a review of November 2026 found it (docs/calibration.md).
    """,
)


PLUGINS = (
    DOUBLE_VOTE,
    VOTE_FOR_SHORTER_LOG,
    VOTE_NOT_AWAITED,
    END_TERM_IS_CURRENT_TERM,
    LEARNER_STANDS,
    NO_PREVOTE,
    PREVOTES_COUNT_AS_VOTES,
    LEASE_AFTER_RESTART,
    DEAF_TO_HIGHER_TERMS,
    LEADS_WITH_DEAD_DISK,
    READ_BEFORE_TERM_START,
    READ_JOINS_OPEN_ROUND,
    STALE_READ,
    CHANGE_BEFORE_TERM_START,
    TRANSFER_NEVER_GIVEN_UP,
    READS_PUT_OFF_TICKS,
)
