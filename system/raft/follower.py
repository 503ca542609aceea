"""A follower: how it handles its leader's pushes and snapshots.

Source: Raft figure 2 (AppendEntries, receiver implementation) and section 7
(InstallSnapshot); DLedgerEntryPusher.EntryHandler, but without its unchecked commit index and
separate truncation (DLEDGER.md E3, E4).
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
