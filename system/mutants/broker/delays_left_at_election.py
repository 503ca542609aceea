"""A new leader delivers what is delayed from its election on, and nothing that waited by then.

Source: our own, after RocketMQ's slaves, which run no ScheduleMessageService: one that becomes
master and takes the end of a level's queue for its progress leaves all that waits there.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_delivery import DelayDelivery
from shaketable.system.broker.delays.delay_levels import SCHEDULE_TOPIC
from shaketable.system.mutants import Hunt, Mutant


class _FromTheEnd(DelayDelivery):
    """Begins each term at the end of every level's queue."""

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        if level not in self._next:
            self._next[level] = self._reput.queues.end((SCHEDULE_TOPIC, level))
        return super()._deliver_level(level, count_max, bytes_max, wall_ms)


class DelaysLeftAtElection(Broker):
    """A broker that delivers so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._delays = _FromTheEnd(self.core, self._reput, self._appender, self._config)


PLUGIN = Mutant(
    "delays-left-at-election",
    broker=DelaysLeftAtElection,
    hunt=Hunt("queue-delays", ("transfer", "kill")),
)
