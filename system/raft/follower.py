"""What a member knows of one leader in one term, and what it answers to that leader.

Source: Raft figure 2 (AppendEntries, receiver implementation) and section 7
(InstallSnapshot); DLedgerEntryPusher.EntryHandler, whose unchecked commit index and
separate truncation (bugs E3, E4) are not kept.
"""

from __future__ import annotations

from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import (
    InvariantError,
    PushRequest,
    PushResponse,
    Snapshot,
    SnapshotRequest,
)


class Follower:
    """A follower's volatile state for one leader in one term. Dies with either.

    `matched_index`: our entries up to here equal the leader's (what was committed before
    does, by leader completeness). `has_agreed`: the leader named a place that stands here,
    too; nothing is acknowledged before. `read_round`: the leader's latest, to be echoed.
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
        """Take the leader's entries; return what may be said at once.

        With a full disk no entry is taken, and the answer says what is here. Raises
        InvariantError where the leader lacks what is committed here.
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
        """Take the leader's snapshot; return it where it replaced the log.

        What stands here already stays. Raises InvariantError where the snapshot contradicts
        what is committed here.
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
        """Say what is durable here and equal to the leader's log."""
        match = self._acknowledged_match()
        return PushResponse(self._term, self._member, True, match, self.read_round)

    # ---- decisions that calibration may break, each in a method of its own -------------

    def _commit_point(self, push: PushRequest) -> int:
        """Up to where entries are committed here: never beyond what equals the leader's log."""
        return min(push.commit_index, self.matched_index)

    def _acknowledged_match(self) -> int:
        """Up to where copies may count towards a majority."""
        return min(self._ledger.durable_index, self.matched_index)

    def _hint(self, prev_index: int, prev_term: int) -> int:
        """Where the leader should compare next: below a whole term that it cannot have."""
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
