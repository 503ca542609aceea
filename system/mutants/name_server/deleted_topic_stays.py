"""A topic that operators delete stays in the routes as long as its brokers are there.

Source: https://github.com/apache/rocketmq/issues/288 (the route of a deleted topic is updated by
a restart of the name server alone).
"""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.nameserver.registry import RouteRegistry


class DeletedTopicStays(RouteRegistry):
    """Deletes no topic."""

    def delete_topic(self, topic: str) -> None:
        """Do nothing."""


PLUGIN = Mutant(
    "deleted-topic-stays",
    registry=DeletedTopicStays,
    hunt=Hunt("queue-offsets", ("kill", "partition")),
)
