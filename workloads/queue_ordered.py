"""A message queue that is consumed in order: one consumer at a time, under the queue's lock.

Source: RocketMQ's ConsumeMessageOrderlyService and RebalanceLockManager.
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import Shape


class QueueOrdered(QueueWorkload):
    """Queues that consumers of one group lock, consume, commit and unlock, whoever comes first."""

    name = "queue-ordered"
    shape = Shape(is_ordered=True, has_plain=False)


PLUGIN = QueueOrdered()
