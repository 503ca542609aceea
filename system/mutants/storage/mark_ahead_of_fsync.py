"""The mark that says how far the log is synced runs ahead of the fsync, up to the log's end.

After a loss of power the mark vouches for entries that are gone: the member finds its log damaged
and does not start, although nothing damaged it.

Source: https://github.com/apache/rocketmq/issues/10666 (bug E31), where positions and files part in
the same way; Pillai et al., "All File Systems Are Not Created Equal" (OSDI 2014), on what is
persisted out of order.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.batch import Batch
from shaketable.system.store.commit_log import CommitLog


class MarkAheadOfFsync(CommitLog):
    """Moves its mark to where it has written."""

    def append(self, batch: Batch) -> None:
        """Write, and note at once that it is durable."""
        super().append(batch)
        self._mark.move(self.end)


PLUGIN = Mutant("mark-ahead-of-fsync", commit_log=MarkAheadOfFsync)
