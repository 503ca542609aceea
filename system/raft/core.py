"""One member of a DLedger group: elections, replication, commitment, read index.

The core is a state machine without clock, socket, disk or dice. The shell feeds it
`tick`, `receive`, `append`, `read` and `synced`, then carries out `take()`. The same
object runs in a process, in simulation and under text scripts.

Rules that DLedger 0.3.1.2 lacks and this core keeps (DLEDGER.md section C): a random
follower timeout, PreVote, CheckQuorum, consistency by prevLogIndex/prevLogTerm, no
commit of old terms by counting (Raft section 5.4.2), term and vote durable before any
answer, an acknowledgement only for durable copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from system.raft.batch import Batch
from system.raft.elector import Elector, is_up_to_date
from system.raft.leadership import Leadership
from system.raft.ledger import Ledger
from system.raft.log_view import LogView
from system.raft.protocol import (
    Effects,
    InvariantError,
    Message,
    NotLeaderError,
    PushRequest,
    PushResponse,
    RaftConfig,
    Role,
    RoleChange,
    Token,
    TooManyReadsError,
    VoteRequest,
    VoteResponse,
)

UniformMs = Callable[[float, float], float]
"""Draws a number of milliseconds between two bounds: the core's only dice, injected."""


class RaftCore:
    """A member's consensus state.

    `term` and `voted_for` are what was durable at the start; `log` what was recovered.
    A fresh leader must be given a term-start entry by `append` before anything else
    (`needs_term_start`). Raises InvariantError from any input that shows that the
    protocol's promises are broken: the member must stop then.
    """

    def __init__(
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
    ) -> None:
        self.member = member
        self.peers = tuple(peers)
        self.quorum = (len(self.peers) + 1) // 2 + 1
        self.config = config or RaftConfig()
        self.ledger = Ledger(log)
        self.log = log
        self.term = term
        self.voted_for = voted_for
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self._now_ms = now_ms
        self._uniform_ms = uniform_ms
        self._elector = Elector(self.quorum)
        self._leadership: Leadership | None = None
        self._heard_leader_ms = float("-inf")
        self._matched_index = -1  # follower: known equal to the leader's log
        self._read_round = 0  # follower: the leader's latest, to be echoed
        self._effects = Effects()
        self._restart_election_timer()

    # ---- what the shell may ask -------------------------------------------------------

    @property
    def needs_term_start(self) -> bool:
        """True for a leader that has yet to append its own term's first entry."""
        return self.role is Role.LEADER and self.log.end_term != self.term

    @property
    def is_ready(self) -> bool:
        """True for a leader whose term start is committed: it may serve clients."""
        return self.role is Role.LEADER and self.log.term_at(self.ledger.commit_index) == self.term

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do next."""
        if self._leadership is not None:
            return self._leadership.heartbeat_due_ms
        return self._election_due_ms

    # ---- inputs -----------------------------------------------------------------------

    def tick(self, now_ms: float) -> None:
        """Let time pass: heartbeats, CheckQuorum, retransmission; or an election."""
        self._now_ms = now_ms
        if self._leadership is not None:
            if not self._leadership.hears_quorum(now_ms, self.quorum):
                self._become_follower(self.term, None)
            elif now_ms >= self._leadership.heartbeat_due_ms:
                self._leadership.retransmit_stalled(now_ms)
                self._heartbeat()
        elif now_ms >= self._election_due_ms:
            self._canvass()

    def receive(self, message: Message, now_ms: float) -> None:
        """Take one message from another member."""
        self._now_ms = now_ms
        if isinstance(message, VoteRequest):
            self._on_vote_request(message)
        elif isinstance(message, VoteResponse):
            self._on_vote_response(message)
        elif isinstance(message, PushRequest):
            self._on_push(message)
        elif isinstance(message, PushResponse):
            self._on_push_response(message)

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Leader: put encoded entries of the current term at the log's end.

        Raises NotLeaderError where this member does not lead, before anything changes.
        """
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader)
        self._now_ms = now_ms
        for batch in batches:
            assert batch.term == self.term, "entries are encoded for the term that leads"
            self.ledger.append(batch)
        self._advance_commit()
        for peer in self.peers:
            self._push(peer)

    def read(self, token: Token, now_ms: float) -> None:
        """Leader: ask for a linearizable read; `token` comes back in `reads_ready`.

        The read may then look at everything applied. Raises NotLeaderError where this
        member does not lead or is not ready yet, TooManyReadsError past the limit.
        """
        self._now_ms = now_ms
        if self._leadership is None or not self.is_ready:
            raise NotLeaderError(self.leader)
        if self._leadership.reads_waiting >= self.config.reads_waiting_max:
            raise TooManyReadsError(f"{self.config.reads_waiting_max} reads are waiting")
        self._leadership.read(token, self._read_point())

    def synced(self, write_seq: int) -> None:
        """All writes up to `write_seq` (from `Effects.write_seq`) are durable."""
        self.ledger.synced(write_seq)
        self._effects.messages.extend(self.ledger.pending.release(self.term))
        if self._leadership is not None:
            self._advance_commit()
        elif self.leader is not None:
            self._acknowledge(self.leader)

    def take(self) -> Effects:
        """Return what is to be done since the last call (see Effects for the order)."""
        if self._leadership is not None and self._leadership.opens_read_round():
            self._heartbeat()
            self._confirm_reads()
        effects, self._effects = self._effects, Effects()
        effects.writes = self.ledger.take_writes()
        effects.write_seq = self.ledger.pending.write_seq
        effects.commit_index = self.ledger.commit_index
        effects.acknowledged_index = self._acknowledged_index()
        return effects

    # ---- decisions that calibration may break, each in a method of its own -------------

    def _acknowledged_index(self) -> int:
        """Up to where the leader answers appends (DLedger's QuorumAckChecker)."""
        return self.ledger.commit_index

    def _read_point(self) -> int:
        """Up to where a read that arrives now must see the log (the read index)."""
        return self.ledger.commit_index

    # ---- messages ------------------------------------------------------------------------

    def _send(self, peer: str, message: Message) -> None:
        self._effects.messages.append((peer, message))

    def _send_when(self, seq: int, peer: str, message: Message) -> None:
        """Say it only when write `seq` is durable."""
        if not self.ledger.pending.hold(seq, peer, message):
            self._send(peer, message)

    # ---- roles -------------------------------------------------------------------------

    def _restart_election_timer(self) -> None:
        low, high = self.config.election_timeout_min_ms, self.config.election_timeout_max_ms
        self._election_due_ms = self._now_ms + self._uniform_ms(low, high)

    def _become_follower(self, term: int, leader: str | None) -> None:
        if self._leadership is not None:
            self._effects.reads_refused.extend(self._leadership.abandoned_reads())
            self._leadership = None
        changed = (self.role, self.term, self.leader) != (Role.FOLLOWER, term, leader)
        if term > self.term:
            self.term, self.voted_for = term, None
            self.ledger.save_state(self.term, self.voted_for)
        if changed:
            # What matched, and which round was asked, is known of one leader in one term.
            self._matched_index = -1
            self._read_round = 0
        self.role, self.leader = Role.FOLLOWER, leader
        self._restart_election_timer()
        if changed:
            self._note_role()

    def _note_role(self) -> None:
        self._effects.role_changes.append(RoleChange(self.role, self.term, self.leader))

    def _canvass(self) -> None:
        """Ask whether an election could be won before disturbing anybody (PreVote)."""
        self._restart_election_timer()
        was = (self.role, self.leader)
        self.role, self.leader = Role.CANDIDATE, None
        self._matched_index = -1
        if was != (self.role, self.leader):
            self._note_role()
        self._elector.start(self.member, self.term + 1, canvass=True)
        self._ask_votes(self.term + 1, canvass=True)

    def _campaign(self) -> None:
        self._restart_election_timer()
        self.term, self.voted_for = self.term + 1, self.member
        self.ledger.save_state(self.term, self.voted_for)
        self._note_role()
        self._elector.start(self.member, self.term, canvass=False)
        self._ask_votes(self.term, canvass=False)

    def _ask_votes(self, term: int, *, canvass: bool) -> None:
        request = VoteRequest(term, self.member, self.log.end_term, self.log.end_index, canvass)
        for peer in self.peers:
            self._send_when(self.ledger.pending.state_seq, peer, request)
        self._count_votes()

    def _count_votes(self) -> None:
        if self.role is Role.CANDIDATE and self._elector.is_won:
            if self._elector.canvass:
                self._campaign()
            else:
                self._become_leader()

    def _become_leader(self) -> None:
        assert self.voted_for == self.member
        self.role, self.leader = Role.LEADER, self.member
        self._leadership = Leadership(
            self.config, self.member, self.term, self.peers, self.ledger, self._now_ms
        )
        self._note_role()
        self._heartbeat()

    # ---- elections -----------------------------------------------------------------------

    def _on_vote_request(self, request: VoteRequest) -> None:
        follows = self._now_ms - self._heard_leader_ms < self.config.election_timeout_min_ms
        if self.role is Role.LEADER or (follows and request.candidate != self.leader):
            # A leader that is heard is not disturbed, whatever term is asked for
            # (dissertation 4.2.3). Where it is a leader's term that is behind, the
            # candidate's answer to the next push says so.
            answer = VoteResponse(self.term, self.member, False, request.canvass)
            self._send_when(self.ledger.pending.state_seq, request.candidate, answer)
            return
        is_complete = is_up_to_date(request, self.log.end_term, self.log.end_index)
        if request.canvass:
            granted = request.term > self.term and is_complete
            term = request.term if granted else self.term
            answer = VoteResponse(term, self.member, granted, canvass=True)
            self._send_when(self.ledger.pending.state_seq, request.candidate, answer)
            return
        if request.term > self.term:
            self._become_follower(request.term, None)
        granted = (
            request.term == self.term
            and self.voted_for in (None, request.candidate)
            and is_complete
        )
        if granted and self.voted_for is None:
            self.voted_for = request.candidate
            self.ledger.save_state(self.term, self.voted_for)
        if granted:
            self._restart_election_timer()
        answer = VoteResponse(self.term, self.member, granted, canvass=False)
        self._send_when(self.ledger.pending.state_seq, request.candidate, answer)

    def _on_vote_response(self, response: VoteResponse) -> None:
        if response.term > self.term and not (response.canvass and response.granted):
            self._become_follower(response.term, None)
            return
        if self.role is Role.CANDIDATE and response.granted:
            self._elector.granted(response.voter, response.term, canvass=response.canvass)
            self._count_votes()

    # ---- follower ------------------------------------------------------------------------

    def _on_push(self, push: PushRequest) -> None:
        if push.term < self.term:
            refusal = PushResponse(self.term, self.member, False, -1, 0, push.prev_index)
            self._send_when(self.ledger.pending.state_seq, push.leader, refusal)
            return
        if self.role is Role.LEADER and push.term == self.term:
            raise InvariantError(f"{push.leader} and {self.member} both lead term {self.term}")
        if (self.role, self.term, self.leader) != (Role.FOLLOWER, push.term, push.leader):
            self._become_follower(push.term, push.leader)
        self._heard_leader_ms = self._now_ms
        self._restart_election_timer()
        self._read_round = max(self._read_round, push.read_round)
        if not self.ledger.agrees_at(push.prev_index, push.prev_term):
            self._refuse_push(push)
            return
        for batch in push.batches:
            self.ledger.accept(batch)
        last = push.batches[-1].last_index if push.batches else push.prev_index
        self._matched_index = max(self._matched_index, last)
        self.ledger.commit(min(push.commit_index, self._matched_index))
        if not push.batches or self.ledger.durable_index >= last:
            self._acknowledge(push.leader)

    def _refuse_push(self, push: PushRequest) -> None:
        hint = self.log.last_at_most(push.prev_index, push.prev_term)
        match = min(self.ledger.durable_index, self._matched_index)
        refusal = PushResponse(
            self.term,
            self.member,
            False,
            match,
            self._read_round,
            push.prev_index,
            hint,
            self.log.term_at(hint),
        )
        self._send_when(self.ledger.pending.state_seq, push.leader, refusal)

    def _acknowledge(self, leader: str) -> None:
        """Say what is durable here; only the term must be durable to say it."""
        match = min(self.ledger.durable_index, self._matched_index)
        response = PushResponse(self.term, self.member, True, match, self._read_round)
        self._send_when(self.ledger.pending.state_seq, leader, response)

    # ---- leader --------------------------------------------------------------------------

    def _on_push_response(self, response: PushResponse) -> None:
        if response.term > self.term:
            self._become_follower(response.term, None)
            return
        leading = self._leadership
        is_possible = response.match_index <= self.log.end_index
        if leading is None or response.term < self.term or not is_possible:
            return
        dispatcher = leading.dispatchers[response.follower]
        dispatcher.heard_ms = self._now_ms
        dispatcher.read_round = max(dispatcher.read_round, response.read_round)
        if response.success:
            if dispatcher.acknowledged(response.match_index, self._now_ms):
                self._advance_commit()
        elif dispatcher.believes(response.prev_index):
            agreed = self.log.last_at_most(
                min(response.hint_index, response.prev_index - 1), response.hint_term
            )
            dispatcher.compare_at(agreed + 1)
            self._send(response.follower, leading.push(response.follower))
        self._confirm_reads()
        self._push(response.follower)

    def _advance_commit(self) -> None:
        """Commit what is durable on a majority, if it is of this term (Raft section 5.4.2)."""
        assert self._leadership is not None
        index = self._leadership.quorum_match(self.ledger.durable_index, self.quorum)
        if self.log.term_at(index) == self.term and self.ledger.commit(index):
            self._confirm_reads()

    def _confirm_reads(self) -> None:
        assert self._leadership is not None
        ready = self._leadership.confirmed_reads(self.ledger.commit_index, self.quorum)
        self._effects.reads_ready.extend(ready)

    def _heartbeat(self) -> None:
        """Tell every follower that we lead; where logs are being compared, compare."""
        assert self._leadership is not None
        self._leadership.heartbeat_due_ms = self._now_ms + self.config.heartbeat_interval_ms
        for peer in self.peers:
            self._push(peer)
            self._send(peer, self._leadership.push(peer))

    def _push(self, peer: str) -> None:
        assert self._leadership is not None
        for push in self._leadership.pushes(peer, self._now_ms):
            self._send(peer, push)
