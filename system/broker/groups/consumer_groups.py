"""Consumer groups and their current clients, from heartbeats. In memory only.

Every member of a broker group keeps its own table, since clients send heartbeats to all brokers
that they know. When a group's clients or subscriptions change, all its clients are notified, so
that they rebalance.
Source: RocketMQ's ConsumerManager, ConsumerGroupInfo, ProducerManager and
DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shaketable.system.broker.effects import Connection

GROUPS_MAX = 10_000
MEMBERS_MAX = 10_000
"""Limit for one group."""
CLIENT_SILENT_MAX_MS = 120_000.0
"""A client that is silent for longer is removed (RocketMQ's channelExpiredTimeout)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A group's subscription to a topic: an expression and its version."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    version: int = 0


@dataclass(frozen=True, slots=True)
class Client:
    """One client of a group, by its connection. Times in milliseconds."""

    client_id: str
    connection: Connection
    last_heartbeat_ms: float


@dataclass(frozen=True, slots=True)
class Consumption:
    """How a group consumes, in RocketMQ's terms; the last heartbeat decides."""

    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has clients."""

    name: str
    consumption: Consumption = field(default_factory=Consumption)
    clients: dict[str, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """The clients' ids, sorted."""
        return sorted(self.clients)


class ConsumerGroups:
    """All groups that have clients. Each change returns the connections to notify."""

    def __init__(self, *, groups_max: int = GROUPS_MAX, members_max: int = MEMBERS_MAX) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._by_connection: dict[Connection, set[tuple[str, str]]] = {}
        self._groups_max = groups_max
        self._members_max = members_max

    def __iter__(self) -> Iterator[ConsumerGroup]:
        """Yield the groups that have clients."""
        return iter(self._groups.values())

    def get(self, name: str) -> ConsumerGroup | None:
        """Return a group, None if it has no clients."""
        return self._groups.get(name)

    def first_full(self, names: Iterable[str], client_id: str) -> str | None:
        """Return the first of these groups that has no room for a client, None if all have.

        New groups count together, since the client is to be registered in all of them.
        """
        new: set[str] = set()
        for name in names:
            group = self._groups.get(name)
            if group is None:
                new.add(name)
                is_full = len(self._groups) + len(new) > self._groups_max
            else:
                is_full = len(group.clients) >= self._members_max and client_id not in group.clients
            if is_full:
                return name
        return None

    def register(
        self,
        name: str,
        client: Client,
        consumption: Consumption,
        subscriptions: Mapping[str, Subscription],
    ) -> list[Connection]:
        """Register a client's heartbeat for one group; return the connections to notify.

        A new connection of a known client replaces the old one. Requires that the group is not
        full (`first_full`).
        """
        group = self._groups.setdefault(name, ConsumerGroup(name))
        group.consumption = consumption
        before = group.clients.get(client.client_id)
        is_new = before is None or before.connection != client.connection
        if before is not None and is_new:
            self._unlink(before, name)
        group.clients[client.client_id] = client
        self._by_connection.setdefault(client.connection, set()).add((name, client.client_id))
        is_changed = set(group.subscriptions) != set(subscriptions)
        for topic, subscription in subscriptions.items():
            known = group.subscriptions.get(topic)
            if known is None or known.version <= subscription.version:
                group.subscriptions[topic] = subscription
        for topic in [topic for topic in group.subscriptions if topic not in subscriptions]:
            del group.subscriptions[topic]
        return _connections(group) if is_new or is_changed else []

    def unregister(self, name: str, client_id: str) -> list[Connection]:
        """Remove a client from a group; return the connections to notify."""
        group = self._groups.get(name)
        client = group.clients.pop(client_id, None) if group else None
        if group is None or client is None:
            return []
        self._unlink(client, name)
        if not group.clients:
            del self._groups[name]
        return _connections(group)

    def connection_closed(self, connection: Connection) -> dict[str, list[Connection]]:
        """Remove a connection's clients; return the connections to notify, by group."""
        notified: dict[str, list[Connection]] = {}
        for name, client_id in sorted(self._by_connection.get(connection, ())):
            notified[name] = self.unregister(name, client_id)
        return notified

    def expire(self, now_ms: float) -> dict[str, list[Connection]]:
        """Remove clients that were silent too long; return the connections to notify, by group."""
        silent = [
            (group.name, client.client_id)
            for group in self._groups.values()
            for client in group.clients.values()
            if now_ms - client.last_heartbeat_ms > CLIENT_SILENT_MAX_MS
        ]
        return {name: self.unregister(name, client_id) for name, client_id in silent}

    def _unlink(self, client: Client, name: str) -> None:
        links = self._by_connection.get(client.connection)
        if links is not None:
            links.discard((name, client.client_id))
            if not links:
                del self._by_connection[client.connection]


def _connections(group: ConsumerGroup) -> list[Connection]:
    """Return the group's connections, each once, in the order of the clients' ids."""
    return list(dict.fromkeys(group.clients[name].connection for name in group.client_ids))


# Locks of queues for ordered consumption: one client of a group at a time, for a lease.
#
# They are in the leader's memory, as RocketMQ's are: a new leader has none. A client that cannot
# renew its lock stops consuming before the lease ends: it trusts a lock for 30 s, the broker keeps
# it for 60 s.
# Source: RocketMQ's RebalanceLockManager.

LEASE_MS = 60_000.0
LOCKS_MAX = 100_000

LockedQueue = tuple[str, str, int]
"""Topic, broker name and queue id, as the client wrote them."""


@dataclass(slots=True)
class _Lock:
    client_id: str
    until_ms: float


class QueueLocks:
    """Queue locks by group and queue: the holder alone may consume the queue."""

    def __init__(self, *, lease_ms: float = LEASE_MS, locks_max: int = LOCKS_MAX) -> None:
        self._lease_ms = lease_ms
        self._locks_max = locks_max
        self._locks: dict[tuple[str, LockedQueue], _Lock] = {}

    def __len__(self) -> int:
        """Return the number of locks, expired ones included."""
        return len(self._locks)

    def lock(
        self, group: str, client_id: str, queues: Sequence[LockedQueue], now_ms: float
    ) -> list[LockedQueue]:
        """Lock or renew the queues that are free; return those that the client holds now."""
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
        """Release those of the queues that the client holds."""
        for queue in queues:
            lock = self._locks.get((group, queue))
            if lock is not None and lock.client_id == client_id:
                del self._locks[group, queue]

    def clear(self) -> None:
        """Drop all locks: they are those of another term."""
        self._locks.clear()

    def _forget_expired(self, now_ms: float) -> bool:
        """Drop expired locks; return True if there is room for another one."""
        for key in [key for key, lock in self._locks.items() if lock.until_ms <= now_ms]:
            del self._locks[key]
        return len(self._locks) < self._locks_max
