"""Invariants of a leader's decisions, checked after each input: commits, and what is sent again.

Checked at once, since later inputs of the same step may undo what a decision rests on: an
acknowledgement that a follower takes back, a voter that leaves. Source: Raft sections 5.3, 5.4.2
and 7; Ongaro's dissertation section 3.10; DLEDGER.md E1, E10, E11.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher
from shaketable.system.raft.leadership import Leadership, Transfer
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, PushResponse

INTERVALS_MAX: Final = 3
"""A leader looks for lost pushes once in a heartbeat interval; so many are allowed."""

_failed_ms = attrgetter("_failed_ms")
_in_flight = attrgetter("_in_flight")
_leadership = attrgetter("_leadership")
_reads = attrgetter("_open", "_new")


class LeadersDecisions:
    """What one process of a member has decided as a leader."""

    def __init__(self, name: str, core: RaftCore) -> None:
        self._name = name
        self._core = core
        self._leading: Leadership | None = None
        self._commit_index = core.ledger.commit_index
        self._membership = core.membership
        """Those after the last input."""
        self._unacknowledged: dict[str, tuple[int, float]] = {}
        """Followers with pushes in flight: what they had acknowledged, and since when no more."""
        self._refused_at_start: str | None = None
        """A follower that differs from the first entry of this leader's log."""
        self._transfer_due_ms: float | None = None
        self._transfer_target: str | None = None

    def heard(self, message: Message) -> None:
        """A message is about to be handled."""
        leading: Leadership | None = _leadership(self._core)
        self._refused_at_start = None
        if (
            leading is None
            or not isinstance(message, PushResponse)
            or message.success
            or message.term != self._core.term
        ):
            return
        dispatcher = leading.dispatchers.get(message.follower)
        if (
            dispatcher is not None
            and dispatcher.state is DispatchState.COMPARE
            and message.prev_index == dispatcher.next_index - 1 <= self._core.log.start.index
        ):
            self._refused_at_start = message.follower

    def handled(self, now_ms: float) -> None:
        """Check what follows from an input. Raises Violated."""
        leading: Leadership | None = _leadership(self._core)
        if leading is not self._leading:
            self._leading = leading
            self._unacknowledged.clear()
            self._transfer_due_ms = self._transfer_target = None
        elif leading is not None:
            self._check_commit(leading)
        if leading is not None:
            for dispatcher in leading.dispatchers.values():
                self._note_unacknowledged(dispatcher, now_ms)
            self._check_reads(leading)
            self._check_refused(leading)
            self._check_transfer(leading, now_ms)
        self._refused_at_start = None
        self._commit_index = self._core.ledger.commit_index
        self._membership = self._core.membership

    # ---- what it commits --------------------------------------------------------------

    def _check_commit(self, leading: Leadership) -> None:
        """A leader commits what a majority has, from an entry of its own term on (figure 8)."""
        core, index = self._core, self._core.ledger.commit_index
        if index == self._commit_index:
            return
        if index < leading.first_index:
            raise Violated(
                "commits-begin-with-the-term",
                f"it commits entry {index} by counting, of an earlier term; its own term begins"
                f" with entry {leading.first_index}",
                self._name,
            )
        memberships = core.membership, self._membership
        if not any(self._has_majority(leading, each, index) for each in memberships):
            held = {peer: each.match_index for peer, each in leading.dispatchers.items()}
            raise Violated(
                "a-majority-has-what-is-committed",
                f"it commits entry {index}; its own are durable up to {core.ledger.durable_index},"
                f" those of others up to {held}, of {core.membership}",
                self._name,
            )

    def _has_majority(self, leading: Leadership, membership: Membership, index: int) -> bool:
        has = int(self._name in membership.voters and self._core.ledger.durable_index >= index)
        for voter in membership.voters:
            dispatcher = leading.dispatchers.get(voter)
            has += dispatcher is not None and dispatcher.match_index >= index
        return has >= membership.quorum

    def _check_reads(self, leading: Leadership) -> None:
        """A leader takes on no read before an entry of its term is committed (6.4)."""
        if self._core.ledger.commit_index < leading.first_index and any(_reads(leading.reads)):
            raise Violated(
                "reads-wait-for-the-term",
                f"it takes on a read, and has committed entries up to"
                f" {self._core.ledger.commit_index}: its term begins with entry"
                f" {leading.first_index}",
                self._name,
            )

    # ---- what it sends again ----------------------------------------------------------

    def _note_unacknowledged(self, dispatcher: EntryDispatcher, now_ms: float) -> None:
        known = self._unacknowledged.get(dispatcher.peer)
        if dispatcher.state is not DispatchState.APPEND or not _in_flight(dispatcher):
            self._unacknowledged.pop(dispatcher.peer, None)
        elif known is None or known[0] != dispatcher.match_index:
            self._unacknowledged[dispatcher.peer] = dispatcher.match_index, now_ms

    def ticked(self, now_ms: float) -> None:
        """Check, after a tick, that what seems lost is sent again. Raises Violated."""
        leading: Leadership | None = _leadership(self._core)
        config = self._core.config
        if leading is None or leading is not self._leading:
            return
        late_ms = config.retransmit_after_ms + INTERVALS_MAX * config.heartbeat_interval_ms
        for peer, (match_index, since_ms) in self._unacknowledged.items():
            if peer in leading.dispatchers and now_ms > since_ms + late_ms:
                raise Violated(
                    "lost-pushes-are-sent-again",
                    f"{peer} has acknowledged no entry after {match_index} for"
                    f" {now_ms - since_ms:.0f} ms, with entries on their way to it, and was not"
                    " asked meanwhile what it has",
                    self._name,
                )

    def _check_refused(self, leading: Leadership) -> None:
        """Who differs from the first entry that the leader has needs its snapshot (section 7)."""
        peer = self._refused_at_start
        dispatcher = leading.dispatchers.get(peer) if peer else None
        if (
            dispatcher is not None
            and dispatcher.state is DispatchState.COMPARE
            and self._core.ledger.snapshot is not None
        ):
            raise Violated(
                "snapshots-go-out-at-once",
                f"{peer} has another log before entry {self._core.log.start.index + 1}, the first"
                " that is left, and is asked again instead of sent the snapshot",
                self._name,
            )

    # ---- transfers --------------------------------------------------------------------

    def _check_transfer(self, leading: Leadership, now_ms: float) -> None:
        """A leader that must step down chooses the voter that lacks least."""
        transfer = leading.transfer
        due_ms, target = transfer.due_ms, transfer.target
        is_new = target is not None and due_ms != self._transfer_due_ms
        self._check_timeout(transfer, now_ms)
        self._transfer_due_ms, self._transfer_target = due_ms, target
        if not is_new or not transfer.must_step_down or target not in leading.dispatchers:
            return
        match = leading.dispatchers[target].match_index
        for voter in leading.voting:
            if voter.match_index > match and can_lead(self._core, transfer, voter, now_ms):
                raise Violated(
                    "the-nearest-takes-over",
                    f"{target} is to lead, which has entries up to {match}; {voter.peer} has those"
                    f" up to {voter.match_index}",
                    self._name,
                )

    def _check_timeout(self, transfer: Transfer, now_ms: float) -> None:
        """Nothing moves a transfer's timeout (`check_transfer`: then it is given up)."""
        due_ms, before_ms, target = transfer.due_ms, self._transfer_due_ms, transfer.target
        is_same = target is not None and target == self._transfer_target
        if is_same and before_ms is not None and now_ms < before_ms != due_ms:
            what = f"the transfer to {target} was given more time"
            raise Violated("transfers-are-given-up", what, self._name)


def can_lead(core: RaftCore, transfer: Transfer, voter: EntryDispatcher, now_ms: float) -> bool:
    """Return whether a leader may ask that voter to take over."""
    config = core.config
    lag = core.log.end_index - voter.match_index
    failed_ms = _failed_ms(transfer).get(voter.peer, float("-inf"))
    return (
        lag <= config.transfer_lag_entries_max
        and now_ms - voter.last_contact_ms <= config.election_timeout_min_ms
        and now_ms - failed_ms >= config.transfer_retry_ms
    )
