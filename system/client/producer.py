"""Sends messages to the masters of a topic's brokers.

Source: RocketMQ's DefaultMQProducerImpl, MQFaultStrategy; DLEDGER.md A.2 and D.4. Unlike there,
a message that may have been stored is never resent without the caller knowing, and a refusal
refreshes the route at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from types import TracebackType
from typing import ClassVar, Self

import trio

from shaketable.system.client.connection import (
    ROUTE_AGE_MAX_S,
    UNREACHABLE,
    Channels,
    DamagedResponseError,
    NameService,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.routes import MessageQueue, Route
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.name_server_requests import MASTER_ID
from shaketable.system.remoting.requests import (
    BatchMessage,
    CreateTopic,
    DeleteTopic,
    SendMessageResponse,
    SendMessageV2,
    encode_batch,
)

ATTEMPT_MIN_S = 0.5
"""After a refusal, do not retry with less time left than this."""
RETRY_AFTER_MIN_S = 0.02
RETRY_AFTER_MAX_S = 0.2
AUTO_CREATE_TOPIC = "TBW102"
"""The topic whose route and settings are used for a topic that the first send creates."""
AUTO_CREATE_QUEUES = 4
PERM_DEFAULT = 6
"""Permission of created topics: read and write."""
PERMANENT_REFUSALS = frozenset(
    (
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.NO_PERMISSION,
    )
)
"""Every broker would refuse again, at any time."""
SEND_STATUSES = {
    ResponseCode.SUCCESS: "SEND_OK",
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}
"""Response codes of a message that is stored on the master, and RocketMQ's SendStatus of each."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message was stored. A batch has several `message_ids`.

    `status` is a value of SEND_STATUSES. Only SEND_OK means everything that the brokers' mode
    promises. `answered_by` is the "host:port" of the master that stored it.
    """

    queue: MessageQueue
    offset: int
    message_ids: tuple[str, ...]
    status: str = "SEND_OK"
    answered_by: str = ""


class Producer:
    """Sends to the topics that the name servers know. Use as `async with Producer(...) as p`.

    Args:
        name_servers: "host:port;host:port", or a list of such addresses.
        group: the producer group's name.
        timeout_s: how long one call may take, retries included.
        rng: chooses the first message's queue and the pauses between retries.
    """

    channels_type: ClassVar[type[Channels]] = Channels
    names_type: ClassVar[type[NameService]] = NameService

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str = "shaketable_producer",
        timeout_s: float = 3.0,
        rng: Random | None = None,
    ) -> None:
        self._channels = self.channels_type()
        self._names = self.names_type(self._channels, name_servers)
        self._group = group
        self._timeout_s = timeout_s
        self._rng = rng or Random()
        self._assumed: dict[str, tuple[float, Route]] = {}
        self._next_queue = count(self._rng.randrange(1 << 16))

    async def __aenter__(self) -> Self:
        """Return self; the first call connects."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        self.close()

    def close(self) -> None:
        """Close all connections; the outcome of requests in flight is unknown."""
        self._channels.close()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's writable queues. Raises RefusedError."""
        return (await self._route(topic, self._timeout_s)).writable

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str = "",
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | None = None,
        order_key: str | None = None,
        create_topic_key: str = AUTO_CREATE_TOPIC,
    ) -> Sent:
        """Send a message; return where it was stored.

        It goes to `queue` if given. Messages of one `order_key` go to one queue as long as the
        topic's queues do not change. Otherwise queues are used in turn (round robin).

        A broker creates a missing topic with the settings of topic `create_topic_key` (RocketMQ's
        createTopicKey), and refuses the message if that one is missing too.

        Raises RefusedError (certainly not stored), OutcomeUnknownError (it may be).
        """
        text = _properties(tags, keys, properties)

        async def attempt(target: MessageQueue, address: str, timeout_s: float) -> Sent:
            fields = self._fields(target, text)
            fields.default_topic = create_topic_key
            command = Command(RequestCode.SEND_MESSAGE_V2, ext=fields.to_ext(), body=body)
            return await self._stored(target, address, command, timeout_s)

        return await self._until_stored(topic, attempt, queue, order_key)

    async def send_batch(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        tags: str = "",
        queue: MessageQueue | None = None,
        order_key: str | None = None,
    ) -> Sent:
        """Send messages to one queue, one after the other: all of them or none.

        The result's `offset` is that of the first message. Raises as `send` does.
        """
        text = _properties(tags, (), None).encode()
        try:
            body = encode_batch([BatchMessage(each, text) for each in bodies])
        except CommandError as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None

        async def attempt(target: MessageQueue, address: str, timeout_s: float) -> Sent:
            fields = self._fields(target, "")
            fields.batch = True
            command = Command(RequestCode.SEND_BATCH_MESSAGE, ext=fields.to_ext(), body=body)
            sent = await self._stored(target, address, command, timeout_s)
            if len(sent.message_ids) != len(bodies):
                raise DamagedResponseError(
                    f"{len(sent.message_ids)} message ids for {len(bodies)} messages"
                )
            return sent

        return await self._until_stored(topic, attempt, queue, order_key)

    async def create_topic(self, topic: str, queues: int, *, perm: int = PERM_DEFAULT) -> None:
        """Create or change a topic on every master (MQAdmin.createTopic).

        `perm` is a sum of 4 (read) and 2 (write). Raises RefusedError if a master refuses or is
        unreachable, or if there is none; OutcomeUnknownError.
        """
        fields = CreateTopic(topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        await self._ask_masters(RequestCode.UPDATE_AND_CREATE_TOPIC, fields.to_ext())
        self._forget(topic)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic on every master and every name server (mqadmin deleteTopic).

        Raises RefusedError if one of them refuses or is unreachable, or if there is no master;
        OutcomeUnknownError.
        """
        fields = DeleteTopic(topic)
        await self._ask_masters(RequestCode.DELETE_TOPIC_IN_BROKER, fields.to_ext())
        await self._names.delete_topic(topic, self._timeout_s)
        self._assumed.pop(topic, None)

    async def has_route(self, topic: str) -> bool:
        """Return whether a name server knows a route of the topic. Raises RefusedError."""
        self._names.forget(topic)
        try:
            await self._names.route(topic, self._timeout_s)
        except RefusedError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return False
            raise
        return True

    async def _ask_masters(self, code: RequestCode, ext: dict[str, str]) -> None:
        """Send the same request to each master. Raises RefusedError, OutcomeUnknownError."""
        cluster = await self._names.cluster(self._timeout_s)
        masters = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in cluster.broker_addr_table.items()
            if MASTER_ID in data.broker_addrs
        }
        if not masters:
            raise RefusedError(UNREACHABLE, "no broker takes messages now")
        for address in masters.values():
            command = Command(code, ext=dict(ext))
            answer = await self._channels.call(address, command, self._timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                if outcome_of(answer.code) == "fail":
                    raise RefusedError(answer.code, answer.remark or "")
                raise OutcomeUnknownError(f"code {answer.code}: {answer.remark or ''}")

    # ---- steps ------------------------------------------------------------------------

    def _fields(self, queue: MessageQueue, properties: str) -> SendMessageV2:
        return SendMessageV2(
            self._group,
            queue.topic,
            queue.queue_id,
            default_topic_queue_nums=AUTO_CREATE_QUEUES,
            properties=properties,
            broker_name=queue.broker_name,
        )

    async def _stored(
        self, queue: MessageQueue, address: str, command: Command, timeout_s: float
    ) -> Sent:
        answer = await self._channels.call(address, command, timeout_s)
        status = SEND_STATUSES.get(ResponseCode(answer.code)) if answer.code in _CODES else None
        if status is None:
            remark = answer.remark or ""
            if outcome_of(answer.code) == "fail":
                raise RefusedError(answer.code, remark, answer.ext.get("leaderId") or None)
            raise OutcomeUnknownError(f"code {answer.code}: {remark}")
        try:
            fields = SendMessageResponse.from_ext(answer.ext)
        except CommandError as error:
            raise DamagedResponseError(f"{address} sent a bad response: {error}") from None
        at = replace(queue, queue_id=fields.queue_id)
        ids = tuple(fields.msg_id.split(","))
        return Sent(at, fields.queue_offset, ids, status, address)

    async def _until_stored(
        self,
        topic: str,
        attempt: Callable[[MessageQueue, str, float], Awaitable[Sent]],
        queue: MessageQueue | None,
        order_key: str | None,
    ) -> Sent:
        """Try brokers while they refuse definitely and time is left."""
        deadline_s = trio.current_time() + self._timeout_s
        avoided: str | None = None
        while True:
            try:
                route = await self._route(topic, deadline_s - trio.current_time())
                target = queue or self._choose(route, topic, order_key, avoided)
                avoided = target.broker_name
                address = _master_of(route, target)
                return await attempt(target, address, deadline_s - trio.current_time())
            except RefusedError as error:
                self._forget(topic)
                pause_s = self._rng.uniform(RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S)
                is_late = trio.current_time() + pause_s + ATTEMPT_MIN_S >= deadline_s
                if error.code in PERMANENT_REFUSALS or is_late:
                    raise
                await trio.sleep(pause_s)
            except OutcomeUnknownError:
                self._forget(topic)
                raise

    async def _route(self, topic: str, timeout_s: float) -> Route:
        """Return the topic's route, or the route that a new topic would get.

        The latter is cached for a while, so that the first messages create the topic on all
        brokers.
        """
        assumed = self._assumed.get(topic)
        if assumed is not None and trio.current_time() - assumed[0] < ROUTE_AGE_MAX_S:
            return assumed[1]
        try:
            return await self._names.route(topic, timeout_s)
        except RefusedError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            try:
                route = await self._names.route(AUTO_CREATE_TOPIC, timeout_s)
            except RefusedError:
                raise error from None
            limited = route.for_new_topic(topic, AUTO_CREATE_QUEUES)
            self._assumed[topic] = (trio.current_time(), limited)
            return limited

    def _forget(self, topic: str) -> None:
        """Refresh the topic's route before the next send."""
        self._assumed.pop(topic, None)
        self._names.forget(topic)

    def _choose(
        self, route: Route, topic: str, order_key: str | None, avoided: str | None
    ) -> MessageQueue:
        """Choose the message's queue. Raises RefusedError if none is writable."""
        queues = route.writable
        if not queues:
            raise RefusedError(UNREACHABLE, f"no broker of {topic} takes messages now")
        if order_key is not None:
            return queues[zlib.crc32(order_key.encode()) % len(queues)]
        others = [each for each in queues if each.broker_name != avoided]
        candidates = others or queues
        return candidates[next(self._next_queue) % len(candidates)]


_CODES = frozenset(SEND_STATUSES)


def _master_of(route: Route, queue: MessageQueue) -> str:
    address = route.master(queue.broker_name)
    if address is None:
        raise RefusedError(UNREACHABLE, f"{queue.broker_name} has no master now")
    return address


def _properties(tags: str, keys: str | Sequence[str], properties: Mapping[str, str] | None) -> str:
    """Encode properties. Raises RefusedError for a control character, which would corrupt them."""
    named = dict(properties or {})
    if tags:
        named["TAGS"] = tags
    if keys:
        named["KEYS"] = keys if isinstance(keys, str) else " ".join(keys)
    for name, value in named.items():
        if "\x01" in name + value or "\x02" in name + value:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL, f"property {name!r} holds a control character"
            )
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items())
