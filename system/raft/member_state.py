"""A member's role, term and vote, and how it handles each message.

Source: Raft (Ongaro & Ousterhout 2014) figure 2; DLedger's MemberState and
DLedgerLeaderElector; Ongaro's dissertation sections 3.10, 4.2.3 and 9.6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from shaketable.system.raft.dispatcher import EntryDispatcher
from shaketable.system.raft.leadership import Leadership, ReadRounds, Transfer
from shaketable.system.raft.ledger import Ledger, LogView
from shaketable.system.raft.membership import Membership, MembershipLog
from shaketable.system.raft.protocol import (
    Effects,
    InvariantError,
    LeadershipTransfer,
    Message,
    PushRequest,
    PushResponse,
    RaftConfig,
    Role,
    RoleChange,
    Snapshot,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)

# Who may lead: vote counting, the comparison of logs, and the health of the disk.
#
# Source: Raft sections 5.2 and 5.4.1; dissertation sections 4.2.3 and 9.6; DLedger's
# DLedgerLeaderElector, but without its ledger check before the term check (DLEDGER.md E5).


class Elector:
    """The votes that a candidate has received in one pre-vote or election."""

    __slots__ = ("_votes", "pre_vote", "term")

    def __init__(self) -> None:
        self._votes: dict[str, None] = {}
        self.term = -1
        self.pre_vote = True

    def start(self, member: str, term: int, *, pre_vote: bool) -> None:
        """Start a new count with the candidate's own vote."""
        self._votes = {member: None}
        self.term, self.pre_vote = term, pre_vote

    def granted(self, voter: str, term: int, *, pre_vote: bool) -> None:
        """Record a vote; one for another term or another kind of count is ignored."""
        if (term, pre_vote) == (self.term, self.pre_vote):
            self._votes[voter] = None

    def is_won(self, membership: Membership) -> bool:
        """True with the votes of a majority of the voters; learners' votes do not count."""
        return sum(voter in self._votes for voter in membership.voters) >= membership.quorum


def is_up_to_date(request: VoteRequest, end_term: int, end_index: int) -> bool:
    """True if the candidate's log is at least as up to date as ours (Raft section 5.4.1).

    The last term is compared first: a longer log of an older term may lack committed entries.
    """
    return (request.last_term, request.last_index) >= (end_term, end_index)


# A disk allows a member to lead neither while it is full, nor while syncs stall.
#
# Source: DLEDGER.md E15 (dledger#287: a node whose disk is dead keeps the leadership).


class DiskHealth:
    """What the shell reported about the disk, and how long writes have waited to be durable.

    A disk stalls if writes are waiting and no sync has made progress for `disk_stall_max_ms`.
    """

    __slots__ = ("_config", "_waiting_seq", "_waiting_since_ms", "is_full")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.is_full = False
        self._waiting_seq = 0  # the writes up to here have waited since then
        self._waiting_since_ms = float("inf")

    def written(self, write_seq: int, now_ms: float) -> None:
        """Note that writes up to `write_seq` were handed to the shell."""
        if self._waiting_since_ms == float("inf"):
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def synced(self, synced_seq: int, write_seq: int, now_ms: float) -> None:
        """Note that of the writes up to `write_seq`, those up to `synced_seq` are durable."""
        if synced_seq >= write_seq:
            self._waiting_since_ms = float("inf")
        elif synced_seq >= self._waiting_seq:
            self._waiting_seq, self._waiting_since_ms = write_seq, now_ms

    def is_stalled(self, now_ms: float) -> bool:
        """True if writes have waited too long to become durable."""
        return now_ms - self._waiting_since_ms > self._config.disk_stall_max_ms

    def may_lead(self, now_ms: float) -> bool:
        """True if the disk allows this member to lead."""
        return not self.is_full and not self.is_stalled(now_ms)


# A follower: how it handles its leader's pushes and snapshots.
#
# Source: Raft figure 2 (AppendEntries, receiver implementation) and section 7
# (InstallSnapshot); DLedgerEntryPusher.EntryHandler, but without its unchecked commit index and
# separate truncation (DLEDGER.md E3, E4).


class Follower:
    """A follower's volatile state for one leader in one term.

    `matched_index`: entries up to here are known to equal the leader's; at first the committed
    ones (Leader Completeness). `has_agreed`: a push has passed the consistency check; nothing is
    acknowledged before. `read_round`: the leader's latest round, to be echoed.
    """

    __slots__ = ("_ledger", "_member", "_term", "has_agreed", "matched_index", "read_round")

    def __init__(self, ledger: Ledger, member: str, term: int) -> None:
        self._ledger = ledger
        self._member = member
        self._term = term
        self.matched_index = ledger.commit_index
        self.has_agreed = False
        self.read_round = 0

    def take_push(self, push: PushRequest, *, is_full: bool) -> PushResponse | None:
        """Append the leader's entries; return the response, None if it must wait for a sync.

        On a full disk no entry is taken, and the response reports what is held. Raises
        InvariantError if the leader lacks an entry that is committed here.
        """
        self.read_round = max(self.read_round, push.read_round)
        ledger = self._ledger
        if not ledger.agrees_at(push.prev_index, push.prev_term, push.prev_position):
            return self._refusal(push.prev_index, push.prev_term)
        self.has_agreed = True
        batches = () if is_full else push.batches
        for batch in batches:
            ledger.accept(batch)
        last = batches[-1].last_index if batches else push.prev_index
        self.matched_index = max(self.matched_index, last)
        ledger.commit(self._commit_point(push))
        if not batches or ledger.durable_index >= last:
            return self.acknowledgement()
        return None

    def take_snapshot(self, request: SnapshotRequest, *, is_full: bool) -> Snapshot | None:
        """Install the leader's snapshot; return it if it replaced the log.

        If the log holds the snapshot's last entry, the log is kept (Raft section 7, step 6).
        Raises InvariantError if the snapshot contradicts what is committed here.
        """
        self.read_round = max(self.read_round, request.read_round)
        ledger, end = self._ledger, request.snapshot.end
        agrees = ledger.agrees_at(end.index, end.term, end.position)
        if not agrees and is_full:
            return None
        if not agrees:
            ledger.install(request.snapshot)
        self.has_agreed = True
        self.matched_index = max(self.matched_index, end.index)
        ledger.commit(end.index)
        return None if agrees else request.snapshot

    def acknowledgement(self) -> PushResponse:
        """Return the response with the last index that is durable here and matches the leader."""
        match = self._acknowledged_match()
        return PushResponse(self._term, self._member, True, match, self.read_round)

    # ---- decisions, each in its own method so that a planted bug can override it --------

    def _commit_point(self, push: PushRequest) -> int:
        """Return the new commit index: never beyond what is known to equal the leader's log.

        Entries after `matched_index` may be an older leader's, although the leader has committed
        others at these indices (Raft figure 2, step 5; DLEDGER.md E4).
        """
        return min(push.commit_index, self.matched_index)

    def _acknowledged_match(self) -> int:
        """Return the index up to which our entries may count towards a majority: durable ones."""
        return min(self._ledger.durable_index, self.matched_index)

    def _hint(self, prev_index: int, prev_term: int) -> int:
        """Return where the leader should compare next: our last entry of a term <= `prev_term`.

        Our entries of larger terms cannot match, so that whole terms are skipped at a time.
        """
        return self._ledger.log.last_at_most(prev_index, prev_term)

    def _refusal(self, prev_index: int, prev_term: int) -> PushResponse:
        log = self._ledger.log
        hint = self._hint(prev_index, prev_term)
        if hint < log.start.index:
            raise InvariantError(
                f"entries up to {log.start.index} are committed, the leader has others at {hint}"
            )
        return PushResponse(
            self._term,
            self._member,
            False,
            self._acknowledged_match(),
            self.read_round,
            prev_index,
            hint,
            log.term_at(hint),
        )


# The member.

UniformMs = Callable[[float, float], float]
"""Returns a random number of milliseconds between two bounds: the core's only randomness."""


class MemberState:
    """Role, term, vote, and the transitions between roles; `RaftCore` is the public interface.

    The types of its parts are class attributes, so that a planted bug can replace one.
    """

    ledger_type: ClassVar[type[Ledger]] = Ledger
    memberships_type: ClassVar[type[MembershipLog]] = MembershipLog
    follower_type: ClassVar[type[Follower]] = Follower
    leadership_type: ClassVar[type[Leadership]] = Leadership
    dispatcher_type: ClassVar[type[EntryDispatcher]] = EntryDispatcher
    elector_type: ClassVar[type[Elector]] = Elector
    reads_type: ClassVar[type[ReadRounds]] = ReadRounds
    transfer_type: ClassVar[type[Transfer]] = Transfer
    disk_type: ClassVar[type[DiskHealth]] = DiskHealth

    def __init__(  # noqa: PLR0913 - a member's whole initial state, passed by keyword
        self,
        member: str,
        peers: Sequence[str],
        log: LogView,
        *,
        term: int,
        voted_for: str | None,
        uniform_ms: UniformMs,
        now_ms: float,
        config: RaftConfig | None = None,
        membership: Membership | None = None,
        memberships: Iterable[tuple[int, Membership]] = (),
        snapshot: Snapshot | None = None,
    ) -> None:
        self.member = member
        self.config = config or RaftConfig()
        self.log = log
        self.term = term
        self.voted_for = voted_for
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self._now_ms = now_ms
        self._uniform_ms = uniform_ms
        self._effects = Effects()
        base = membership or Membership(tuple(sorted({member, *peers})))
        self.ledger = self._new_ledger(base, memberships, snapshot)
        self._elector = self.elector_type()
        self._disk = self.disk_type(self.config)
        self._following: Follower | None = None
        self._leadership: Leadership | None = None
        self._last_contact_ms = self._last_contact_before_start_ms()
        self._use_membership()
        self._restart_election_timer()

    def _new_ledger(
        self,
        membership: Membership,
        memberships: Iterable[tuple[int, Membership]],
        snapshot: Snapshot | None,
    ) -> Ledger:
        index, start = -1, self.log.start
        if snapshot is not None:
            assert snapshot.end == start, f"the snapshot {snapshot.end} is not at {start}"
            if start.index >= 0:
                membership, index = snapshot.membership, snapshot.membership_index
        else:
            assert (start.index, start.position) == (-1, 0), f"no snapshot for {start}"
        history = self.memberships_type(membership, index, memberships)
        return self.ledger_type(self.log, history, snapshot)

    # ---- decisions, each in its own method so that a planted bug can override it --------

    def _last_contact_before_start_ms(self) -> float:
        """Return the latest time at which this member may have heard a leader before a restart.

        A leader's lease may depend on a round that this member echoed just before it stopped,
        so it must not vote until that lease has expired. Without leases nothing depends on it.
        """
        return self._now_ms if self.config.lease_ms > 0 else float("-inf")

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """True if the candidate's log holds every entry that may be committed (5.4.1)."""
        return is_up_to_date(request, self._log_end_term(), self.log.end_index)

    def _log_end_term(self) -> int:
        """Return the term that elections compare: the last entry's, not the current term.

        DLedger once compared the current term, and a stale node could win (DLEDGER.md E2).
        """
        return self.log.end_term

    def _must_not_disturb(self, request: VoteRequest) -> bool:
        """True if the request must be ignored because a leader is alive (dissertation 4.2.3).

        Without this rule a removed or isolated server would depose leaders by its higher term.
        A leader whose own term is stale learns that from the response to its next push. An
        election that the leader itself started by TimeoutNow is exempt.
        """
        if request.is_transfer:
            return self.role is Role.LEADER and request.term <= self.term
        if self.role is Role.LEADER:
            return True
        hears_leader = self._now_ms - self._last_contact_ms < self.config.election_timeout_min_ms
        return hears_leader and request.candidate != self.leader

    def _may_vote_for(self, request: VoteRequest) -> bool:
        """True if this member has not voted in this term, or voted for this candidate.

        One vote a term, and majorities that overlap: at most one leader a term (Election Safety).
        """
        return self.voted_for in (None, request.candidate)

    def _save_state(self) -> None:
        """Write term and vote; messages that depend on them wait until they are durable."""
        self.ledger.save_state(self.term, self.voted_for)

    def _may_campaign(self) -> bool:
        """True if this member may campaign: a voter whose disk works (DLEDGER.md E15)."""
        return (self._is_voter or self._is_being_removed()) and self._disk.may_lead(self._now_ms)

    def _is_being_removed(self) -> bool:
        """True for a voter whose removal is in its log and not known to be committed.

        It must still campaign: it may be the only member with that entry, so it denies the
        others its vote, and without it no leader could be elected. It no longer counts its own
        vote (dissertation 4.2.2).
        """
        memberships = self.ledger.memberships
        index = memberships.current_index
        is_committed = index <= self.ledger.commit_index
        return not is_committed and self.member in memberships.at(index - 1)[1].voters

    def _may_commit(self, index: int) -> bool:
        """True if entry `index`, durable on a majority, is committed by that.

        Only an entry of the current term is, and with it all before it (Raft section 5.4.2). An
        older term's entry on a majority can still be overwritten (figure 8); DLedger commits it
        by counting (DLEDGER.md E1).
        """
        return self.log.term_at(index) == self.term

    def _hard_state_seq(self) -> int:
        """Return the number of the write after which the current term and vote are durable."""
        return self.ledger.pending.state_seq

    # ---- messages ------------------------------------------------------------------------

    def _send(self, peer: str, message: Message) -> None:
        self._effects.messages.append((peer, message))

    def _send_durably(self, peer: str, message: Message) -> None:
        """Send a message once the term and vote that it depends on are durable."""
        if not self.ledger.pending.hold(self._hard_state_seq(), peer, message):
            self._send(peer, message)

    # ---- roles -------------------------------------------------------------------------

    def _restart_election_timer(self) -> None:
        low, high = self.config.election_timeout_min_ms, self.config.election_timeout_max_ms
        self._election_timeout_ms = self._uniform_ms(low, high)
        self._election_due_ms = self._now_ms + self._election_timeout_ms

    def _use_membership(self) -> None:
        """Adopt the latest membership in the log, which is in force once appended (4.1)."""
        self.membership = self._effects.membership = self.ledger.memberships.current
        self.quorum = self.membership.quorum
        members = self.membership.members
        self.peers = tuple(member for member in members if member != self.member)
        self._is_voter = self.member in self.membership.voters
        if self._leadership is not None:
            self._leadership.adopt(self.membership, self._now_ms)

    def _become_follower(self, term: int, leader: str | None) -> None:
        if self._leadership is not None:
            self._effects.reads_refused.extend(self._leadership.reads.unserved())
            self._leadership = None
        changed = (self.role, self.term, self.leader) != (Role.FOLLOWER, term, leader)
        if term > self.term:
            self.term, self.voted_for = term, None
            self._save_state()
        if changed:
            # The matched index and the read round are valid for one leader in one term only.
            self._following = self.follower_type(self.ledger, self.member, term) if leader else None
        self.role, self.leader = Role.FOLLOWER, leader
        self._restart_election_timer()
        if changed:
            self._report_role_change()

    def _report_role_change(self) -> None:
        self._effects.role_changes.append(RoleChange(self.role, self.term, self.leader))

    def _start_pre_vote(self) -> None:
        """Ask for pre-votes; the term rises only if they are a majority (dissertation 9.6).

        So a partitioned member does not inflate its term and depose the leader when it returns.
        """
        if not self._may_campaign():
            self._become_follower(self.term, None)
            return
        self._become_candidate()
        self._elector.start(self.member, self.term + 1, pre_vote=True)
        self._ask_votes(self.term + 1, pre_vote=True)

    def _campaign(self, *, is_transfer: bool = False) -> None:
        self._become_candidate()
        self.term, self.voted_for = self.term + 1, self.member
        self._save_state()
        self._report_role_change()
        self._elector.start(self.member, self.term, pre_vote=False)
        self._ask_votes(self.term, pre_vote=False, is_transfer=is_transfer)

    def _become_candidate(self) -> None:
        self._restart_election_timer()
        was = (self.role, self.leader)
        self.role, self.leader, self._following = Role.CANDIDATE, None, None
        if was != (self.role, self.leader):
            self._report_role_change()

    def _ask_votes(self, term: int, *, pre_vote: bool, is_transfer: bool = False) -> None:
        request = VoteRequest(
            term, self.member, self._log_end_term(), self.log.end_index, pre_vote, is_transfer
        )
        for voter in self.membership.voters:
            if voter != self.member:
                self._send_durably(voter, request)
        self._count_votes()

    def _count_votes(self) -> None:
        """Start the election, or lead, if the votes suffice.

        The candidate's own vote must be durable first. Otherwise a group's only voter could lead
        a term, forget it in a crash, and lead the same term again.
        """
        if self.role is Role.CANDIDATE and self._elector.is_won(self.membership):
            if self._elector.pre_vote:
                self._campaign()
            elif self._hard_state_seq() <= self.ledger.pending.synced_seq:
                self._become_leader()

    def _become_leader(self) -> None:
        assert self.voted_for == self.member
        self.role, self.leader = Role.LEADER, self.member
        self._leadership = self.leadership_type(
            self.config,
            self.member,
            self.term,
            self.ledger,
            self._send,
            self._now_ms,
            dispatcher_type=self.dispatcher_type,
            reads_type=self.reads_type,
            transfer_type=self.transfer_type,
        )
        self._report_role_change()
        self._leadership.heartbeat(self._now_ms)

    def _step_down(self, leading: Leadership) -> None:
        """Step down voluntarily; a voter that holds the whole log need not wait for a timeout."""
        leading.heartbeat(self._now_ms)
        leading.send_timeout_now_to_best(self._now_ms)
        self._become_follower(self.term, None)

    # ---- elections -----------------------------------------------------------------------

    def _on_vote_request(self, request: VoteRequest) -> None:
        granted, term = False, None
        if not self._must_not_disturb(request):
            is_complete = self._is_up_to_date(request)
            if request.pre_vote:
                # A pre-vote changes no state: neither our term nor our vote. A granted response
                # carries the requested term, so that the candidate can match it.
                granted = request.term > self.term and is_complete
                term = request.term if granted else None
            else:
                granted = self._vote(request, is_complete=is_complete)
        answer = VoteResponse(
            self.term if term is None else term, self.member, granted, request.pre_vote
        )
        self._send_durably(request.candidate, answer)

    def _vote(self, request: VoteRequest, *, is_complete: bool) -> bool:
        if request.term > self.term:
            self._become_follower(request.term, None)
        if request.term < self.term or not is_complete or not self._may_vote_for(request):
            return False
        if self.voted_for != request.candidate:
            self.voted_for = request.candidate
            self._save_state()
        self._restart_election_timer()
        return True

    def _on_vote_response(self, response: VoteResponse) -> None:
        if response.term > self.term and not (response.pre_vote and response.granted):
            self._become_follower(response.term, None)
            return
        if self.role is Role.CANDIDATE and response.granted:
            self._elector.granted(response.voter, response.term, pre_vote=response.pre_vote)
            self._count_votes()

    def _on_transfer(self, request: LeadershipTransfer) -> None:
        """Start an election at once: our leader sent TimeoutNow (dissertation 3.10)."""
        is_ours = request.term == self.term and request.leader == self.leader
        if is_ours and self.role is Role.FOLLOWER and self._may_campaign():
            self._campaign(is_transfer=True)

    # ---- follower ------------------------------------------------------------------------

    def _follow(self, term: int, leader: str) -> Follower:
        """Follow a leader of our term or a later one, and reset the election timer."""
        if self.role is Role.LEADER and term == self.term:
            raise InvariantError(f"{leader} and {self.member} both lead term {self.term}")
        if self.term != term or self.leader != leader or self._following is None:
            self._become_follower(term, leader)
        self._last_contact_ms = self._now_ms
        self._election_due_ms = self._now_ms + self._election_timeout_ms
        assert self._following is not None
        return self._following

    def _refuse_old_leader(self, leader: str, prev_index: int) -> None:
        self._send_durably(leader, PushResponse(self.term, self.member, False, -1, 0, prev_index))

    def _on_push(self, push: PushRequest) -> None:
        if push.term < self.term:
            self._refuse_old_leader(push.leader, push.prev_index)
            return
        following = self._follow(push.term, push.leader)
        answer = following.take_push(push, is_full=self._disk.is_full)
        if self.ledger.memberships.current is not self.membership:
            self._use_membership()
        if answer is not None:
            self._send_durably(push.leader, answer)

    def _on_snapshot(self, request: SnapshotRequest) -> None:
        if request.term < self.term:
            self._refuse_old_leader(request.leader, request.snapshot.end.index)
            return
        following = self._follow(request.term, request.leader)
        installed = following.take_snapshot(request, is_full=self._disk.is_full)
        if installed is not None:
            self._effects.installed = installed
            self._use_membership()
        elif following.has_agreed:
            self._send_durably(request.leader, following.acknowledgement())

    # ---- leader --------------------------------------------------------------------------

    def _on_push_response(self, response: PushResponse) -> None:
        if response.term > self.term:
            self._become_follower(response.term, None)
            return
        leading = self._leadership
        is_possible = response.match_index <= self.log.end_index
        if leading is None or response.term < self.term or not is_possible:
            return
        is_new = leading.answered(response, self._now_ms)
        if is_new and response.match_index > self.ledger.commit_index:
            self._advance_commit(leading)
        elif leading.reads.needs_confirmation:
            self._confirm_reads(leading)

    def _advance_commit(self, leading: Leadership) -> None:
        """Commit the entries that are durable on a majority of the voters.

        Entries that a majority holds durably survive any minority of failures, and each later
        leader has them, since its electors include one of that majority (Leader Completeness).
        """
        index = leading.quorum_match(self.ledger.durable_index)
        if index > self.ledger.commit_index and self._may_commit(index):
            self.ledger.commit(index)
            leading.committed(index)
        self._confirm_reads(leading)
        is_committed = self.ledger.memberships.current_index <= self.ledger.commit_index
        if not self._is_voter and is_committed:
            self._step_down(leading)  # our own removal is committed (dissertation 4.2.2)

    def _confirm_reads(self, leading: Leadership) -> None:
        if leading.reads.needs_confirmation:
            self._effects.reads_ready.extend(leading.confirmed_reads())
