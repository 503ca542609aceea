"""Entries get into the consume queues when they stand in the log, not when they are committed.

Consumers read messages that a new leader then overwrites, and queue offsets go wrong.

Source: DefaultMessageStore.ReputMessageService, which in DLedger mode has to stop at
committedPos (DLEDGER.md section D.1).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.mutants import GROUP, Hunt, Mutant


class DispatchBeforeCommit(Broker):
    """Dispatches everything that the log holds."""

    def _dispatch_limit(self, commit_index: int) -> int:
        return self.core.log.end_index


PLUGIN = Mutant(
    "dispatch-before-commit",
    broker=DispatchBeforeCommit,
    targets=GROUP,
    hunt=Hunt("log", ("kill", "partition")),
)
