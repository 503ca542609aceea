"""A delayed message whose delivery cannot be appended is passed over.

With a full disk, or too much that is not acknowledged yet, delayed messages are lost.

Source: https://github.com/apache/rocketmq/issues/9249 (ScheduleMessageService goes on at
nextOffset where the delivery failed).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.delays.delay_delivery import DelayDelivery
from shaketable.system.mutants import GROUP, MASTERS, Hunt, Mutant


class _GoesOn(DelayDelivery):
    """Takes what it has built for delivered."""

    def _refused(self, before: dict[int, int]) -> None:
        return


class DelaySkippedWhenRefused(Broker):
    """A broker that delivers so."""

    delays_type = _GoesOn


PLUGIN = Mutant(
    "delay-skipped-when-refused",
    broker=DelaySkippedWhenRefused,
    targets=(*MASTERS, *GROUP),
    hunt=Hunt("queue-delays", ("disk-full", "kill")),
)
