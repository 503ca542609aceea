"""A voter gives its vote to everybody who asks in a term.

Two candidates of one term both win.

Source: Raft section 5.2 ("at most one candidate in a given term"); DLedger keeps it by
REJECT_ALREADY_VOTED (DLEDGER.md section C.3).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import VoteRequest


class DoubleVote(RaftCore):
    """Forgets at once whom it voted for."""

    def _may_vote_for(self, request: VoteRequest) -> bool:
        return True


PLUGIN = Mutant("double-vote", DoubleVote)
