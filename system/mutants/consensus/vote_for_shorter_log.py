"""A voter does not ask whether the candidate has everything that may be committed.

A member that lacks committed entries is elected, and they are overwritten.

Source: Raft section 5.4.1; what DLedger's REJECT_SMALL_LEDGER_END_INDEX is for (DLEDGER.md
section C.3).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import VoteRequest


class VoteForShorterLog(RaftCore):
    """Takes every log for complete."""

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


PLUGIN = Mutant("vote-for-shorter-log", VoteForShorterLog)
