"""A tag whose hash code is below 0 matches no message.

Source: our own, after Java's String.hashCode, whose sign RocketMQ keeps in the consume queue: who
reads it as an unsigned number finds no message of half of all tags.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.mode import DLEDGER, Mode
from shaketable.system.broker.reading.reads import Reads
from shaketable.system.broker.tag_filter import TagFilter
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.requests import PullMessage


class _Unsigned(Reads):
    """Compares codes as if none were below 0."""

    def _tags(self, fields: PullMessage) -> TagFilter | None:
        tags = super()._tags(fields)
        return tags and TagFilter(frozenset(code % (1 << 32) for code in tags.codes))


class NegativeTagCodesUnmatched(Broker):
    """A broker that filters so."""

    def __init__(self, *args: Any, mode: Mode = DLEDGER, **more: Any) -> None:
        super().__init__(*args, mode=mode, **more)
        consumers = self._groups.heartbeats.groups
        parts = self.core, self._reput, self._outbox, self._config, consumers
        self._reads = _Unsigned(*parts, mode.anywhere_codes)


PLUGIN = Mutant(
    "negative-tag-codes-unmatched",
    broker=NegativeTagCodesUnmatched,
    hunt=Hunt("queue-batches", ("transfer",)),
)
