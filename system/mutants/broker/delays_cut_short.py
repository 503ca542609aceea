"""A delayed message is delivered as if the time of the level before were over.

Source: our own, after RocketMQ's delayLevelTable, whose levels count from 1: an index from 0 in
one place of two gives every message the delay before its own, and the first level none.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_delivery import DelayDelivery
from shaketable.system.mutants import Hunt, Mutant


class _LevelBefore(DelayDelivery):
    """Looks at each level as late as the time between it and the one before."""

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        before_ms = self._config.delay_ms(level - 1) if level else 0
        ahead_ms = max(0, self._config.delay_ms(level) - before_ms)
        return super()._deliver_level(level, count_max, bytes_max, wall_ms + ahead_ms)


class DelaysCutShort(Broker):
    """A broker that delivers so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._delays = _LevelBefore(self.core, self._reput, self._appender, self._config)


PLUGIN = Mutant(
    "delays-cut-short",
    broker=DelaysCutShort,
    hunt=Hunt("queue-delays", ("transfer",)),
)
