"""One member of a DLedger group: elections, replication, commitment, read index.

The core is a state machine without clock, socket, disk or dice. The shell feeds it
`tick`, `receive`, `append`, `read` and `synced`, then carries out `take()`. The same
object runs in a process, in simulation and under text scripts.

Rules that DLedger 0.3.1.2 lacks and this core keeps (DLEDGER.md section C): a random
follower timeout, PreVote, CheckQuorum, consistency by prevLogIndex/prevLogTerm, no
commit of old terms by counting (Raft section 5.4.2), term and vote durable before any
answer, an acknowledgement only for durable copies, membership changes, snapshots.
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.member_state import MemberState
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.membership_log import Change
from shaketable.system.raft.protocol import (
    DiskFullError,
    Effects,
    LeadershipTransfer,
    MembershipError,
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

    `term` and `voted_for` are what was durable at the start, `log` what was recovered,
    with the (index, membership) changes in it and the `snapshot` at its begin (needed
    where it begins behind index -1 or position 0). `membership` is the bootstrap one; a
    snapshot at index >= 0 brings its own. Without it, `peers` are the other voters. A
    joining member starts with `Membership(())` and never stands for election until the
    log says that it is a voter.

    A fresh leader must be given a term-start entry by `append` before anything else
    (`needs_term_start`). Raises InvariantError from any input that shows that the
    protocol's promises are broken: the member must stop then.
    """

    # ---- what the shell may ask -------------------------------------------------------

    @property
    def needs_term_start(self) -> bool:
        """True for a leader that has yet to append its own term's first entry."""
        return (
            self.role is Role.LEADER and self.log.end_term != self.term and not self._disk.is_full
        )

    @property
    def is_ready(self) -> bool:
        """True for a leader whose term start is committed: it may serve clients."""
        return self._leadership is not None and self._leadership.is_ready

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do next."""
        if self._leadership is not None:
            return self._leadership.heartbeat_due_ms
        return self._election_due_ms

    @property
    def learner_to_promote(self) -> str | None:
        """A learner that has caught up: the leader's broker should plan its `Promote`."""
        if self._leadership is None:
            return None
        return self._leadership.learner_to_promote(self._now_ms)

    @property
    def transferee(self) -> str | None:
        """To whom this leader is handing over; None where it is not (or gave it up)."""
        return None if self._leadership is None else self._leadership.transfer.target

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the membership in force at entry `index` and the index that brought it.

        For whoever makes the snapshot at that entry, which must not be compacted yet.
        """
        return self.ledger.memberships.at(index)

    # ---- inputs -----------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Let time pass: heartbeats, CheckQuorum, retransmission; or an election."""
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
        """Take one message from another member."""
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
        """Leader: put encoded entries of the current term at the log's end.

        Refuses before anything changes. Raises NotLeaderError where this member does not
        lead, DiskFullError, TransferError during a transfer, PendingFullError past
        `uncommitted_bytes_max`, MembershipError for a change that may not be made.
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
            self._advance_commit(leading)  # a majority may take fewer now
            leading.heartbeat(now_ms)  # whoever is new is met at once
        else:
            leading.push_all(now_ms)

    def holds_lease(self, now_ms: float) -> bool:
        """Whether this member leads, and nobody else can as far as clocks are to be trusted."""
        return self._leadership is not None and self._leadership.reads.holds_lease(now_ms)

    def read(self, token: Token, now_ms: float) -> None:
        """Leader: ask for a linearizable read; `token` comes back in `reads_ready`.

        The read may then look at everything applied. Raises NotLeaderError where this
        member does not lead or is not ready yet, TooManyReadsError past the limit.
        """
        self._now_ms = now_ms
        leading = self._leadership
        if leading is None or not leading.is_ready:
            raise NotLeaderError(self.leader)
        if leading.reads_waiting >= self.config.reads_waiting_max:
            raise TooManyReadsError(f"{self.config.reads_waiting_max} reads are waiting")
        read_index = self._read_point()
        if leading.reads.holds_lease(now_ms) and read_index <= self.ledger.commit_index:
            self._effects.reads_ready.append(token)
        else:
            leading.reads.ask(token, read_index)

    def plan_change(self, change: Change) -> Membership:
        """Leader: return the membership to append as an entry (EntryBuilder.add_membership).

        Raises NotLeaderError, or MembershipError with the reason why not (or not now).
        """
        if self._leadership is None:
            raise NotLeaderError(self.leader)
        return self._leadership.plan_change(change)

    def transfer(self, target: str, now_ms: float) -> None:
        """Leader: hand the leadership to `target`; appends are refused meanwhile.

        It ends with this member's role change, or is given up after `transfer_timeout_ms`.
        Raises NotLeaderError where this member is no leader that is ready, TransferError
        where the target could not take over or another transfer is under way.
        """
        self._now_ms = now_ms
        if self._leadership is None or not self._leadership.is_ready:
            raise NotLeaderError(self.leader)
        self._leadership.transfer_to(target, now_ms)

    def resign(self, now_ms: float) -> None:
        """This process is about to end: a leader hands over to the voter that is closest behind.

        It takes no appends any more, has everything committed and only then urges the other, so
        that clients of a group that is restarted node by node learn every outcome. Nothing
        happens where this member does not lead or nobody could take over (`transferee` is None).
        """
        self._now_ms = now_ms
        if self._leadership is not None and self._leadership.is_ready:
            self._leadership.resign(now_ms)

    def compact(self, snapshot: Snapshot) -> None:
        """Let `snapshot` stand for the entries up to its end, which are committed."""
        self.ledger.compact(snapshot)
        if self._leadership is not None:
            self._leadership.compacted()

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """The disk has no room for entries, or has it again.

        A leader refuses appends and hands over to a voter that is close behind, if there
        is one; a follower takes no entries; nobody stands for election.
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
        """All writes up to `write_seq` (from `Effects.write_seq`) are durable."""
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
        """Return what is to be done since the last call (see Effects for the order)."""
        leading = self._leadership
        if leading is not None and leading.reads.open(self._now_ms):
            leading.heartbeat(self._now_ms)
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

    # ---- decisions that calibration may break, each in a method of its own -------------

    def _acknowledged_index(self) -> int:
        """Up to where the leader answers appends (DLedger's QuorumAckChecker)."""
        return self.ledger.commit_index

    def _read_point(self) -> int:
        """Up to where a read that arrives now must see the log (the read index)."""
        return self.ledger.commit_index

    def _refuse_append(self, leading: Leadership, batches: Sequence[Batch]) -> None:
        """Raise where the leader may not append now."""
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
