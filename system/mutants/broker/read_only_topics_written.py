"""A broker does not look whether a topic may be written.

Who sends to one that an operator has closed for writes is told that it is stored, and it is.

Source: our own, after RocketMQ's AbstractSendMessageProcessor.msgCheck, which refuses it with
NO_PERMISSION ("the topic sending message is forbidden").
"""

from __future__ import annotations

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.sends import Sends
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.remoting.requests import SendMessageV2, SendRequest


class _AnyTopic(Sends):
    """Looks only for the queue."""

    def _is_refused(
        self,
        connection: Connection,
        request: SendRequest,
        fields: SendMessageV2,
        topic: bytes,
        wall_ms: int,
    ) -> bool:
        config = self._topics.get(fields.topic)
        if config is not None and 0 <= fields.queue_id < config.write_queue_nums:
            return False
        return super()._is_refused(connection, request, fields, topic, wall_ms)


class ReadOnlyTopicsWritten(Broker):
    """A broker that takes sends so."""

    sends_type = _AnyTopic


PLUGIN = Mutant(
    "read-only-topics-written",
    broker=ReadOnlyTopicsWritten,
    hunt=Hunt("queue-operators", ("transfer",)),
)
