"""Of a subscription to several tags the broker lets messages of the first one through alone.

Source: https://github.com/apache/rocketmq/issues/5388 (a group subscribes to two tags of a topic,
and most messages of one of them are filtered out).
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.reading.reads import Reads
from shaketable.system.broker.tag_filter import TagFilter, tag_filter
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.requests import PullMessage


class _FirstTag(Reads):
    """Reads a subscription up to its first tag."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        if super()._tags(fields) is None:
            return None
        first, _, _ = (fields.subscription or "").partition("||")
        return tag_filter(first.strip(), fields.expression_type)


class FirstTagOnly(Broker):
    """A broker that filters so."""

    reads_type = _FirstTag


PLUGIN = Mutant("first-tag-only", broker=FirstTagOnly, hunt=Hunt("queue-batches", ("transfer",)))
