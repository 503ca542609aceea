"""Recovery checks the head of an entry, and not its body.

Where the head of the last entry reached the disk and its body did not, zeros are served as a
message, voted with, and sent to others.

Source: https://github.com/apache/rocketmq/issues/7437 (a message of which the end was not written
passes the check at recovery, since its properties are in no CRC).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.batch import LogEnd
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.entry import ENTRY_MAGIC, HEADER, chain_crc
from shaketable.system.store.recovery import LogScan


class _HeadsOnly(LogScan):
    """Takes the body on trust where the head fits."""

    def _verify(self, window: memoryview, at: int, position: int) -> LogEnd:
        head = window[at : at + HEADER.size]
        if len(head) == HEADER.size:
            magic, size, index, term, stored, _, chain, _, _ = HEADER.unpack(head)
            fits = (magic, index, stored) == (ENTRY_MAGIC, self.end.index + 1, position)
            if fits and chain == chain_crc(self.end.chain_crc, head) and at + size <= len(window):
                return LogEnd(index, term, position + size, chain)
        return super()._verify(window, at, position)


class TornBodyAccepted(CommitLog):
    """A log that recovers so."""

    scan_type = _HeadsOnly


PLUGIN = Mutant(
    "torn-body-accepted", commit_log=TornBodyAccepted, hunt=Hunt("log", ("power", "crash-loop"))
)
