"""A message queue whose polls wait at its end: a message that is there comes within a bound.

Source: RocketMQ's long polling (PullRequestHoldService).
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import HOLD_S, Shape


class QueueHeld(QueueWorkload):
    """A consumer group's queues, whose polls wait for a message, for three seconds at most."""

    name = "queue-held"
    shape = Shape(hold_s=HOLD_S)


PLUGIN = QueueHeld()
