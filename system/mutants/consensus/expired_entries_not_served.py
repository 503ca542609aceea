"""A leader whose old entries have expired goes on comparing with a follower that needs them.

No snapshot is sent, so that a follower behind the retained log never catches up; DLedger's
leader looped on get() below its begin index.

Source: https://github.com/openmessaging/dledger/issues/87 and
https://github.com/apache/rocketmq/issues/1778 (bug E10).
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.dispatcher import DispatchState, EntryDispatcher


class _ComparesForEver(EntryDispatcher):
    """Asks again at the log's begin where the snapshot ought to be sent."""

    __slots__ = ()

    def install(self, begin_index: int) -> None:
        self._start_over(DispatchState.COMPARE, begin_index + 1)


class ExpiredEntriesNotServed(RaftCore):
    """A leader with such dispatchers."""

    dispatcher_type = _ComparesForEver


PLUGIN = Mutant("expired-entries-not-served", ExpiredEntriesNotServed)
