"""The broker filters pulls by what any member of the group subscribed to last.

Members that subscribe to different tags lose messages to each other's filters.

Source: https://github.com/apache/rocketmq/issues/2954 and
https://github.com/apache/rocketmq/issues/2836 (one subscription of a group and topic is kept).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.reading.reads import Reads
from shaketable.system.broker.tag_filter import TagFilter, tag_filter
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.requests import PullMessage


class _LastHeartbeat(Reads):
    """Asks the group first."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        group = self._groups.get(fields.consumer_group)
        known = group.subscriptions.get(fields.topic) if group else None
        if known is None:
            return super()._tags(fields)
        return tag_filter(known.expression, known.expression_type)


class TagsOfTheLastHeartbeat(Broker):
    """A broker that filters so."""

    reads_type = _LastHeartbeat


PLUGIN = Mutant(
    "tags-of-the-last-heartbeat",
    broker=TagsOfTheLastHeartbeat,
    hunt=Hunt("queue-batches", ("transfer",)),
)
