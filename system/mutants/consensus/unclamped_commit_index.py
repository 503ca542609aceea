"""A follower takes over the leader's commit index as it is, also beyond its own end.

What it appends there later counts as committed at once, even when it comes from a leader of
its own making and is to be truncated.

Source: https://github.com/openmessaging/dledger/issues/278 (bug E4).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.follower import Follower
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.protocol import PushRequest


class _BelievesTheIndex(Follower):
    """Never limits the leader's commit index."""

    __slots__ = ()

    def _commit_point(self, push: PushRequest) -> int:
        return push.commit_index


class _CommitsTheFuture(Ledger):
    """Takes a commit index beyond the end of its log."""

    def commit(self, index: int) -> bool:
        is_new = index > self.commit_index
        self.commit_index = max(self.commit_index, index)
        return is_new


class UnclampedCommitIndex(RaftCore):
    """A member made of the two."""

    follower_type = _BelievesTheIndex
    ledger_type = _CommitsTheFuture


PLUGIN = Mutant("unclamped-commit-index", UnclampedCommitIndex)
