"""A truncation moves the positions in memory and leaves the old tail in the files.

After a restart the removed entries stand there again and may win an election.

Source: https://github.com/apache/rocketmq/issues/10666 (bug E31).
"""

from __future__ import annotations

from system.mutants import Mutant
from system.raft.batch import LogEnd
from system.store.commit_log import CommitLog


class TruncationInMemory(CommitLog):
    """Cuts nothing out of its files."""

    def _cut(self, end: LogEnd, until: int, last_index: int) -> None:
        return


PLUGIN = Mutant("truncation-in-memory", commit_log=TruncationInMemory)
