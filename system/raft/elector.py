"""Who may lead: vote counting, the comparison of logs, and the health of the disk.

Source: Raft sections 5.2 and 5.4.1; dissertation sections 4.2.3 and 9.6; DLedger's
DLedgerLeaderElector, but without its ledger check before the term check (DLEDGER.md E5).
"""

from __future__ import annotations

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import RaftConfig, VoteRequest


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
