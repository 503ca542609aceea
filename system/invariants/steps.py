"""Invariants of one member's steps: what it sends, removes, takes on and keeps.

Checked after each step, from the member's state and messages: in simulation, and by real nodes.
Most such faults cost a client only time, or show only if a crash falls into the right moment; here
each step shows them. Source: Raft figure 2; Ongaro's dissertation sections 3.10, 4.1, 6.4.1 and
10.2.1; docs/adr/0018; DLEDGER.md E15.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from shaketable.system.invariants.elections import Elections
from shaketable.system.invariants.following import Following
from shaketable.system.invariants.leading import LeadersDecisions, can_lead
from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Compact,
    Install,
    LeadershipTransfer,
    Message,
    PushRequest,
    PushResponse,
    Role,
    SnapshotRequest,
    Token,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

_changes = attrgetter("_indices", "_memberships")
_in_flight = attrgetter("_in_flight", "_in_flight_bytes", "_is_probing")
_leadership = attrgetter("_leadership")
_now_ms = attrgetter("_now_ms")
_reads = attrgetter("_open", "_new")
_term = attrgetter("_term")

Messages = Sequence[tuple[str, Message]]

OWED_MAX_MS = 1000.0
"""How soon a leader of an older term is to be told, once its answer waits for no write."""
_JUST_HEARD = -1, None


class Steps:
    """What one process of a member has done that its next steps must fit.

    `is_timely`: False where a step may come later than what it decided, as on a busy machine:
    nothing is judged then that depends on how long ago something was.
    """

    def __init__(self, name: str, core: RaftCore, *, is_timely: bool = True) -> None:
        self._name = name
        self._is_timely = is_timely
        self._core = core
        self._memberships: list[tuple[int, Membership]] = list(
            zip(*_changes(core.ledger.memberships), strict=True)
        )
        self._pushed_to: dict[str, int] = {}
        """Where the last push to each follower ended, in bytes of the log."""
        self._snapshots: dict[str, int] = {}
        """Where the last snapshot that was sent to each follower ends: the index."""
        self._leading: Leadership | None = None
        self._asked_term = -1
        """The term in which this member, as its leader, asked another to take over."""
        self._owed: dict[str, tuple[int, float | None]] = {}
        """Leaders of older terms that are to be told of this one: the last write when one pushed
        (-1: not known yet), and since when that is durable."""
        self._owed_term = -1
        self._votes: tuple[int, set[str]] = (-1, set())
        """A term, and who gave this member a vote in it."""
        self._is_full = self._was_full = False
        self._reads: dict[Token, int] = {}
        """The reads that wait, and the last round that had been sent when each arrived."""
        self._round = 0
        """The last round that this member, as its leader, has sent."""
        self._voters: tuple[bool, Sequence[EntryDispatcher]] = False, ()
        """Whether this member was a voter after its last step as a leader, and the other voters."""
        self._elections = Elections(name, core)
        self._following = Following(name, core)
        self._decisions = LeadersDecisions(name, core)

    def disk_full(self, is_full: bool) -> None:
        """The member is told that its disk is full, or has room again."""
        self._is_full = is_full

    def heard(self, message: Message) -> None:
        """A message is about to be handled."""
        self._elections.heard(message)
        self._following.heard(message)
        if (
            isinstance(message, VoteResponse)
            and message.granted
            and not message.pre_vote
            and message.term == self._core.term  # one of an older term may come late
        ):
            if self._votes[0] != message.term:
                self._votes = message.term, set()
            self._votes[1].add(message.voter)
        self._decisions.heard(message)
        if isinstance(message, PushRequest) and message.term < self._core.term:
            if self._owed_term != self._core.term:
                self._owed_term = self._core.term
                self._owed.clear()
            _, since_ms = self._owed.get(message.leader, _JUST_HEARD)
            if since_ms is None:  # an answer that waits is replaced by the next one
                self._owed[message.leader] = _JUST_HEARD

    def handled(self) -> None:
        """Check what the member has decided after an input. Raises Violated.

        To be called after each input; a step may have several.
        """
        now_ms: float = _now_ms(self._core)
        self._elections.handled()
        self._following.handled()
        self._decisions.handled(now_ms)

    def ticked(self, now_ms: float) -> None:
        """Check a tick, after it. Raises Violated."""
        self.handled()
        self._decisions.ticked(now_ms)

    def stepped(
        self,
        writes: Sequence[Write],
        messages: Messages,
        now_ms: float,
        *,
        stalled_ms: float,
        inputs: int = 1,
    ) -> None:
        """Check what a step of so many `inputs` has done. Raises Violated.

        `now_ms` is the member's own clock, `stalled_ms` how long a write has waited by it.
        """
        self.handled()
        self._check_membership(writes)
        self._check_disk(writes, messages, stalled_ms)
        if self._owed:
            self._check_owed(messages, now_ms)
        self._elections.stepped(messages)
        leading: Leadership | None = _leadership(self._core)
        if leading is not None:
            if leading is not self._leading:
                self._check_votes()
                self._pushed_to.clear()
                self._snapshots.clear()
                self._reads, self._round = {}, 0
            else:
                self._check_changes(leading, writes)
            self._check_reads(leading)
            for peer, message in messages:
                self._sent(leading, peer, message)
            for dispatcher in leading.dispatchers.values():
                if dispatcher.state is DispatchState.APPEND:
                    self._check_stream(dispatcher)
                elif dispatcher.state is DispatchState.INSTALL and inputs <= 1:
                    # After more inputs an acknowledgement may have come behind the heartbeat.
                    self._check_snapshot(dispatcher, messages)
            self._check_lease(now_ms)
        elif self._leading is not None and self._is_timely:
            self._check_passed_on(self._leading, messages, now_ms)
        self._leading = leading
        self._was_full = self._is_full

    def _check_votes(self) -> None:
        """Who begins to lead a term has the votes of a majority in it (Raft section 5.2)."""
        core, (term, voters) = self._core, self._votes
        votes = (voters if term == core.term else set()) | {self._name}
        votes &= {*core.membership.voters}
        if len(votes) < core.membership.quorum:
            raise Violated(
                "votes-make-leaders",
                f"it leads term {core.term} with the votes of {', '.join(sorted(votes)) or 'none'},"
                f" {core.membership.quorum} are a majority",
                self._name,
            )

    # ---- memberships ------------------------------------------------------------------

    def _check_membership(self, writes: Sequence[Write]) -> None:
        """The membership in force is the latest in the log, and no removed one (4.1)."""
        if not writes:
            return
        known, core = self._memberships, self._core
        for write in writes:
            if isinstance(write, Append):
                known += write.batch.memberships
            elif isinstance(write, Truncate):
                while len(known) > 1 and known[-1][0] > write.end_index:
                    known.pop()
            elif isinstance(write, Install):
                known[:] = [(write.snapshot.membership_index, write.snapshot.membership)]
            elif isinstance(write, Compact):
                while len(known) > 1 and known[1][0] <= write.snapshot.end.index:
                    del known[0]
        if core.membership != known[-1][1]:
            found = core.ledger.memberships.current_index, core.membership
            raise Violated("membership-is-the-log-s", _differing(known[-1], found), self._name)
        for change in known:
            found = core.membership_at(change[0])
            if found != change:
                raise Violated("membership-is-the-log-s", _differing(change, found), self._name)

    # ---- the disk ---------------------------------------------------------------------

    def _check_disk(self, writes: Sequence[Write], messages: Messages, stalled_ms: float) -> None:
        """A member whose disk is full or stalls does not campaign, nor take a leader's entries."""
        core, name = self._core, self._name
        is_full = self._is_full and self._was_full
        if is_full and core.role is Role.CANDIDATE:
            raise Violated("sick-disk-does-not-campaign", "its disk is full", name)
        # A pre-vote depends on no write that may have waited for the disk, an election does.
        if (
            self._is_timely
            and stalled_ms > core.config.disk_stall_max_ms
            and any(isinstance(each, VoteRequest) and each.pre_vote for _, each in messages)
        ):
            what = f"its disk has stalled for {stalled_ms:.0f} ms"
            raise Violated("sick-disk-does-not-campaign", what, name)
        if (
            is_full
            and core.role is Role.FOLLOWER
            and any(isinstance(write, Append | Install) for write in writes)
        ):
            raise Violated("full-disk-takes-nothing", "it takes on a leader's entries", name)

    def _check_owed(self, messages: Messages, now_ms: float) -> None:
        """A leader of an older term is told of the new one (Raft figure 2: "reply false").

        The new term has to be durable first, and perhaps what was written before the answer.
        """
        pending = self._core.ledger.pending
        if self._core.term != self._owed_term:  # an answer in a term that is over is not sent
            self._owed.clear()
        for peer, message in messages:
            if isinstance(message, PushResponse):
                self._owed.pop(peer, None)
        for leader, (write_seq, since_ms) in list(self._owed.items()):
            if write_seq < 0:
                self._owed[leader] = pending.write_seq, None
            elif since_ms is None:
                if write_seq <= pending.synced_seq:
                    self._owed[leader] = write_seq, now_ms
            elif now_ms > since_ms + OWED_MAX_MS:
                raise Violated(
                    "old-leaders-are-answered",
                    f"{leader} pushes in an older term than {self._core.term}, and is not told so",
                    self._name,
                )

    # ---- a leader's streams -----------------------------------------------------------

    def _sent(self, leading: Leadership, peer: str, message: Message) -> None:
        if isinstance(message, LeadershipTransfer):
            self._asked_term = message.term
        elif isinstance(message, SnapshotRequest):
            self._snapshots[peer] = message.snapshot.end.index
        elif isinstance(message, PushRequest) and message.batches:
            self._check_push(leading, peer, message)
            self._pushed_to[peer] = message.batches[-1].end_position

    def _check_push(self, leading: Leadership, peer: str, push: PushRequest) -> None:
        """A small push waits for the one in flight; after a loss every push does."""
        dispatcher = leading.dispatchers.get(peer)
        if dispatcher is None:
            return
        pushes, _, is_probing = _in_flight(dispatcher)
        config = self._core.config
        if push.batches[-1].last_index != dispatcher.next_index - 1:
            return  # more was sent after it, or all starts over
        if is_probing and len(pushes) > 1:
            raise Violated(
                "pushes-keep-to-the-window", f"{len(pushes)} are in flight to {peer}, which took"
                " none since a loss", self._name,
            )  # fmt: skip
        waited = self._core.log.end_position - self._pushed_to.get(peer, 0)
        if len(pushes) > config.small_pushes_max and waited < _full_bytes(self._core):
            raise Violated(
                "pushes-keep-to-the-window",
                f"{waited} bytes are pushed to {peer}, with {len(pushes) - 1} pushes in flight",
                self._name,
            )

    def _check_stream(self, dispatcher: EntryDispatcher) -> None:
        """No entry waits at a leader that its follower's window has room for."""
        end_index = self._core.log.end_index
        if dispatcher.next_index <= end_index and self._has_room(dispatcher):
            raise Violated(
                "entries-go-out-at-once",
                f"entries {dispatcher.next_index}..{end_index} wait for {dispatcher.peer}",
                self._name,
            )

    def _has_room(self, dispatcher: EntryDispatcher) -> bool:
        pushes, in_flight_bytes, is_probing = _in_flight(dispatcher)
        config = self._core.config
        if not pushes:
            return True
        if (
            is_probing
            or in_flight_bytes >= config.in_flight_bytes_max
            or len(pushes) >= config.in_flight_pushes_max
        ):
            return False
        sent_to = self._pushed_to.get(dispatcher.peer, 0)
        waiting = self._core.log.end_position - sent_to
        return len(pushes) < config.small_pushes_max or waiting >= _full_bytes(self._core)

    def _check_snapshot(self, dispatcher: EntryDispatcher, messages: Messages) -> None:
        """A heartbeat brings the next snapshot to a follower that has the last and needs more."""
        peer = dispatcher.peer
        sent = [each for to, each in messages if to == peer]
        has_beat = any(isinstance(each, PushRequest) and not each.batches for each in sent)
        if not has_beat or any(isinstance(each, SnapshotRequest) for each in sent):
            return
        sent_index = self._snapshots.get(peer)
        # The same snapshot is sent again only after a while, whatever late responses say, and
        # no acknowledgement tells of one that ends before the first entry.
        has_it = (
            sent_index is not None
            and 0 <= sent_index <= dispatcher.match_index
            and sent_index < dispatcher.next_index - 1
        )
        if has_it or sent_index is None:
            raise Violated(
                "snapshots-go-out-at-once",
                f"{peer} has entries up to {dispatcher.match_index}, needs a snapshot up to"
                f" {dispatcher.next_index - 1}, and is sent none",
                self._name,
            )

    # ---- changes of members -----------------------------------------------------------

    def _check_changes(self, leading: Leadership, writes: Sequence[Write]) -> None:
        """A leader changes the membership once an entry of its term, and the last, is committed."""
        index = self._core.ledger.commit_index
        changes = [
            change
            for each in writes
            if isinstance(each, Append)
            for change in each.batch.memberships
        ]
        for at, _ in changes:
            before = max((known for known, _ in self._memberships if known < at), default=-1)
            if index < leading.first_index or index < before:
                raise Violated(
                    "changes-come-one-by-one",
                    f"it changes the membership with entry {at}, and has committed entries up to"
                    f" {index}: its term begins with entry {leading.first_index}, and entry"
                    f" {before} is the change before",
                    self._name,
                )

    # ---- reads ------------------------------------------------------------------------

    def _check_reads(self, leading: Leadership) -> None:
        """A read is served once a majority echoed a round that was sent after it arrived (6.4)."""
        known, sent_round, voters = self._reads, self._round, self._voters
        reads = leading.reads
        self._round = reads.round
        self._voters = self._name in self._core.membership.voters, leading.voting
        is_open, is_new = _reads(reads)
        if not (known or is_open or is_new):
            return
        waiting = [each[1] for each in is_open] + [each[0] for each in is_new]
        self._reads = {token: known.get(token, sent_round) for token in waiting}
        for token in known.keys() - self._reads.keys():
            # A voter that was added in this step may not have been asked, which is no fault.
            if not any(_have_echoed(of, known[token]) for of in (self._voters, voters)):
                rounds = {voter.peer: voter.read_round for voter in leading.voting}
                raise Violated(
                    "reads-wait-for-an-echo",
                    f"it served a read that arrived after round {known[token]} was sent; the last"
                    f" rounds that voters echoed are {rounds}",
                    self._name,
                )

    # ---- transfers --------------------------------------------------------------------

    def _check_lease(self, now_ms: float) -> None:
        """Who asked another to take over holds no lease in that term any more (6.4.1)."""
        core = self._core
        if self._asked_term == core.term and core.holds_lease(now_ms):
            raise Violated(
                "lease-ends-with-a-transfer",
                f"it asked another to lead after term {core.term}, and reads by a lease",
                self._name,
            )

    def _check_passed_on(self, leading: Leadership, messages: Messages, now_ms: float) -> None:
        """A leader that steps down by itself asks a voter that has its whole log to lead."""
        core = self._core
        if self._asked_term == core.term or any(
            isinstance(message, LeadershipTransfer) for _, message in messages
        ):
            return
        if core.term != _term(leading) or not leading.is_quorum_active(now_ms):
            return
        for voter in leading.voting:
            has_all = voter.match_index == core.log.end_index
            if has_all and can_lead(core, leading.transfer, voter, now_ms):
                raise Violated(
                    "the-nearest-takes-over",
                    f"it steps down, and {voter.peer}, which has its whole log, is not asked to"
                    " lead",
                    self._name,
                )


def _differing(change: tuple[int, Membership], found: tuple[int, Membership]) -> str:
    return f"entry {change[0]} of its log says {change[1]}; it uses that of {found[0]}: {found[1]}"


def _have_echoed(voters: tuple[bool, Sequence[EntryDispatcher]], after_round: int) -> bool:
    """Whether a majority of voters, perhaps with the leader, echoed a later round than this."""
    leads_as_voter, others = voters
    echoed = leads_as_voter + sum(voter.read_round > after_round for voter in others)
    return echoed > (leads_as_voter + len(others)) // 2


def _full_bytes(core: RaftCore) -> int:
    return min(core.config.full_push_bytes, core.config.push_bytes_max)
