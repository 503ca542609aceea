"""A leader keeps the leadership while its disk takes nothing.

It refuses every append, or waits for ever, and no other member can be elected as long as its
heartbeats go on.

Source: https://github.com/openmessaging/dledger/issues/287 (bug E15): heartbeats and elections
ignore disk errors.
"""

from __future__ import annotations

from shaketable.system.mutants import Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.disk_health import DiskHealth
from shaketable.system.raft.leadership import Leadership


class _AlwaysWell(DiskHealth):
    """Sees no stall, and lets a full disk lead."""

    __slots__ = ()

    def is_stalled(self, now_ms: float) -> bool:
        return False

    def may_lead(self, now_ms: float) -> bool:
        return True


class _Stays(Leadership):
    """Never hands over because it must leave."""

    def go_on_handing_over(self, now_ms: float, *, must_leave: bool) -> None:
        if not must_leave:
            super().go_on_handing_over(now_ms, must_leave=False)


class LeadsWithDeadDisk(RaftCore):
    """A member made of the two."""

    disk_type = _AlwaysWell
    leadership_type = _Stays


PLUGIN = Mutant("leads-with-dead-disk", LeadsWithDeadDisk)
