"""Consumers divide the queues among them in ranges of one length, and the rest belongs to nobody.

Source: https://github.com/apache/rocketmq-client-go/issues/419 (another division than that of the
other clients: some queues are consumed by none of them).
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.client import GroupMembership, MessageQueue
from shaketable.system.client.routes import allocate
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.mutants.client import parts_with


class _EqualRanges(GroupMembership):
    """Gives nobody a longer range than others have."""

    def _share(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        left_over = len(queues) % max(1, len(set(ids)))
        return allocate(sorted(queues)[: len(queues) - left_over], ids, self.client_id)


PLUGIN = Mutant(
    "own-division-of-queues",
    client=parts_with(_EqualRanges),
    hunt=Hunt("queue-push", ("kill", "pause")),
)
