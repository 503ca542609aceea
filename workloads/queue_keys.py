"""A message queue whose messages are found by key and by id as well.

Source: RocketMQ's QUERY_MESSAGE and VIEW_MESSAGE_BY_ID, MQAdmin.queryMessage and viewMessage.
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import Shape


class QueueKeys(QueueWorkload):
    """A consumer group's queues, whose messages bear keys, and are asked for by key and by id."""

    name = "queue-keys"
    shape = Shape(has_keys=True)


PLUGIN = QueueKeys()
