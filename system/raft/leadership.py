"""A leader's state: dispatchers, contact with the quorum, commits, read rounds, transfers.

Source: DLedgerEntryPusher (dispatchers, QuorumAckChecker); Ongaro's dissertation
sections 4.1 (the membership in force counts), 6.2 (CheckQuorum) and 6.4 (read index).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.membership import Change, Membership, MembershipError, Promote, changed
from shaketable.system.raft.protocol import (
    Batch,
    LeadershipTransfer,
    Message,
    PushRequest,
    PushResponse,
    RaftConfig,
    SnapshotRequest,
    Token,
    TransferError,
)

# Linearizable reads at a leader: rounds that prove leadership, or a lease that trusts clocks.
#
# Source: Ongaro's dissertation sections 6.4 (read index) and 6.4.1 (lease).

ROUNDS_REMEMBERED_MAX = 256
"""How many rounds' send times are kept; an older round, when confirmed, extends no lease."""


class ReadRounds:
    """Reads that wait until a majority echoes a round which was opened after they arrived.

    Such an echo proves that no newer leader had committed anything when the read arrived: the
    voters that echoed were still in this term, and a newer leader needs one of them.

    With `lease_ms` each heartbeat opens a round, too. The voters that echo a round heard the
    leader at or after it was sent, and refuse to vote for `election_timeout_min_ms` from then
    on. So until `lease_ms` (shortened by `clock_drift_max`) after the send no other member can
    lead, and a read needs no round. This TRUSTS CLOCKS: a read may be stale if a voter's clock
    runs faster than the leader's by more than the margin between the two, or if the leader's
    clock stops while the leader runs on.
    """

    __slots__ = ("_config", "_lease_from_ms", "_new", "_open", "_sent", "_was_dropped", "round")

    def __init__(self, config: RaftConfig) -> None:
        self._config = config
        self.round = 0
        self._new: list[tuple[Token, int]] = []
        self._open: deque[tuple[int, Token, int]] = deque()  # (round, token, read index)
        self._sent: deque[tuple[int, float]] = deque(maxlen=ROUNDS_REMEMBERED_MAX)
        self._lease_from_ms = float("-inf")
        self._was_dropped = config.lease_ms <= 0

    @property
    def waiting(self) -> int:
        """How many reads wait for confirmation."""
        return len(self._new) + len(self._open)

    def ask(self, token: Token, read_index: int) -> None:
        """Add a read to the next round, which is opened after the read arrived."""
        self._new.append((token, read_index))

    def open(self, now_ms: float) -> bool:
        """Open a round for the new reads unless one is under way; True if it was opened."""
        if not self._new or self._open:
            return False
        self._begin_round(now_ms)
        self._open.extend((self.round, token, at) for token, at in self._new)
        self._new.clear()
        return True

    def heartbeat(self, now_ms: float) -> None:
        """Open a round for the heartbeat that is about to be sent, if leases are used."""
        if not self._was_dropped:
            self._begin_round(now_ms)

    def confirmed(self, confirmed_round: int, commit_index: int) -> list[Token]:
        """Return the reads that may be served, now that a majority echoed `confirmed_round`.

        The lease is extended from the round's send time, not from that of its echoes.
        """
        while self._sent and self._sent[0][0] <= confirmed_round:
            self._lease_from_ms = self._sent.popleft()[1]
        ready: list[Token] = []
        waiting = self._open
        while waiting and waiting[0][0] <= confirmed_round and waiting[0][2] <= commit_index:
            ready.append(waiting.popleft()[1])
        return ready

    @property
    def needs_confirmation(self) -> bool:
        """True if a read or the lease waits for a round to be echoed."""
        return bool(self._open or self._sent)

    def holds_lease(self, now_ms: float) -> bool:
        """True while no other member can lead, if clocks are right."""
        if self._was_dropped:
            return False
        lease_ms = self._config.lease_ms * (1 - self._config.clock_drift_max)
        return now_ms - self._lease_from_ms < lease_ms

    def drop_lease(self) -> None:
        """Give up the lease for the rest of the term: a transfer was started.

        Even after the transfer is given up: its vote requests may arrive much later, and voters
        grant them although they still hear this leader.
        """
        self._was_dropped = True
        self._sent.clear()

    def unserved(self) -> list[Token]:
        """Return all reads that were not served."""
        return [token for _, token, _ in self._open] + [token for token, _ in self._new]

    def _begin_round(self, now_ms: float) -> None:
        self.round += 1
        if not self._was_dropped:
            self._sent.append((self.round, now_ms))


# Leadership transfer: which voters may take over, and the transfer under way.
#
# Source: Ongaro's dissertation section 3.10; DLedger's LEADERSHIP_TRANSFER and
# preferredLeaderIds (DLEDGER.md section C.3, C.6).


class Transfer:
    """A leader's transfers in one term, one at a time. Times in milliseconds.

    While `target` is set the leader takes no appends, so that the target can catch up. A
    leader that `must_step_down` (its disk fails) does not first wait to commit everything.
    """

    __slots__ = (
        "_config",
        "_due_ms",
        "_failed_ms",
        "_member",
        "_preferred_due_ms",
        "must_step_down",
        "target",
    )

    def __init__(self, config: RaftConfig, member: str, now_ms: float) -> None:
        self._config = config
        self._member = member
        self.target: str | None = None
        self.must_step_down = False
        self._due_ms = 0.0
        self._failed_ms: dict[str, float] = {}  # by member, when its last transfer failed
        self._preferred_due_ms = now_ms + config.preferred_check_ms

    @property
    def due_ms(self) -> float | None:
        """When the transfer under way times out, None if there is none."""
        return None if self.target is None else self._due_ms

    def start(self, target: str, now_ms: float, *, must_step_down: bool) -> None:
        """Start a transfer to `target`."""
        self.target, self.must_step_down = target, must_step_down
        self._due_ms = now_ms + self._config.transfer_timeout_ms

    def give_up(self, now_ms: float) -> bool:
        """End a transfer that timed out; True if it was ended now."""
        if self.target is None or now_ms < self._due_ms:
            return False
        self._failed_ms[self.target] = now_ms
        self.target = None
        return True

    def require(self, dispatcher: EntryDispatcher, end_index: int, now_ms: float) -> None:
        """Raise TransferError with the reason if that voter cannot take over soon."""
        lag = end_index - dispatcher.match_index
        if lag > self._config.transfer_lag_entries_max:
            raise TransferError(f"{dispatcher.peer} is {lag} entries behind")
        silent_ms = now_ms - dispatcher.last_contact_ms
        if silent_ms > self._config.election_timeout_min_ms:
            raise TransferError(f"{dispatcher.peer} has been silent for {silent_ms:.0f} ms")

    def nearest(self, voting: Iterable[EntryDispatcher], now_ms: float) -> EntryDispatcher | None:
        """Return the responsive voter with the smallest lag, None if none responds.

        A voter to which a transfer failed recently is the last choice.
        """
        oldest_ms = now_ms - self._config.election_timeout_min_ms
        responsive = [voter for voter in voting if voter.last_contact_ms >= oldest_ms]
        return max(
            responsive,
            key=lambda voter: (not self._has_failed(voter, now_ms), voter.match_index),
            default=None,
        )

    def best(
        self, voting: Iterable[EntryDispatcher], end_index: int, now_ms: float
    ) -> EntryDispatcher | None:
        """Return the most up-to-date voter that can take over, None if there is none."""
        able = [voter for voter in voting if self._may_ask(voter, end_index, now_ms)]
        return max(able, key=lambda voter: voter.match_index, default=None)

    def preferred(
        self, voting: Iterable[EntryDispatcher], end_index: int, now_ms: float
    ) -> EntryDispatcher | None:
        """Return a preferred voter that can take over; checked each `preferred_check_ms`.

        Only a voter that comes before this member in `preferred_leaders`, so that two members
        never transfer the leadership back and forth.
        """
        if now_ms < self._preferred_due_ms:
            return None
        self._preferred_due_ms = now_ms + self._config.preferred_check_ms
        by_name = {voter.peer: voter for voter in voting}
        for name in self._config.preferred_leaders:
            if name == self._member:
                return None
            if name in by_name and self._may_ask(by_name[name], end_index, now_ms):
                return by_name[name]
        return None

    def _may_ask(self, voter: EntryDispatcher, end_index: int, now_ms: float) -> bool:
        if self._has_failed(voter, now_ms):
            return False
        try:
            self.require(voter, end_index, now_ms)
        except TransferError:
            return False
        return True

    def _has_failed(self, voter: EntryDispatcher, now_ms: float) -> bool:
        failed_ms = self._failed_ms.get(voter.peer)
        return failed_ms is not None and now_ms - failed_ms < self._config.transfer_retry_ms


# The leader.

Send = Callable[[str, Message], None]


class Leadership:
    """A leader's volatile state for one term, discarded when it steps down.

    `first_index` is the index of the term's first entry. Learners receive all entries, but
    only voters count for commitment, quorum contact and read rounds.
    """

    def __init__(  # noqa: PLR0913 - three of them are the parts' types
        self,
        config: RaftConfig,
        member: str,
        term: int,
        ledger: Ledger,
        send: Send,
        now_ms: float,
        *,
        dispatcher_type: type[EntryDispatcher] = EntryDispatcher,
        reads_type: type[ReadRounds] = ReadRounds,
        transfer_type: type[Transfer] = Transfer,
    ) -> None:
        self._config = config
        self._member = member
        self._term = term
        self._ledger = ledger
        self._send = send
        self._dispatcher_type = dispatcher_type
        self.first_index = ledger.log.end_index + 1
        self.reads = reads_type(config)
        self.transfer = transfer_type(config, member, now_ms)
        self.dispatchers: dict[str, EntryDispatcher] = {}
        self.voting: list[EntryDispatcher] = []
        self.heartbeat_due_ms = now_ms
        self._appended: deque[tuple[int, int]] = deque()  # (last index, end position)
        self._committed_position = ledger.log.end_position
        self.adopt(ledger.memberships.current, now_ms)

    def adopt(self, membership: Membership, now_ms: float) -> None:
        """Use another membership: keep dispatchers for its members only."""
        known, end_index = self.dispatchers, self._ledger.log.end_index
        self.dispatchers = {
            peer: known.get(peer) or self._dispatcher_type(peer, self._config, end_index, now_ms)
            for peer in membership.members
            if peer != self._member
        }
        voters = membership.voters
        self.voting = [self.dispatchers[peer] for peer in voters if peer != self._member]
        self._own_vote = int(self._member in voters)
        self.quorum = membership.quorum

    # ---- what a majority of the voters proves -------------------------------------------
    #
    # Sorted ascending, element [-quorum] is the largest value that at least `quorum` voters
    # have reached. The leader itself counts only if it is a voter (dissertation 4.2.2).

    def quorum_match(self, own_durable_index: int) -> int:
        """Return the highest index that is durable on a majority (QuorumAckChecker)."""
        matches = [voter.match_index for voter in self.voting]
        if self._own_vote:
            matches.append(own_durable_index)
        matches.sort()
        return matches[-self.quorum]

    def is_quorum_active(self, now_ms: float) -> bool:
        """True if a majority responded within `quorum_silence_max_ms` (CheckQuorum)."""
        oldest = now_ms - self._config.quorum_silence_max_ms
        active = self._own_vote
        for voter in self.voting:
            if voter.last_contact_ms >= oldest:
                active += 1
        return active >= self.quorum

    def quorum_round(self) -> int:
        """Return the latest read round that a majority has echoed, this member included."""
        rounds = [voter.read_round for voter in self.voting]
        if self._own_vote:
            rounds.append(self.reads.round)
        rounds.sort()
        return rounds[-self.quorum]

    # ---- reads ----------------------------------------------------------------------------

    @property
    def reads_waiting(self) -> int:
        """How many reads wait for confirmation."""
        return self.reads.waiting

    def confirmed_reads(self) -> list[Token]:
        """Return the reads whose round a majority has echoed and whose read index is committed."""
        return self.reads.confirmed(self.quorum_round(), self._ledger.commit_index)

    # ---- flow control ---------------------------------------------------------------------

    @property
    def is_pending_full(self) -> bool:
        """True if the uncommitted bytes of this leader reach the limit."""
        pending_bytes = self._ledger.log.end_position - self._committed_position
        return pending_bytes >= self._config.uncommitted_bytes_max

    def appended(self, batch: Batch) -> None:
        """Count a batch as uncommitted."""
        self._appended.append((batch.last_index, batch.end_position))

    def committed(self, index: int) -> None:
        """Stop counting entries up to `index`: they are committed."""
        appended = self._appended
        while appended and appended[0][0] <= index:
            self._committed_position = appended.popleft()[1]
        self.send_timeout_now_to_target()

    # ---- to the followers -------------------------------------------------------------------

    def heartbeat(self, now_ms: float) -> None:
        """Send a heartbeat to every follower, and be ticked again an interval later."""
        self.heartbeat_due_ms = now_ms + self._config.heartbeat_interval_ms
        self.send_heartbeats(now_ms)

    def send_heartbeats(self, now_ms: float) -> None:
        """Send a heartbeat to every follower; it also retries a comparison.

        The next tick is due as before: reads, and changes of members, may come all the time. A
        heartbeat carries prevLogIndex and prevLogTerm for the next entry to send, so that a
        follower which lost or missed entries refuses it even while nothing is appended.
        """
        self.reads.heartbeat(now_ms)
        for dispatcher in self.dispatchers.values():
            self.push_entries(dispatcher, now_ms)
            self._push(dispatcher)
            self._push_snapshot(dispatcher, now_ms)

    def push_all(self, now_ms: float) -> None:
        """Stream entries to every follower, as far as its window allows."""
        for dispatcher in self.dispatchers.values():
            self.push_entries(dispatcher, now_ms)

    def push_entries(self, dispatcher: EntryDispatcher, now_ms: float) -> None:
        """Stream entries to one follower, as far as its window allows."""
        log = self._ledger.log
        while dispatcher.may_push(log.end_index, log.end_position):
            batches = log.batches_from(dispatcher.next_index, self._config.push_bytes_max)
            self._push(dispatcher, batches)
            dispatcher.pushed(batches, now_ms)

    def retransmit_stalled(self, now_ms: float) -> None:
        """Restart the comparison with each follower that has not acknowledged in time."""
        for dispatcher in self.dispatchers.values():
            if dispatcher.is_stalled(now_ms):
                self._compare_at(dispatcher, dispatcher.match_index + 1)
                dispatcher.probe()

    def answered(self, response: PushResponse, now_ms: float) -> bool:
        """Handle a push response; True if the follower's match index advanced."""
        dispatcher = self.dispatchers.get(response.follower)
        if dispatcher is None:
            return False  # it has left the group
        dispatcher.last_contact_ms = now_ms
        dispatcher.read_round = max(dispatcher.read_round, response.read_round)
        is_new = False
        if response.success:
            compacted_index = self._ledger.log.start.index
            is_new = dispatcher.acknowledged(response.match_index, compacted_index, now_ms)
            if self.transfer.target == response.follower:
                self.send_timeout_now_to_target()
        elif dispatcher.refused(response.prev_index):
            self._compare_lower(dispatcher, response, now_ms)
        self.push_entries(dispatcher, now_ms)
        return is_new

    def compacted(self) -> None:
        """Adjust the dispatchers whose next entry was compacted away.

        A follower in INSTALL gets the newer snapshot next. The others are compared with at the
        log's new start, and get the snapshot only if that fails: a follower may hold entries that
        it has not acknowledged yet.
        """
        compacted_index = self._ledger.log.start.index
        for dispatcher in self.dispatchers.values():
            if dispatcher.next_index <= compacted_index:
                if dispatcher.state is DispatchState.INSTALL:
                    dispatcher.install(compacted_index)
                else:
                    self._compare_at(dispatcher, dispatcher.next_index)

    # ---- leadership transfer --------------------------------------------------------------

    def transfer_to(self, target: str, now_ms: float, *, must_step_down: bool = False) -> None:
        """Start a transfer: no appends until the target leads or the transfer times out.

        Raises TransferError if the target cannot take over, or a transfer is under way.
        """
        if self.transfer.target is not None:
            raise TransferError(f"the leadership is being handed to {self.transfer.target}")
        dispatcher = self.dispatchers.get(target)
        if dispatcher is None or dispatcher not in self.voting:
            raise TransferError(f"{target} is no other voter of the group")
        self.transfer.require(dispatcher, self._ledger.log.end_index, now_ms)
        self._start_transfer(target, now_ms, must_step_down=must_step_down)

    def resign(self, now_ms: float) -> None:
        """Start a transfer to the voter that `Transfer.nearest` names, if none is under way.

        Its lag is not limited: under load all followers lag until appends stop.
        """
        nearest = self.transfer.nearest(self.voting, now_ms)
        if nearest is not None and self.transfer.target is None:
            self._start_transfer(nearest.peer, now_ms, must_step_down=False)

    def _start_transfer(self, target: str, now_ms: float, *, must_step_down: bool) -> None:
        self.transfer.start(target, now_ms, must_step_down=must_step_down)
        self.reads.drop_lease()
        self.send_timeout_now_to_target()

    def continue_transfer(self, now_ms: float, *, must_step_down: bool) -> None:
        """At each heartbeat: repeat TimeoutNow, give up a late transfer, or start one.

        A leader that `must_step_down` chooses any voter with a small lag; any other leader
        only one that comes before it in `preferred_leaders`.
        """
        transfer = self.transfer
        transfer.give_up(now_ms)
        if transfer.target is not None:
            transfer.must_step_down = transfer.must_step_down or must_step_down
            self.send_timeout_now_to_target()
            return
        end_index = self._ledger.log.end_index
        if must_step_down:
            next_leader = transfer.best(self.voting, end_index, now_ms)
        elif self._config.preferred_leaders and self.is_ready:
            next_leader = transfer.preferred(self.voting, end_index, now_ms)
        else:
            return
        if next_leader is not None:
            self.transfer_to(next_leader.peer, now_ms, must_step_down=must_step_down)

    def send_timeout_now_to_target(self) -> None:
        """Send TimeoutNow to the transfer's target, once it holds the whole log.

        Unless this leader must step down, it first commits everything too, so that it can still
        acknowledge each pending append, whose outcome would otherwise be unknown.
        """
        if (target := self.transfer.target) is not None:
            dispatcher, end_index = self.dispatchers[target], self._ledger.log.end_index
            is_committed = self.transfer.must_step_down or self._ledger.commit_index >= end_index
            if is_committed and dispatcher.match_index == end_index:
                self._send_timeout_now(dispatcher)

    def send_timeout_now_to_best(self, now_ms: float) -> None:
        """Send TimeoutNow to a voter that holds the whole log, if any: we step down now."""
        end_index = self._ledger.log.end_index
        best = self.transfer.best(self.voting, end_index, now_ms)
        if best is not None and best.match_index == end_index:
            self._send_timeout_now(best)

    def _send_timeout_now(self, dispatcher: EntryDispatcher) -> None:
        self._send(dispatcher.peer, LeadershipTransfer(self._term, self._member))

    # ---- changing the membership --------------------------------------------------------------

    def plan_change(self, change: Change) -> Membership:
        """Return the membership after `change`. Raises MembershipError with the reason."""
        if (reason := self.change_refusal()) is not None:
            raise MembershipError(reason)
        planned = changed(self._ledger.memberships.current, change)
        if isinstance(change, Promote):
            lag = self._lag_of(self.dispatchers[change.member])
            if lag > self._config.promote_lag_entries_max:
                raise MembershipError(f"{change.member} is {lag} entries behind")
        return planned

    def learner_to_promote(self, now_ms: float) -> str | None:
        """Return a learner that has caught up and responds, if a change is allowed now."""
        learners = self._ledger.memberships.current.learners
        if not learners or self.change_refusal() is not None:
            return None
        oldest_ms = now_ms - self._config.election_timeout_min_ms
        for learner in learners:
            dispatcher = self.dispatchers[learner]
            is_streaming = dispatcher.state is DispatchState.APPEND
            if (
                is_streaming
                and self._lag_of(dispatcher) <= self._config.promote_lag_entries_max
                and dispatcher.last_contact_ms >= oldest_ms
            ):
                return learner
        return None

    def _lag_of(self, learner: EntryDispatcher) -> int:
        """Return how many committed entries a learner lacks.

        Not measured from the log's end: under load every follower lacks the newest entries.
        """
        return max(0, self._ledger.commit_index - learner.match_index)

    # ---- decisions, each in its own method so that a planted bug can override it --------

    @property
    def is_ready(self) -> bool:
        """True once an entry of this term is committed, and so all before it.

        Only then does the commit index cover all that earlier leaders committed, which reads
        and membership changes need (dissertation 6.4).
        """
        return self._ledger.commit_index >= self.first_index

    def change_refusal(self) -> str | None:
        """Return the reason why no membership change is allowed now, None if one is.

        One change at a time, so that majorities before and after it overlap (dissertation 4.1).
        And only after an entry of this term is committed: otherwise two leaders' uncommitted
        changes could have disjoint majorities (Ongaro, raft-dev, 10 July 2015).
        """
        if not self.is_ready:
            return "the leader has not committed an entry of its own term yet"
        if self._ledger.memberships.current_index > self._ledger.commit_index:
            return "an earlier membership change is not committed yet"
        if self.transfer.target is not None:
            return f"the leadership is being handed to {self.transfer.target}"
        return None

    def _compare_lower(
        self, dispatcher: EntryDispatcher, response: PushResponse, now_ms: float
    ) -> None:
        """Compare again below `response.prev_index`, or send the snapshot."""
        log = self._ledger.log
        agreed = self._next_comparison(response)
        if agreed < log.start.index:
            if self._ledger.snapshot is None:
                # Our log is complete from index 0, yet the follower's starts elsewhere: it was
                # upgraded from a plain commit log of its own, which must not be discarded.
                self._compare_at(dispatcher, log.start.index + 1)
                return
            dispatcher.install(log.start.index)
            self._push_snapshot(dispatcher, now_ms)
            return
        self._compare_at(dispatcher, agreed + 1)
        self._push(dispatcher)

    def _next_comparison(self, response: PushResponse) -> int:
        """Return the largest index at which the logs may agree, given the follower's hint.

        The hint's term is the follower's term there, so entries of ours with a larger term
        cannot match: a whole term is skipped in one round trip (Raft section 5.3).
        """
        return self._ledger.log.last_at_most(
            min(response.hint_index, response.prev_index - 1), response.hint_term
        )

    def _compare_at(self, dispatcher: EntryDispatcher, next_index: int) -> None:
        dispatcher.compare_at(max(next_index, self._ledger.log.start.index + 1))

    def _push(self, dispatcher: EntryDispatcher, batches: tuple[Batch, ...] = ()) -> None:
        """Send one push; without entries it serves as heartbeat, comparison and read round."""
        ledger = self._ledger
        log = ledger.log
        prev_index = dispatcher.next_index - 1
        push = PushRequest(
            self._term,
            self._member,
            prev_index,
            log.term_at(prev_index),
            ledger.commit_index,
            self.reads.round,
            batches,
            log.start.position if prev_index == log.start.index else -1,
        )
        self._send(dispatcher.peer, push)

    def _push_snapshot(self, dispatcher: EntryDispatcher, now_ms: float) -> None:
        snapshot = self._ledger.snapshot
        if snapshot is not None and dispatcher.snapshot_due(now_ms):
            request = SnapshotRequest(self._term, self._member, snapshot, self.reads.round)
            self._send(dispatcher.peer, request)
