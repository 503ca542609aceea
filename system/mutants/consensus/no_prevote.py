"""A member that hears nobody raises its term at once, and everybody follows the highest term.

A member that can send but not hear deposes the leader again and again; after a partition
heals, the leader of the majority has to go for nothing (a re-election storm).

Source: https://github.com/openmessaging/dledger/pull/25,
https://github.com/openmessaging/dledger/pull/37 and
https://github.com/openmessaging/dledger/issues/60 (bug E12); dissertation 4.2.3 and 9.6.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.protocol import VoteRequest


class NoPrevote(RaftCore):
    """Stands for election without a canvass, and lets live leaders be disturbed."""

    def _canvass(self) -> None:
        if self._may_stand():
            self._campaign()
        else:
            self._become_follower(self.term, None)

    def _must_not_disturb(self, request: VoteRequest) -> bool:
        return False


PLUGIN = Mutant("no-prevote", NoPrevote)
