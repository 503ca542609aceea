"""A message queue whose offsets are committed one-way as well, and set back and forward.

Source: RocketMQ's UPDATE_CONSUMER_OFFSET (one-way by default), mqadmin resetOffsetByTime.
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import Shape


class QueueOffsets(QueueWorkload):
    """A consumer group's queues, whose offsets are committed one-way too, and reset."""

    name = "queue-offsets"
    shape = Shape(is_oneway=True, is_reset=True, deletes_topics=True)


PLUGIN = QueueOffsets()
