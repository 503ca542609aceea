"""A handover that does not come about is never given up: the leader refuses all appends.

Source: https://github.com/hashicorp/raft/pull/493 (leadershipTransferInProgress stayed true after
a transfer that failed) and https://github.com/hashicorp/raft/issues/696.
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.transfer import Transfer


class _ForGood(Transfer):
    """Waits for its target."""

    __slots__ = ()

    def give_up(self, now_ms: float) -> bool:
        """Do not."""
        del now_ms
        return False


class TransferNeverGivenUp(RaftCore):
    """A leader that hands over so."""

    transfer_type = _ForGood


PLUGIN = Mutant(
    "transfer-never-given-up",
    TransferNeverGivenUp,
    hunt=Hunt("log", ("transfer", "pause", "partition")),
)
