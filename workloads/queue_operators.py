"""A message queue whose operators ask for what must be refused.

Source: RocketMQ's mqadmin; jepsen.nemesis.membership, whose operations may be refused.
"""

from __future__ import annotations

from shaketable.workloads.message_queue import QueueWorkload
from shaketable.workloads.queue_shape import Shape


class QueueOperators(QueueWorkload):
    """A consumer group's queues, beside operators who ask for what must be refused."""

    name = "queue-operators"
    shape = Shape(deletes_topics=True, has_misrequests=True)


PLUGIN = QueueOperators()
