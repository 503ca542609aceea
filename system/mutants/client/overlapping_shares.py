"""Consumers divide the queues among them, and round up where a share ends: some belong to two.

Source: https://github.com/apache/rocketmq-client-go/issues/419 (another division than that of the
other clients: messages of some queues are consumed by two of them).
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.client import GroupMembership, MessageQueue
from shaketable.system.client.routes import allocate
from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.mutants.client import parts_with


class _RoundsUp(GroupMembership):
    """Takes the first queue of the next share as well."""

    def _share(
        self, queues: Sequence[MessageQueue], ids: Sequence[str]
    ) -> tuple[MessageQueue, ...]:
        in_order, mine = sorted(queues), allocate(queues, ids, self.client_id)
        if not mine:
            return mine
        end = in_order.index(mine[-1]) + 1
        return (*mine, *in_order[end : end + 1])


PLUGIN = Mutant(
    "overlapping-shares",
    client=parts_with(_RoundsUp),
    hunt=Hunt("queue-push"),
)
