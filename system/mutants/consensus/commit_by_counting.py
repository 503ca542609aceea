"""A leader commits entries of earlier terms because a majority has them.

Such an entry may still be overwritten by a leader of a later term (Raft figure 8), although it
was called committed, read and acknowledged. DLedger 0.3.1.2 takes the median of all watermarks
without a look at the entry's term.

Source: https://github.com/openmessaging/dledger/issues/4 (bug E1); Raft section 5.4.2.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore


class CommitByCounting(RaftCore):
    """Commits whatever a majority has, of whatever term."""

    def _may_commit(self, index: int) -> bool:
        return index >= 0


PLUGIN = Mutant("commit-by-counting", CommitByCounting)
