"""An append counts as durable when the operating system has it.

Where a majority loses power at once, acknowledged messages are gone. DLedger acknowledges from
the page cache and ignores flushDiskType=SYNC_FLUSH.

Source: DLedgerCommitLog and DLedgerMmapFileStore (bug E18), https://github.com/apache/rocketmq
(store, DLedgerCommitLog.java)
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.store.log_writer import LogWriter


class AckFromPageCache(LogWriter):
    """Promises fsync, and does none on the write path."""

    def sync(self) -> None:
        """Leave it to the operating system."""
        return


PLUGIN = Mutant("ack-from-page-cache", log_writer=AckFromPageCache)
