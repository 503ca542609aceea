"""A consumer commits what it was given, before its handler has returned.

When it ends, or loses the queue, the messages that were being handled come to nobody again.

Source: https://github.com/apache/rocketmq/issues/2732 (LitePullConsumer: the offset of messages
that were dropped with their queue is committed).
"""

from __future__ import annotations

from shaketable.system.client import ClientParts, GroupConsumer
from shaketable.system.client.queue_reader import QueueReader
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.store.message import Message


class _Ahead(QueueReader):
    """Moves on before it hands over."""

    async def _consume(self, messages: list[Message]) -> bool:
        self._offset = messages[-1].queue_offset + 1
        return await super()._consume(messages)


class _GroupConsumer(GroupConsumer):
    reader_type = _Ahead


PLUGIN = Mutant(
    "committed-before-handled",
    client=ClientParts(group_consumer=_GroupConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
)
