"""A queue's lock counts from its first renewal: until then anybody else of the group gets it too.

Two consumers handle the messages of an ordered queue at the same time.

Source: https://github.com/apache/rocketmq/pull/9194 (RebalanceLockManager made an entry without
the time at which it was taken).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.groups.consumer_groups import LockedQueue, QueueLocks
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.mutants import Hunt, Mutant


class _WithoutTime(QueueLocks):
    """Makes locks that look as if their lease were over."""

    def lock(
        self, group: str, client_id: str, queues: Sequence[LockedQueue], now_ms: float
    ) -> list[LockedQueue]:
        """Lock, and leave the lease of what is new where it began."""
        own = {
            queue
            for queue in queues
            if (lock := self._locks.get((group, queue))) is not None and lock.client_id == client_id
        }
        held = super().lock(group, client_id, queues, now_ms)
        for queue in set(held) - own:
            self._locks[group, queue] = replace(self._locks[group, queue], until_ms=now_ms)
        return held


class _Groups(GroupRequests):
    locks_type = _WithoutTime


class LockCountsFromRenewal(Broker):
    """A broker that locks so."""

    groups_type = _Groups


PLUGIN = Mutant(
    "lock-counts-from-renewal",
    broker=LockCountsFromRenewal,
    hunt=Hunt("queue-ordered", ("transfer",)),
)
