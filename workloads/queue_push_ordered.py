"""A message queue whose consumers are handed messages in order, each queue under its lock.

Source: RocketMQ's ConsumeMessageOrderlyService.
"""

from __future__ import annotations

from shaketable.workloads.queue_push import QueuePush


class QueuePushOrdered(QueuePush):
    """Consumers that are handed messages, one at a time for each queue, in the queue's order."""

    name = "queue-push-ordered"
    is_ordered = True
    checkers = tuple(name for name in QueuePush.checkers if name != "retried-messages")
    """What a handler failed at comes again in its place, and is not sent back."""


PLUGIN = QueuePushOrdered()
