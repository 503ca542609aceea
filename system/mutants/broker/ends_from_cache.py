"""A leader answers for a queue's end with what it answered before, for a few requests.

What was acknowledged meanwhile is not counted.

Source: our own; RocketMQ's getMaxOffsetInQueue likewise reads a consume queue that lags behind
what was acknowledged (DLEDGER.md section 0, row 1).
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.reading.queries import EndQuery
from shaketable.system.broker.reading.reads import Read, Reads
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import QueueOffsetResponse

ANSWERS = 4
"""So many requests are answered with one look at the queue."""


class _FromCache(Reads):
    """Remembers the ends of queues, and how often each was told."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._ends: dict[tuple[str, int], tuple[int, int]] = {}

    def _serve(self, read: Read, *, is_confirmed: bool) -> None:
        asked = read.request
        if not isinstance(asked, EndQuery) or asked.code != RequestCode.GET_MAX_OFFSET:
            super()._serve(read, is_confirmed=is_confirmed)
            return
        fields = asked.fields
        key = fields.topic, fields.queue_id
        end, left = self._ends.get(key, (0, 0))
        if not left:
            end, left = self._reput.queues.end((fields.topic.encode(), fields.queue_id)), ANSWERS
        self._ends[key] = end, left - 1
        self._outbox.answer(read.connection, read.command, ext=QueueOffsetResponse(end).to_ext())


class EndsFromCache(Broker):
    """A broker that answers for ends so."""

    reads_type = _FromCache


PLUGIN = Mutant(
    "ends-from-cache", broker=EndsFromCache, hunt=Hunt("log", ("transfer", "partition"))
)
