"""A message that arrives wakes no pull that is held for it.

Consumers are answered when their time is over, and not before: what is there waits for that long.

Source: https://github.com/apache/rocketmq/pull/7359 (PullRequestHoldService: what arrives between
the look and the suspension wakes nobody).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.broker.reading.long_polling import HeldPulls
from shaketable.system.broker.reading.reads import Read, Reads
from shaketable.system.mutants import Hunt, Mutant


class _Sleeps(HeldPulls[Read]):
    """Looks at no arrival."""

    def take_arrived(self, queues: ConsumeQueues) -> list[Read]:
        """Return none."""
        for queue in queues.take_arrived():
            if queue in self._by_queue:
                queues.watch(queue)
        return []


class _Reads(Reads):
    held_type = _Sleeps


class HeldPullNotWoken(Broker):
    """A broker that holds pulls so."""

    reads_type = _Reads


PLUGIN = Mutant(
    "held-pull-not-woken", broker=HeldPullNotWoken, hunt=Hunt("queue-held", ("transfer",))
)
