"""A member without a vote stands for election when it hears no leader.

Source: https://github.com/lni/dragonboat/issues/94 (an observer becomes a follower by a snapshot,
and may start to vote and campaign).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.core import RaftCore


class LearnerStands(RaftCore):
    """A member that stands whatever it is."""

    def _may_stand(self) -> bool:
        return bool(self.membership.voters) and self._disk.may_lead(self._now_ms)


PLUGIN = Mutant("learner-stands", LearnerStands, hunt=Hunt("log", ("wipe", "members", "partition")))
