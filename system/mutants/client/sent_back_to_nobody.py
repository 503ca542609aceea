"""What a handler failed at is sent back to a wrong address, and nobody looks at the answer.

The group goes on behind the message, which comes again to nobody.

Source: https://github.com/apache/rocketmq-client-go/issues/624 (sending back fails where the
message's store host is not the broker's address).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from shaketable.system.client import ClientParts, GroupConsumer
from shaketable.system.client.queue_reader import QueueReader
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.store.message import Message


class _ToNobody(QueueReader):
    """Takes for granted that it came there."""

    async def _send_back(self, messages: Sequence[Message], delay_level: int) -> bool:
        await trio.lowlevel.checkpoint()
        return True


class _GroupConsumer(GroupConsumer):
    reader_type = _ToNobody


PLUGIN = Mutant(
    "sent-back-to-nobody",
    client=ClientParts(group_consumer=_GroupConsumer),
    hunt=Hunt("queue-push", ("kill", "pause")),
)
