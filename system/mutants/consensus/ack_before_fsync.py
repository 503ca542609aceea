"""A follower acknowledges entries that are in its memory and not yet on its disk.

A crash then loses a copy that was counted, and with two of them what was committed.

Source: Raft figure 2 (respond to RPCs after updating stable storage); dissertation 10.2.1,
where only the leader may write in parallel with sending.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.follower import Follower


class _CountsMemory(Follower):
    """Counts what stands in memory."""

    __slots__ = ()

    def _acknowledged_match(self) -> int:
        return self.matched_index


class AckBeforeFsync(RaftCore):
    """A member that follows like that."""

    follower_type = _CountsMemory


PLUGIN = Mutant("ack-before-fsync", AckBeforeFsync)
