"""A learner's copy counts towards the majority that commits.

A new member has no vote yet, so that an entry may be committed which no majority of voters
has, and the next leader lacks it.

Source: dissertation 4.2.1 (a server that catches up is not counted yet).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.membership import Membership


class _CountsEverybody(Leadership):
    """Counts every follower, and asks for a majority of the voters only."""

    def adopt(self, membership: Membership, now_ms: float) -> None:
        super().adopt(membership, now_ms)
        self.voting = list(self.dispatchers.values())


class LearnersCount(RaftCore):
    """A leader that counts like that."""

    leadership_type = _CountsEverybody


PLUGIN = Mutant("learners-count", LearnersCount)
