"""Client heartbeats: they register clients in groups, and changes are notified to the group.

Source: RocketMQ's ClientManageProcessor, ConsumerManageProcessor.getConsumerListByGroup,
HeartbeatData and Broker2Client.notifyConsumerIdsChanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shaketable.system.broker.effects import Connection
from shaketable.system.broker.groups.consumer_groups import (
    Client,
    ConsumerGroups,
    Consumption,
    Subscription,
)
from shaketable.system.broker.groups.offset_commits import GROUP_BYTES_MAX
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.outbox import Outbox
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
        data = _decode(command.body)
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
            _name(consumer.consume_type, _CONSUME_TYPES),
            _name(consumer.message_model, _MESSAGE_MODELS),
            _name(consumer.consume_from_where, _CONSUME_FROM),
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


def _decode(body: bytes | memoryview) -> _HeartbeatData:
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
        if _name(consumer.message_model, _MESSAGE_MODELS) not in _MESSAGE_MODELS:
            raise CommandError(f"bad heartbeat: messageModel {consumer.message_model!r}")
        if len(consumer.subscription_data_set or ()) > SUBSCRIPTIONS_MAX:
            raise CommandError(f"bad heartbeat: more than {SUBSCRIPTIONS_MAX} subscriptions")
    return data


def _name(value: str | int, names: tuple[str, ...]) -> str:
    """Return the name of an enum constant, given by name or by ordinal."""
    if isinstance(value, str):
        return value
    return names[value] if 0 <= value < len(names) else str(value)
