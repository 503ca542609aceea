"""A follower replaces its tail by every push, also by an old one that only repeats what it has.

A push that was delayed on the way removes newer entries which the follower has acknowledged
since, and which may be committed.

Source: Raft figure 2, AppendEntries receiver, step 3 (only a *conflicting* entry is deleted);
a trap that Ongaro's raft-dev list and MIT's 6.824 guide name first.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.batch import Batch
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import Ledger


class _ReplacesItsTail(Ledger):
    """Never sees that it holds a batch already, and lets committed entries go."""

    def _last_shared(self, batch: Batch) -> int:
        return max(self.log.begin.index, batch.first_index - 1)

    def _may_truncate(self, end_index: int) -> bool:
        return True


class StalePushTruncates(RaftCore):
    """A member with such a ledger."""

    ledger_type = _ReplacesItsTail


PLUGIN = Mutant("stale-push-truncates", StalePushTruncates)
