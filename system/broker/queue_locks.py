"""Locks of queues for ordered consumption: one client of a group at a time, for a lease.

They live in the leader's memory, as RocketMQ's do: a new leader knows none. A client whose lock
was not renewed stops consuming long before the lease is over (it counts 30 s, the broker 60 s).
Source: RocketMQ's RebalanceLockManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEASE_MS = 60_000.0
LOCKS_MAX = 100_000

LockedQueue = tuple[str, str, int]
"""Topic, broker name and queue id, as the client wrote them."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    until_ms: float


class QueueLocks:
    """Who may consume which queue in order, by group."""

    def __init__(self, *, lease_ms: float = LEASE_MS, locks_max: int = LOCKS_MAX) -> None:
        self._lease_ms = lease_ms
        self._locks_max = locks_max
        self._locks: dict[tuple[str, LockedQueue], _Lock] = {}

    def __len__(self) -> int:
        """How many locks are known, those whose lease is over too."""
        return len(self._locks)

    def lock(
        self, group: str, client_id: str, queues: Sequence[LockedQueue], now_ms: float
    ) -> list[LockedQueue]:
        """Lock or renew what is free; return the queues that the client holds now."""
        held = []
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is None:
                if len(self._locks) >= self._locks_max and not self._forget_expired(now_ms):
                    continue
                lock = self._locks[group, queue] = _Lock(client_id, now_ms)
            elif lock.client_id != client_id and now_ms < lock.until_ms:
                continue
            lock.client_id, lock.until_ms = client_id, now_ms + self._lease_ms
            held.append(queue)
        return held

    def unlock(self, group: str, client_id: str, queues: Sequence[LockedQueue]) -> None:
        """Give up what the client holds of these."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]

    def clear(self) -> None:
        """Forget all locks: this member leads no more."""
        self._locks.clear()

    def _forget_expired(self, now_ms: float) -> bool:
        """Make room; True if there is some."""
        for key in [key for key, lock in self._locks.items() if lock.until_ms <= now_ms]:
            del self._locks[key]
        return len(self._locks) < self._locks_max
