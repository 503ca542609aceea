"""Vote counting, and the comparison of logs that a vote depends on.

Source: Raft sections 5.2 and 5.4.1; dissertation sections 4.2.3 and 9.6; DLedger's
DLedgerLeaderElector, but without its ledger check before the term check (DLEDGER.md E5).
"""

from __future__ import annotations

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import VoteRequest


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
