"""The delay of a message counts from when its sender says it was born, not from when it was stored.

A sender whose clock is behind, or that says nothing, gets its messages delivered at once.

Source: https://github.com/apache/pulsar/pull/25310 (a client's clock decides when a delayed
message comes); RocketMQ counts from the store's clock (ScheduleMessageService).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_delivery import DelayDelivery
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.store.message import decode_message


class _FromBorn(DelayDelivery):
    """Asks the message itself."""

    def _must_wait(self, level: int, place: tuple[int, int], due_ms: int, wall_ms: int) -> bool:
        message = decode_message(self._core.log.read(*place))
        return wall_ms < message.born_ms + self._config.delay_ms(level) <= due_ms


class DelayedByBornTime(Broker):
    """A broker that delivers so."""

    delays_type = _FromBorn


PLUGIN = Mutant(
    "delayed-by-born-time", broker=DelayedByBornTime, hunt=Hunt("queue-delays", ("clock",))
)
