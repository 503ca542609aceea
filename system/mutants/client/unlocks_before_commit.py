"""A consumer that lets go of an ordered queue gives the lock back first, and commits then.

Whoever gets the queue begins in front of what was consumed, and consumes it once more.

Source: https://github.com/apache/rocketmq/issues/4086 (the lock should be released when the
offset is committed, and not before).
"""

from __future__ import annotations

from shaketable.system.client import ClientParts, GroupConsumer, MessageQueue
from shaketable.system.mutants import Hunt, Mutant


class _UnlocksFirst(GroupConsumer):
    """Lets others in at once."""

    async def _release(self, queue: MessageQueue) -> None:
        await self._unlock((queue,))
        await super()._release(queue)


PLUGIN = Mutant(
    "unlocks-before-commit",
    client=ClientParts(group_consumer=_UnlocksFirst),
    hunt=Hunt("queue-push-ordered", ("kill", "pause")),
)
