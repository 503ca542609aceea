"""After a truncation the position up to which data are flushed stays where it was.

What is appended in place of the removed tail lies below that position, so that no fsync is
done for it, and a loss of power takes what was acknowledged.

Source: https://github.com/openmessaging/dledger/commit/998e421 (bug E13).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.batch import LogEnd
from shaketable.system.store.commit_log import CommitLog


class FlushedBeyondTruncation(CommitLog):
    """Skips an fsync up to the highest position that was ever flushed."""

    _flushed_position = 0

    def sync(self) -> None:
        """Sync only what lies above the highest position."""
        if self.end.position <= self._flushed_position:
            self.synced = self.end
            return
        super().sync()
        self._flushed_position = self.end.position

    def truncate(self, end_index: int) -> LogEnd:
        """Truncate, and keep that position."""
        self._flushed_position = max(self._flushed_position, self.synced.position)
        return super().truncate(end_index)


PLUGIN = Mutant("flushed-beyond-truncation", commit_log=FlushedBeyondTruncation)
