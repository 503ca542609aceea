"""Invariant: a leader is ticked in time, whatever else it does.

At a tick a leader looks whether a majority still answers it, whether its disk has stalled, what was
lost and what was promised until when. One that is never ticked while it works does none of this.
Source: etcd's raft, whose Tick drives checkQuorum and the end of a transfer.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from shaketable.system.invariants.violated import Violated
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership

INTERVALS_MAX: Final = 3
"""A leader's tick is late after so many heartbeat intervals."""
STEPS_MAX: Final = 20
LATE_MAX_MS: Final = 1_000.0
"""A process that was paused goes on with what waited: it has to take so many steps with its tick
late, over so long, to be accused."""

_leadership = attrgetter("_leadership")


class Ticks:
    """When a member that leads was ticked last, by its own clock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leading: Leadership | None = None
        self._ticked_ms = self._late_since_ms = 0.0
        self._late_steps = 0

    def ticked(self, now_ms: float) -> None:
        """The member was ticked."""
        self._ticked_ms, self._late_steps = now_ms, 0

    def stepped(self, core: RaftCore, now_ms: float) -> None:
        """The member has taken a step. Raises Violated."""
        leading: Leadership | None = _leadership(core)
        if leading is not self._leading:
            self._leading = leading
            self.ticked(now_ms)
        late_ms = INTERVALS_MAX * core.config.heartbeat_interval_ms
        if leading is None or now_ms <= self._ticked_ms + late_ms:
            return
        if self._late_steps == 0:
            self._late_since_ms = now_ms
        self._late_steps += 1
        if self._late_steps >= STEPS_MAX and now_ms > self._late_since_ms + LATE_MAX_MS:
            raise Violated(
                "leaders-are-ticked",
                f"it leads and was not ticked for {now_ms - self._ticked_ms:.0f} ms, in which it"
                f" took {self._late_steps} steps and more",
                self._name,
            )
