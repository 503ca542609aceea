"""A follower calls everything up to its own end committed, and truncation leaves that so.

It commits min(commitIndex, its end) although its tail may differ from the leader's. When the
tail is truncated, the committed index stays above the end of the log, and applied entries are
not those of the group any more.

Source: https://github.com/openmessaging/dledger/issues/316 and
https://github.com/openmessaging/dledger/issues/317 (bug E3): DLedger's handleDoCommit and
truncate.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.follower import Follower
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import PushRequest


class _CommitsItsTail(Follower):
    """Limits the commit index by its own end, whatever stands there."""

    __slots__ = ()

    def _commit_point(self, push: PushRequest) -> int:
        return min(push.commit_index, self._ledger.log.end_index)


class _TruncatesAnything(Ledger):
    """Truncates what it called committed, and goes on calling it so."""

    def _may_truncate(self, end_index: int) -> bool:
        return True


class CommittedSurvivesTruncation(RaftCore):
    """A member made of the two."""

    follower_type = _CommitsItsTail
    ledger_type = _TruncatesAnything


PLUGIN = Mutant("committed-survives-truncation", CommittedSurvivesTruncation)
