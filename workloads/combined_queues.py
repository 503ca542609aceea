"""All that clients of a message queue do, side by side: for brokers whose logs are no registers."""

from __future__ import annotations

from shaketable.workloads.combined import Combined, Part
from shaketable.workloads.everything_clients import EverythingClients
from shaketable.workloads.queue_push import QueuePush


class EveryQueueClient(Combined):
    """A message queue and push consumers at once, each on its own topic."""


PLUGIN = EveryQueueClient(
    "combined-queues",
    (
        Part("queue", EverythingClients(), 6),
        Part("push", QueuePush(), 4),
    ),
)
