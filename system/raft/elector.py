"""Counting votes and deciding on them.

Source: Raft sections 5.2 and 5.4.1; dissertation sections 4.2.3 and 9.6; DLedger's
DLedgerLeaderElector, whose ledger check before the term check (bug E5) is not kept.
"""

from __future__ import annotations

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import VoteRequest


class Elector:
    """Votes that a candidate has, for one pre-vote or one election."""

    __slots__ = ("_votes", "pre_vote", "term")

    def __init__(self) -> None:
        self._votes: dict[str, None] = {}
        self.term = -1
        self.pre_vote = True

    def start(self, member: str, term: int, *, pre_vote: bool) -> None:
        """Begin to count anew, with the candidate's own vote."""
        self._votes = {member: None}
        self.term, self.pre_vote = term, pre_vote

    def granted(self, voter: str, term: int, *, pre_vote: bool) -> None:
        """Note a vote, if it is for what is being counted."""
        if (term, pre_vote) == (self.term, self.pre_vote):
            self._votes[voter] = None

    def is_won(self, membership: Membership) -> bool:
        """True with the votes of a majority of the voters; others' votes count for nothing."""
        return sum(voter in self._votes for voter in membership.voters) >= membership.quorum


def is_up_to_date(request: VoteRequest, end_term: int, end_index: int) -> bool:
    """True if the candidate's log is at least as complete as ours (Raft section 5.4.1)."""
    return (request.last_term, request.last_index) >= (end_term, end_index)
