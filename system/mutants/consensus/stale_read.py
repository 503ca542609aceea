"""A leader answers reads at once, without asking whether it still leads.

A leader that was cut off, and replaced without knowing it, serves what has been overtaken.
DLedger's GET checks neither commitment nor a lease.

Source: DLedgerServer.handleGet (bug E19), https://github.com/openmessaging/dledger
(DLedgerServer.java)
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.raft.read_rounds import ReadRounds


class _HoldsForEver(ReadRounds):
    """Believes in its leadership without asking anybody."""

    __slots__ = ()

    def __init__(self, config: RaftConfig) -> None:
        super().__init__(config)

    def holds_lease(self, now_ms: float) -> bool:
        return True


class StaleRead(RaftCore):
    """A leader that serves every read at once."""

    reads_type = _HoldsForEver


PLUGIN = Mutant("stale-read", StaleRead)
