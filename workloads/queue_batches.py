"""A message queue with batches and tags: all of a batch, and of a tag just what bears it.

Source: RocketMQ's SEND_BATCH_MESSAGE, and subscriptions by TAG (FilterAPI).
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import BATCH_MAX, TAGS, Shape


class QueueBatches(QueueWorkload):
    """A consumer group's queues, with batches of up to eight messages, and tags asked for."""

    name = "queue-batches"
    shape = Shape(batch_max=BATCH_MAX, tags=TAGS)


PLUGIN = QueueBatches()
