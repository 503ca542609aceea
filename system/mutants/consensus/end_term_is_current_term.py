"""Elections compare a member's current term where its last entry's term belongs.

A member that has fallen behind and has seen a newer term looks complete, is elected, and
truncates what the others had committed. DLedger set ledgerEndTerm to currTerm when a follower
appended or truncated.

Source: https://github.com/apache/rocketmq/issues/2178 and
https://github.com/openmessaging/dledger/issues/52 (bug E2).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore


class EndTermIsCurrentTerm(RaftCore):
    """Believes that its log ends with an entry of the current term."""

    def _log_end_term(self) -> int:
        return self.term


PLUGIN = Mutant("end-term-is-current-term", EndTermIsCurrentTerm)
