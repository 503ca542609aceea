"""A consumer that leaves its group tells no broker, and counts as told.

Where its connection stays open for others its queues belong to it still, and nobody consumes them.

Source: https://github.com/apache/rocketmq/issues/7556 (queues of a consumer that unsubscribed are
given to nobody).
"""

from __future__ import annotations

from shaketable.system.client import GroupMembership
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.mutants.client import parts_with


class _Silent(GroupMembership):
    """Leaves, and says nothing."""

    async def leave(self) -> tuple[str, ...]:
        return await self._brokers()


PLUGIN = Mutant(
    "left-without-word",
    client=parts_with(_Silent),
    hunt=Hunt("queue-operators", ("transfer",)),
)
