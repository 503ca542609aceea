"""Consumer groups: who consumes in which group now, as heartbeats say it. Nothing survives here.

Every member of a broker group keeps its own: clients send heartbeats to all brokers that they
know. A change of a group's members, or of what they subscribe to, is told to all of them, so
that they deal out the queues anew.
Source: RocketMQ's ConsumerManager, ConsumerGroupInfo, ProducerManager and
DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shaketable.system.broker.effects import Connection

GROUPS_MAX = 10_000
MEMBERS_MAX = 10_000
"""Clients of one group."""
CLIENT_SILENT_MAX_MS = 120_000.0
"""A client that is silent for longer is gone (RocketMQ's channelExpiredTimeout)."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group consumes of a topic: an expression, and the version of that."""

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
    """How a group consumes, in RocketMQ's words; the last heartbeat that differs decides."""

    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"


@dataclass(slots=True)
class ConsumerGroup:
    """A group that has clients now."""

    name: str
    consumption: Consumption = field(default_factory=Consumption)
    clients: dict[str, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """The clients' ids in order."""
        return sorted(self.clients)


class ConsumerGroups:
    """All groups that have clients. Each change returns whom to tell of it."""

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

    def has_room(self, name: str, client_id: str) -> bool:
        """Whether one more client, perhaps of a new group, may be kept."""
        group = self._groups.get(name)
        if group is None:
            return len(self._groups) < self._groups_max
        return client_id in group.clients or len(group.clients) < self._members_max

    def register(
        self,
        name: str,
        client: Client,
        consumption: Consumption,
        subscriptions: Mapping[str, Subscription],
    ) -> list[Connection]:
        """Take a heartbeat's word on one group; return whom to tell that the group changed.

        A client that came again on a new connection is that one alone. The caller has asked
        `has_room`.
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
        """A client leaves a group; return whom to tell."""
        group = self._groups.get(name)
        client = group.clients.pop(client_id, None) if group else None
        if group is None or client is None:
            return []
        self._unlink(client, name)
        if not group.clients:
            del self._groups[name]
        return _connections(group)

    def connection_closed(self, connection: Connection) -> dict[str, list[Connection]]:
        """A connection closed; return whom to tell, by group."""
        notified: dict[str, list[Connection]] = {}
        for name, client_id in sorted(self._by_connection.get(connection, ())):
            notified[name] = self.unregister(name, client_id)
        return notified

    def expire(self, now_ms: float) -> dict[str, list[Connection]]:
        """Forget clients that were silent for too long; return whom to tell, by group."""
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
# They live in the leader's memory, as RocketMQ's do: a new leader knows none. A client whose lock
# was not renewed stops consuming long before the lease is over (it counts 30 s, the broker 60 s).
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
