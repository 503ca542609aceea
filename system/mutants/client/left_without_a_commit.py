"""A consumer that leaves in good order commits nothing any more, and only says that it leaves.

What it handled since its last commit comes again to whoever gets its queues.

Source: https://github.com/apache/rocketmq/pull/64 (ROCKETMQ-102: at a shutdown the offset that is
persisted is not that of the latest consumed message).
"""

from __future__ import annotations

import trio

from shaketable.system.client import ClientParts, GroupConsumer
from shaketable.system.mutants import Hunt, Mutant


class _GroupConsumer(GroupConsumer):
    """Commits while it consumes."""

    _is_over = False

    async def _consume(self, nursery: trio.Nursery) -> None:
        try:
            await super()._consume(nursery)
        finally:
            self._is_over = True

    async def _commit_all(self) -> None:
        if self._is_over:
            await trio.lowlevel.checkpoint()
        else:
            await super()._commit_all()


PLUGIN = Mutant(
    "left-without-a-commit",
    client=ClientParts(group_consumer=_GroupConsumer),
    hunt=Hunt("queue-push"),
)
