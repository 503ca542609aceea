"""What a full disk left undone of a batch of writes is forgotten, and counts as done.

An exception in the middle of a batch append left the rest uncompleted and nobody tried it
again; here the rest is even said to be durable.

Source: https://github.com/openmessaging/dledger/issues/142 (bug E8).
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.mutants import Mutant
from shaketable.system.raft.protocol import Write
from shaketable.system.store.log_writer import LogWriter


class PartialWriteNotRetried(LogWriter):
    """Reports nothing as left undone."""

    def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Carry out what there is room for."""
        super().carry_out(writes)
        return ()


PLUGIN = Mutant("partial-write-not-retried", log_writer=PartialWriteNotRetried)
