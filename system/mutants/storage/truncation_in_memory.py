"""A truncation moves the positions in memory and leaves the files as they are.

After a restart the removed entries stand there again and may win an election; or what was written
over them contradicts what the synced-to mark says, and the member does not start.

Source: https://github.com/apache/rocketmq/issues/10666 (bug E31).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.batch import LogEnd
from shaketable.system.store.commit_log import CommitLog


class TruncationInMemory(CommitLog):
    """Cuts nothing out of its files, and does not lower its mark."""

    def _truncate(self, end_index: int) -> LogEnd:
        end = self.log_end_at(end_index)
        self.spans = tuple(span for span in self.spans if span[0] <= end_index)
        self.memberships = tuple(held for held in self.memberships if held[0] <= end_index)
        self.synced = min(self.synced, end, key=lambda end: end.index)
        self.end = end
        self._truncations += 1
        return end


PLUGIN = Mutant("truncation-in-memory", commit_log=TruncationInMemory)
