"""Consumer groups: their current clients, from heartbeats, and their locks. In memory only.

Every member of a broker group keeps its own table, since clients send heartbeats to all brokers
that they know. When a group's clients or subscriptions change, all its clients are notified, so
that they rebalance.
Source: RocketMQ's ConsumerManager, ConsumerGroupInfo, ProducerManager and
DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shaketable.system.broker.effects import Connection, Outbox
from shaketable.system.broker.groups.offset_commits import GROUP_BYTES_MAX
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.topic_tables.topic_rules import Topics
from shaketable.system.broker.topic_tables.topics import (
    READ,
    RETRY_PREFIX,
    RETRY_QUEUES,
    WRITE,
    name_problem,
)
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    I64,
    ONEWAY_FLAG,
    Command,
    CommandError,
    encode_command,
)
from shaketable.system.remoting.requests import GroupRequest, UnregisterClient

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


# Client heartbeats: they register clients in groups, and changes are notified to the group.
#
# Source: RocketMQ's ClientManageProcessor, ConsumerManageProcessor.getConsumerListByGroup,
# HeartbeatData and Broker2Client.notifyConsumerIdsChanged.

SCAN_INTERVAL_MS = 10_000.0
"""How often silent clients are removed."""
GROUPS_A_CLIENT_MAX = 1000
SUBSCRIPTIONS_MAX = 1000
"""Limit for one group in one heartbeat."""
CLIENT_ID_MAX = 1024
_MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)
"""RocketMQ's enums in their order: Java clients send names, the C++ client sends numbers."""
_OPAQUE_MAX = 2**31 - 1


class _SubscriptionData(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str | None = "*"
    sub_version: I64 = 0
    expression_type: str | None = "TAG"


class _ConsumerData(msgspec.Struct, rename="camel"):
    group_name: str
    consume_type: str | int = "CONSUME_PASSIVELY"
    message_model: str | int = "CLUSTERING"
    consume_from_where: str | int = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[_SubscriptionData] | None = None
    unit_mode: bool = False


class _ProducerData(msgspec.Struct, rename="camel"):
    group_name: str


class _HeartbeatData(msgspec.Struct):
    """A heartbeat's body; unknown keys are ignored."""

    client_id: str = msgspec.field(name="clientID")
    producers: list[_ProducerData] = msgspec.field(name="producerDataSet", default_factory=list)
    consumers: list[_ConsumerData] = msgspec.field(name="consumerDataSet", default_factory=list)


class ClientHeartbeats:
    """Serves HEART_BEAT, UNREGISTER_CLIENT and GET_CONSUMER_LIST_BY_GROUP on any member."""

    def __init__(self, topics: Topics, outbox: Outbox, config: BrokerConfig) -> None:
        self.groups = ConsumerGroups(
            groups_max=config.groups_max, members_max=config.group_members_max
        )
        self._topics = topics
        self._outbox = outbox
        self._opaque = 0
        self._scan_ms = 0.0

    def heartbeat(
        self,
        connection: Connection,
        command: Command,
        now_ms: float,
        wall_ms: int,
        *,
        is_leader: bool,
    ) -> None:
        """Handle a client's heartbeat, completely or not at all. Raises CommandError.

        A leader creates each consumer group's retry topic.
        """
        data = _decode_heartbeat(command.body)
        names = [consumer.group_name for consumer in data.consumers]
        full = self.groups.first_full(names, data.client_id)
        if full is not None:
            remark = f"too many consumer groups, or clients in {full}"
            self._outbox.refuse(connection, command, ResponseCode.SYSTEM_BUSY, remark)
            return
        # RocketMQ's ClientManageProcessor ignores that a retry topic is refused. The answer reports
        # it here, but is SUCCESS: the client is registered, and a group consumes without its retry
        # topic. What it sends back is refused with the same reason.
        missing = self._ensure_retry_topics(names, wall_ms) if is_leader else None
        client = Client(data.client_id, connection, now_ms)
        for consumer in data.consumers:
            self._register(client, consumer)
        self._outbox.answer(connection, command, remark=missing)

    def _ensure_retry_topics(self, groups: Sequence[str], wall_ms: int) -> str | None:
        """Create the groups' retry topics; return one line about those that are refused."""
        refused: dict[str, str] = {}
        for group in groups:
            topic = f"{RETRY_PREFIX}{group}"
            if refusal := self._topics.ensure(topic, RETRY_QUEUES, READ | WRITE, wall_ms):
                refused[topic] = refusal[1]
        if not refused:
            return None
        topic, why = next(iter(refused.items()))
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        return f"registered, but {topic}{more} cannot be created for messages sent back: {why}"

    def _register(self, client: Client, consumer: _ConsumerData) -> None:
        """Register a client in one group, and notify the group if that changes it."""
        consumption = Consumption(
            _name_of(consumer.consume_type, _CONSUME_TYPES),
            _name_of(consumer.message_model, _MESSAGE_MODELS),
            _name_of(consumer.consume_from_where, _CONSUME_FROM),
        )
        subscriptions = {
            one.topic: Subscription(
                one.topic, one.sub_string or "*", one.expression_type or "TAG", one.sub_version
            )
            for one in consumer.subscription_data_set or ()
        }
        name = consumer.group_name
        self._notify(name, self.groups.register(name, client, consumption, subscriptions))

    def unregister(self, connection: Connection, command: Command) -> None:
        """Remove a client from the consumer group that it names. Raises CommandError."""
        fields = UnregisterClient.from_ext(command.ext)
        if fields.consumer_group:
            notified = self.groups.unregister(fields.consumer_group, fields.client_id)
            self._notify(fields.consumer_group, notified)
        self._outbox.answer(connection, command)

    def list_clients(self, connection: Connection, command: Command) -> None:
        """Answer with a group's client ids. Raises CommandError."""
        name = GroupRequest.from_ext(command.ext).consumer_group
        group = self.groups.get(name)
        if group is None:
            remark = f"no consumer of group {name} is connected here"
            self._outbox.answer(connection, command, ResponseCode.SYSTEM_ERROR, remark)
            return
        body = msgspec.json.encode({"consumerIdList": group.client_ids})
        self._outbox.answer(connection, command, body=body)

    def connection_closed(self, connection: Connection) -> None:
        """Remove the clients of a connection that closed."""
        for name, notified in self.groups.connection_closed(connection).items():
            self._notify(name, notified)

    def tick(self, now_ms: float) -> None:
        """Remove silent clients, every SCAN_INTERVAL_MS."""
        if now_ms < self._scan_ms:
            return
        self._scan_ms = now_ms + SCAN_INTERVAL_MS
        for name, notified in self.groups.expire(now_ms).items():
            self._notify(name, notified)

    def _notify(self, group: str, connections: Iterable[Connection]) -> None:
        for connection in connections:
            self._opaque = self._opaque % _OPAQUE_MAX + 1
            notice = Command(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                self._opaque,
                ONEWAY_FLAG,
                ext={"consumerGroup": group},
            )
            self._outbox.put(connection, encode_command(notice))


def _decode_heartbeat(body: bytes | memoryview) -> _HeartbeatData:
    """Parse and check a heartbeat's body. Raises CommandError."""
    try:
        # Not strict: the C++ client sends the subscription's version as a string.
        data = msgspec.json.decode(body, type=_HeartbeatData, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"bad heartbeat: {error}") from None
    if not data.client_id or len(data.client_id) > CLIENT_ID_MAX:
        raise CommandError(f"bad heartbeat: clientID has 1..{CLIENT_ID_MAX} characters")
    if len(data.consumers) > GROUPS_A_CLIENT_MAX:
        raise CommandError(f"bad heartbeat: more than {GROUPS_A_CLIENT_MAX} consumer groups")
    for consumer in data.consumers:
        if problem := name_problem(consumer.group_name, GROUP_BYTES_MAX):
            raise CommandError(f"bad heartbeat: groupName: {problem}")
        if _name_of(consumer.message_model, _MESSAGE_MODELS) not in _MESSAGE_MODELS:
            raise CommandError(f"bad heartbeat: messageModel {consumer.message_model!r}")
        if len(consumer.subscription_data_set or ()) > SUBSCRIPTIONS_MAX:
            raise CommandError(f"bad heartbeat: more than {SUBSCRIPTIONS_MAX} subscriptions")
    return data


def _name_of(value: str | int, names: tuple[str, ...]) -> str:
    """Return the name of an enum constant, given by name or by ordinal."""
    if isinstance(value, str):
        return value
    return names[value] if 0 <= value < len(names) else str(value)
