"""A dispatcher that streams sends only what is new, whatever the follower says it lacks.

While nothing is appended, a follower that lost pushes on the way stays behind for ever:
DLedger's dispatcher in APPEND sends only COMMITs then and ignores their result.

Source: https://github.com/openmessaging/dledger/issues/61 (bug E11).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher


class _StreamsOnly(EntryDispatcher):
    """Never falls back to comparing."""

    __slots__ = ()

    def refused(self, prev_index: int) -> bool:
        return self.state is not DispatchState.APPEND and super().refused(prev_index)

    def is_stalled(self, now_ms: float) -> bool:
        return False


class IdleFollowerNotRefilled(RaftCore):
    """A leader with such dispatchers."""

    dispatcher_type = _StreamsOnly


PLUGIN = Mutant("idle-follower-not-refilled", IdleFollowerNotRefilled)
