"""A voter that restarts forgets that it promised the leader not to vote for a while.

With leases on, a leader answers reads from a lease that rests on that promise; the restarted
voter elects another leader meanwhile, and reads are stale.

Source: dissertation 6.4.1; a trap of every lease whose promise is kept in memory.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore


class LeaseAfterRestart(RaftCore):
    """Votes right after a start, also where leases are on."""

    def _heard_before_start_ms(self) -> float:
        return float("-inf")


PLUGIN = Mutant("lease-after-restart", LeaseAfterRestart)
