"""The lease of a queue's lock is counted in seconds where milliseconds are meant: it lasts 60 ms.

Another consumer is given the queue while the first is at work in it.

Source: our own, after RocketMQ's RebalanceLockManager, whose REBALANCE_LOCK_MAX_LIVE_TIME is in
milliseconds and whose clients count their own in seconds.
"""

from __future__ import annotations

from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.groups.consumer_groups import LEASE_MS, QueueLocks
from shaketable.system.broker.groups.group_requests import GroupRequests
from shaketable.system.mutants import Hunt, Mutant


class _InSeconds(GroupRequests):
    """Takes locks of the wrong unit whenever a term begins."""

    def _current_locks(self) -> QueueLocks:
        is_new = self._locks_term != self._events.term
        super()._current_locks()
        if is_new:
            self._locks = QueueLocks(lease_ms=LEASE_MS / 1_000)
        return self._locks


class LockLeaseInSeconds(Broker):
    """A broker with such locks."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._groups.__class__ = _InSeconds  # the same object, with other locks


PLUGIN = Mutant(
    "lock-lease-in-seconds",
    broker=LockLeaseInSeconds,
    hunt=Hunt("queue-ordered", ("transfer",)),
)
