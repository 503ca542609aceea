"""A message queue with delayed messages: each comes once, none early, none is lost.

Source: RocketMQ's delay levels (ScheduleMessageService).
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import DELAYS_MS, Shape


class QueueDelays(QueueWorkload):
    """A consumer group's queues, to which messages come at once, or after a second, or five.

    A drain ends with a message of each delay: all that were sent before it have come by then.
    """

    name = "queue-delays"
    shape = Shape(delays_ms=DELAYS_MS)


PLUGIN = QueueDelays()
