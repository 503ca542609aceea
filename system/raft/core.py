"""One member of a DLedger group: elections, replication, commitment, read index.

The core is a deterministic state machine: clock, network, disk and randomness are passed in.
The shell calls `tick`, `receive`, `append`, `read` and `synced`, then carries out `take()`.
The same object runs in a process, in simulation and under text scripts.

Rules that DLedger 0.3.1.2 lacks and this core follows (DLEDGER.md section C): a random
follower timeout, PreVote, CheckQuorum, the consistency check by prevLogIndex/prevLogTerm,
no commit of old terms by counting (Raft section 5.4.2), term and vote durable before any
response, acknowledgements for durable entries only, membership changes, snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.member_state import MemberState
from shaketable.system.raft.membership import Change, Membership, MembershipError
from shaketable.system.raft.protocol import (
    Batch,
    DiskFullError,
    Effects,
    LeadershipTransfer,
    Message,
    NotLeaderError,
    PendingFullError,
    PushRequest,
    PushResponse,
    Role,
    Snapshot,
    SnapshotRequest,
    Token,
    TooManyReadsError,
    TransferError,
    VoteRequest,
    VoteResponse,
)


class RaftCore(MemberState):
    """A member's consensus state.

    `term` and `voted_for` are the recovered hard state, `log` is the recovered log,
    `memberships` are the (index, membership) changes in it, and `snapshot` is the one at its
    start (required unless the log starts at index -1, position 0). `membership` is the
    bootstrap membership; a snapshot at index >= 0 replaces it. Without it, `peers` are the
    other voters. A joining member starts with `Membership(())` and does not campaign until
    its log makes it a voter.

    The shell must give a new leader a term-start entry by `append` before any other
    (`needs_term_start`). Any input raises InvariantError if it proves that a safety property
    of the protocol is broken: the member must then stop.
    """

    # ---- queries ----------------------------------------------------------------------

    @property
    def needs_term_start(self) -> bool:
        """True for a leader that has not yet appended the first entry of its term."""
        return (
            self.role is Role.LEADER and self.log.end_term != self.term and not self._disk.is_full
        )

    @property
    def is_ready(self) -> bool:
        """True for a leader whose term-start entry is committed: it may serve clients."""
        return self._leadership is not None and self._leadership.is_ready

    @property
    def deadline_ms(self) -> float:
        """When `tick` must be called next."""
        if self._leadership is not None:
            return self._leadership.heartbeat_due_ms
        return self._election_due_ms

    @property
    def learner_to_promote(self) -> str | None:
        """A learner that has caught up; the leader's broker should plan its `Promote`."""
        if self._leadership is None:
            return None
        return self._leadership.learner_to_promote(self._now_ms)

    @property
    def transferee(self) -> str | None:
        """The target of the transfer under way; None without one."""
        return None if self._leadership is None else self._leadership.transfer.target

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the index of the entry that set the membership at `index`, and the membership.

        Used to make a snapshot at `index`, which must not be compacted yet.
        """
        return self.ledger.memberships.at(index)

    @property
    def snapshot_from(self) -> int:
        """The lowest index at which a snapshot can end.

        -1, but for a member that has joined and was sent the log from its start: the membership
        there was in the configuration of others, so it knows the one that the first change set.
        """
        return self.ledger.memberships.known_from

    # ---- inputs -----------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Advance time: a leader heartbeats, checks its quorum and retransmits; others elect."""
        self._now_ms = now_ms
        leading = self._leadership
        if leading is None:
            if now_ms >= self._election_due_ms:
                self._start_pre_vote()
        elif now_ms >= leading.heartbeat_due_ms:
            if not leading.is_quorum_active(now_ms):
                self._become_follower(self.term, None)
            elif self._disk.is_stalled(now_ms):
                self._step_down(leading)
            else:
                leading.retransmit_stalled(now_ms)
                leading.continue_transfer(now_ms, must_step_down=self._disk.is_full)
                leading.heartbeat(now_ms)

    def receive(self, message: Message, now_ms: float) -> None:
        """Handle one message from another member."""
        self._now_ms = now_ms
        if isinstance(message, PushResponse):
            self._on_push_response(message)
        elif isinstance(message, PushRequest):
            self._on_push(message)
        elif isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        elif isinstance(message, SnapshotRequest):
            self._on_snapshot(message)
        elif isinstance(message, LeadershipTransfer):
            self._on_transfer(message)

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Append encoded entries of the current term to the log (leader only).

        On an error nothing has changed. Raises NotLeaderError, DiskFullError, TransferError
        during a transfer, PendingFullError at `uncommitted_bytes_max`, MembershipError for a
        change that is not allowed now.
        """
        leading = self._leadership
        if leading is None:
            raise NotLeaderError(self.leader)
        self._now_ms = now_ms
        self._refuse_append(leading, batches)
        for batch in batches:
            assert batch.term == self.term, "entries are encoded for the term that leads"
            self.ledger.append(batch)
            leading.appended(batch)
        if self.ledger.memberships.current is not self.membership:
            self._use_membership()
            self._advance_commit(leading)  # the new quorum may be smaller
            leading.send_heartbeats(now_ms)  # contact a new member at once
        else:
            leading.push_all(now_ms)

    def holds_lease(self, now_ms: float) -> bool:
        """Whether this member holds a leader lease: no other can lead, if clocks are right."""
        return self._leadership is not None and self._leadership.reads.holds_lease(now_ms)

    def read(self, token: Token, now_ms: float) -> None:
        """Request a linearizable read (leader only); `token` is returned in `reads_ready`.

        The caller then reads the applied state. Raises NotLeaderError if this member is not a
        ready leader, TooManyReadsError at the limit.
        """
        self._now_ms = now_ms
        leading = self._leadership
        if leading is None or not leading.is_ready:
            raise NotLeaderError(self.leader)
        if leading.reads_waiting >= self.config.reads_waiting_max:
            raise TooManyReadsError(f"{self.config.reads_waiting_max} reads are waiting")
        read_index = self._read_point()
        # Under a lease no other member can have committed anything newer, so no round is needed.
        if leading.reads.holds_lease(now_ms) and read_index <= self.ledger.commit_index:
            self._effects.reads_ready.append(token)
        else:
            leading.reads.ask(token, read_index)

    def plan_change(self, change: Change) -> Membership:
        """Return the membership to append as an entry (EntryBuilder.add_membership).

        Leader only. Raises NotLeaderError, or MembershipError with the reason.
        """
        if self._leadership is None:
            raise NotLeaderError(self.leader)
        return self._leadership.plan_change(change)

    def transfer(self, target: str, now_ms: float) -> None:
        """Transfer the leadership to `target` (leader only); appends are refused meanwhile.

        The transfer ends when this member changes its role, or after `transfer_timeout_ms`.
        Raises NotLeaderError if this member is not a ready leader, TransferError if the target
        cannot take over or another transfer is under way.
        """
        self._now_ms = now_ms
        if self._leadership is None or not self._leadership.is_ready:
            raise NotLeaderError(self.leader)
        self._leadership.transfer_to(target, now_ms)

    def resign(self, now_ms: float) -> None:
        """Transfer the leadership to the nearest responsive voter: this process is about to end.

        The leader refuses appends, waits until everything is committed, and only then sends
        TimeoutNow, so that in a rolling restart clients learn the outcome of every append. Does
        nothing if this member does not lead or no voter can take over (`transferee` is None).
        """
        self._now_ms = now_ms
        if self._leadership is not None and self._leadership.is_ready:
            self._leadership.resign(now_ms)

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the committed entries up to the snapshot's end by the snapshot."""
        self.ledger.compact(snapshot)
        if self._leadership is not None:
            self._leadership.compacted()

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """Note that the disk is full, or has room again.

        On a full disk a leader refuses appends and transfers its leadership to a voter with a
        small lag, if there is one; a follower takes no entries; the member does not campaign.
        """
        self._now_ms = now_ms
        self._disk.is_full = is_full
        if not is_full:
            return
        if self._leadership is not None:
            self._leadership.continue_transfer(now_ms, must_step_down=True)
        elif self.role is Role.CANDIDATE:
            self._become_follower(self.term, None)

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """Note that all writes up to `write_seq` (from `Effects.write_seq`) are durable.

        Only now may messages that depend on them go out, own votes count, and entries count
        towards a commit or be acknowledged to the leader.
        """
        if now_ms is not None:
            self._now_ms = now_ms
        pending = self.ledger.pending
        is_log_durable = self.ledger.synced(write_seq)
        self._disk.synced(pending.synced_seq, pending.write_seq, self._now_ms)
        self._effects.messages.extend(pending.release(self.term))
        self._count_votes()
        if not is_log_durable:
            return
        if self._leadership is not None:
            self._advance_commit(self._leadership)
        elif self._following is not None and self._following.has_agreed:
            assert self.leader is not None
            self._send_durably(self.leader, self._following.acknowledgement())

    def take(self) -> Effects:
        """Return the work that has accumulated since the last call (see Effects for the order)."""
        leading = self._leadership
        if leading is not None and leading.reads.open(self._now_ms):
            leading.send_heartbeats(self._now_ms)
            self._confirm_reads(leading)
        effects, self._effects = self._effects, Effects()
        ledger = self.ledger
        effects.write_seq = ledger.pending.write_seq
        if ledger.has_writes:
            effects.writes = ledger.take_writes()
            self._disk.written(effects.write_seq, self._now_ms)
        effects.commit_index = ledger.commit_index
        effects.acknowledged_index = self._acknowledged_index()
        return effects

    # ---- decisions, each in its own method so that a planted bug can override it --------

    def _acknowledged_index(self) -> int:
        """Return the index up to which the leader acknowledges appends (QuorumAckChecker)."""
        return self.ledger.commit_index

    def _read_point(self) -> int:
        """Return the read index: a read that arrives now must see the log up to there.

        A ready leader's commit index covers all that earlier leaders committed, since an entry
        of its own term is committed (dissertation 6.4).
        """
        return self.ledger.commit_index

    def _refuse_append(self, leading: Leadership, batches: Sequence[Batch]) -> None:
        """Raise if the leader may not append now."""
        if self._disk.is_full:
            raise DiskFullError("the leader's disk is full")
        if leading.transfer.target is not None:
            raise TransferError(f"the leadership is being handed to {leading.transfer.target}")
        if leading.is_pending_full:
            limit = self.config.uncommitted_bytes_max
            raise PendingFullError(f"{limit} bytes wait for the group already")
        for batch in batches:
            if batch.memberships and (reason := leading.change_refusal()) is not None:
                raise MembershipError(reason)
