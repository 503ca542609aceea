"""A batch of several messages is acknowledged whole, and the latter half of it is in no queue.

Source: https://github.com/apache/rocketmq/issues/2865 (messages of batches in DLedger mode got
offsets that others had, and some of them could never be consumed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.sends import Sends
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.batch_body import BatchMessage
from shaketable.system.remoting.requests import SendRequest


class _Half(Sends):
    """Builds the first half, and tells of as many messages as were sent."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent = 0

    def _checked_batch(self, request: SendRequest, topic: bytes) -> Sequence[BatchMessage]:
        messages = super()._checked_batch(request, topic)
        self._sent = len(messages)
        return messages[: -(-self._sent // 2)]

    def _told_ids(self, ids: list[bytes]) -> list[bytes]:
        return ids + ids[-1:] * (self._sent - len(ids))


class BatchHalfStored(Broker):
    """A broker that takes batches so."""

    sends_type = _Half


PLUGIN = Mutant(
    "batch-half-stored", broker=BatchHalfStored, hunt=Hunt("queue-batches", ("transfer",))
)
