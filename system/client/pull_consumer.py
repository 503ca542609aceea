"""Pulls messages by offset and commits a consumer group's offsets: the base of a consumer.

Source: RocketMQ's DefaultMQPullConsumer, RemoteBrokerOffsetStore; DLEDGER.md A.2 and D.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self, TypeVar

import trio

from shaketable.system.client.connection import (
    UNREACHABLE,
    Channels,
    DamagedResponseError,
    NameService,
    OnRequest,
    OutcomeUnknownError,
    RefusedError,
)
from shaketable.system.client.routes import MessageQueue
from shaketable.system.remoting.codes import RequestCode, ResponseCode, outcome_of
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import (
    UNIQUE_KEY_QUERY,
    Fields,
    PullMessage,
    PullMessageResponse,
    QueryConsumerOffset,
    QueryMessage,
    QueueName,
    QueueOffsetRequest,
    QueueOffsetResponse,
    SearchOffset,
    SendMessageBack,
    UpdateConsumerOffset,
    ViewMessage,
    decode_locked,
    decode_runtime_stats,
    decode_topic_names,
    encode_locks,
)
from shaketable.system.store.message import (
    TAGS,
    DamagedMessage,
    Message,
    decode_message_id,
    encode_message,
    find_property,
    offset_message_id,
    walk_messages,
)

SUSPEND_FLAG = 2
SUBSCRIPTION_FLAG = 4
"""Bits of a pull's sysFlag (RocketMQ's PullSysFlag)."""
Encoded = TypeVar("Encoded")
Value = TypeVar("Value")
ANSWER_MARGIN_S = 3.0
"""How long to wait for the response to a held pull, in addition to the hold time."""
PULL_STATUSES = {
    ResponseCode.SUCCESS: "FOUND",
    ResponseCode.PULL_NOT_FOUND: "NO_NEW_MSG",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "NO_MATCHED_MSG",
    ResponseCode.PULL_OFFSET_MOVED: "OFFSET_ILLEGAL",
}
"""Response codes of a pull, and RocketMQ's PullStatus for each."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """Messages from an offset on, perhaps none, and the next offset.

    `status` is a value of PULL_STATUSES: NO_NEW_MSG at the queue's max offset, NO_MATCHED_MSG if
    no message passed the filter, OFFSET_ILLEGAL if the offset is outside [min_offset, max_offset].
    `suggested_broker_id` is the broker to pull from next.
    """

    messages: tuple[Message, ...]
    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0


class PullConsumer:
    """Pulls messages and manages offsets. Use as `async with PullConsumer(...) as consumer`.

    Args:
        name_servers: "host:port;host:port", or a list of such addresses.
        group: the consumer group whose offsets are read and committed.
        timeout_s: how long one call may take.
        on_request: called with the brokers' requests to this client.
    """

    channels_type: ClassVar[type[Channels]] = Channels
    names_type: ClassVar[type[NameService]] = NameService

    def __init__(
        self,
        name_servers: str | Sequence[str],
        *,
        group: str,
        timeout_s: float = 3.0,
        on_request: OnRequest | None = None,
    ) -> None:
        self._channels = self.channels_type(on_request)
        self._names = self.names_type(self._channels, name_servers)
        self._timeout_s = timeout_s
        self.group = group
        self.last_address: str | None = None
        """The broker that the last request was sent to."""

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
        """Return the topic's read queues. Raises RefusedError."""
        return (await self._names.route(topic, self._timeout_s)).readable

    def forget(self, topic: str) -> None:
        """Refresh the topic's route before its next use."""
        self._names.forget(topic)

    async def brokers(self, topic: str) -> tuple[str, ...]:
        """Return "host:port" of all brokers that have the topic. Raises RefusedError."""
        return (await self._names.route(topic, self._timeout_s)).brokers()

    async def master(self, queue: MessageQueue) -> str | None:
        """Return "host:port" of the queue's master, None if a fresh route has none either.

        Raises RefusedError.
        """
        route = await self._names.route(queue.topic, self._timeout_s)
        if route.master(queue.broker_name) is None:
            self._names.forget(queue.topic)
            route = await self._names.route(queue.topic, self._timeout_s)
        return route.master(queue.broker_name)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        bytes_max: int | None = None,
        subscription: str = "*",
        wait_s: float = 0.0,
        broker_id: int = 0,
    ) -> Pulled:
        """Pull messages from an offset on; with `wait_s`, by long polling at the max offset.

        `bytes_max` limits their size as stored, below the broker's own limit; one message comes in
        any case.
        `subscription` is "*" or tags as "a || b". The broker filters by tag hashes, so a message
        of another tag with the same hash may be returned. `broker_id` selects among the brokers of
        the queue's name; if that one is missing, any other is used.

        Raises RefusedError, OutcomeUnknownError and its subclass DamagedResponseError.
        """
        fields = PullMessage(
            self.group,
            queue.topic,
            queue.queue_id,
            offset,
            count_max,
            SUBSCRIPTION_FLAG | (SUSPEND_FLAG if wait_s > 0 else 0),
            suspend_timeout_millis=int(wait_s * 1000),
            subscription=subscription,
            expression_type="TAG",
            max_msg_bytes=bytes_max,
        )
        timeout_s = wait_s + ANSWER_MARGIN_S if wait_s > 0 else self._timeout_s
        command = Command(RequestCode.PULL_MESSAGE, ext=fields.to_ext())
        answer = await self._ask(queue, command, timeout_s, broker_id)
        status = (
            PULL_STATUSES.get(ResponseCode(answer.code)) if answer.code in PULL_STATUSES else None
        )
        if status is None:
            raise _error_of(answer)
        try:
            response = PullMessageResponse.from_ext(answer.ext)
            messages = tuple(walk_messages(answer.body))
        except (CommandError, DamagedMessage) as error:
            raise DamagedResponseError(f"a broker sent a bad answer to a pull: {error}") from None
        return Pulled(
            messages,
            status,
            response.next_begin_offset,
            response.min_offset,
            response.max_offset,
            response.suggest_which_broker_id,
        )

    async def view(self, message_id: str) -> Message:
        """Return the message with an id that a send returned, from the broker that it names.

        Raises RefusedError (also if no message is stored there), OutcomeUnknownError and its
        subclass DamagedResponseError, ValueError for a malformed id.
        """
        address, position = decode_message_id(message_id)
        command = Command(RequestCode.VIEW_MESSAGE_BY_ID, ext=ViewMessage(position).to_ext())
        self.last_address = address
        answer = await self._channels.call(address, command, self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)
        try:
            (message,) = walk_messages(answer.body)
        except (ValueError, DamagedMessage) as error:
            raise DamagedResponseError(f"a broker sent a bad answer to a view: {error}") from None
        return message

    async def query(
        self,
        queue: MessageQueue,
        key: str,
        *,
        count_max: int = 32,
        begin_ms: int = 0,
        end_ms: int = 2**63 - 1,
        is_unique: bool = False,
    ) -> tuple[Message, ...]:
        """Return messages of the queue's topic and broker that have a key, newest first.

        Only messages stored from `begin_ms` to `end_ms`, both inclusive. With `is_unique`, the key
        is a UNIQ_KEY. Raises as `pull` does.
        """
        fields = QueryMessage(queue.topic, key, count_max, begin_ms, end_ms)
        ext = fields.to_ext()
        if is_unique:
            ext[UNIQUE_KEY_QUERY] = "true"
        answer = await self.ask_master(queue, Command(RequestCode.QUERY_MESSAGE, ext=ext))
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return ()
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)
        try:
            return tuple(walk_messages(answer.body))
        except DamagedMessage as error:
            raise DamagedResponseError(f"a broker sent a bad answer to a query: {error}") from None

    async def send_back(
        self,
        queue: MessageQueue,
        position: int,
        *,
        group: str = "",
        delay_level: int = 0,
        reconsume_times_max: int | None = None,
    ) -> None:
        """Send a message back for a retry (DefaultMQPullConsumer.sendMessageBack).

        `position` is the message's in the log of the queue's broker, `group` the one that retries
        it, by default the own one. After `reconsume_times_max` retries, by default the broker's
        own limit, it goes to the dead-letter queue. Raises as `pull` does.
        """
        fields = SendMessageBack(
            position, group or self.group, delay_level, max_reconsume_times=reconsume_times_max
        )
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields.to_ext())
        answer = await self.ask_master(queue, command)
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None if it has none. Raises as `pull`."""
        fields = QueryConsumerOffset(
            self.group, queue.topic, queue.queue_id, set_zero_if_not_found=False
        )
        answer = await self._ask_for(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return _offset(answer)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset in a queue. Returns once it is acknowledged.

        Raises RefusedError (certainly not committed), OutcomeUnknownError.
        """
        fields = UpdateConsumerOffset(self.group, queue.topic, queue.queue_id, offset)
        answer = await self._ask_for(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)

    async def commit_oneway(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset one-way, as RocketMQ's consumers do by default.

        There is no acknowledgement. Raises RefusedError if it was certainly not sent.
        """
        fields = UpdateConsumerOffset(self.group, queue.topic, queue.queue_id, offset)
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields.to_ext())
        master = await self.master(queue)
        if master is None:
            raise RefusedError(UNREACHABLE, f"{queue.broker_name} has no master now")
        await self._channels.send_oneway(master, command, self._timeout_s)

    async def lock(self, queue: MessageQueue, client_id: str) -> bool:
        """Lock a queue for a client of the group; False if another holds it. Raises as `pull`."""
        body = encode_locks(self.group, client_id, [_name(queue)])
        answer = await self.ask_master(queue, Command(RequestCode.LOCK_BATCH_MQ, body=body))
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)
        return _name(queue) in _decoded(decode_locked, answer.body)

    async def unlock(self, queue: MessageQueue, client_id: str) -> None:
        """Release the lock of a queue. Raises as `pull` does."""
        body = encode_locks(self.group, client_id, [_name(queue)])
        answer = await self.ask_master(queue, Command(RequestCode.UNLOCK_BATCH_MQ, body=body))
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's next message. Raises as `pull` does."""
        fields = QueueOffsetRequest(queue.topic, queue.queue_id)
        return _offset(await self._ask_for(queue, RequestCode.GET_MAX_OFFSET, fields))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the lowest retained offset. Raises as `pull` does."""
        fields = QueueOffsetRequest(queue.topic, queue.queue_id)
        return _offset(await self._ask_for(queue, RequestCode.GET_MIN_OFFSET, fields))

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """Return the first offset stored at `time_ms` (since 1970) or later. Raises as `pull`."""
        fields = SearchOffset(queue.topic, queue.queue_id, time_ms)
        return _offset(await self._ask_for(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields))

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return a broker's start configuration (MQAdmin.getBrokerConfig). Raises as `pull`."""
        body = await self._body(address, RequestCode.GET_BROKER_CONFIG)
        lines = bytes(body).decode(errors="replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        return {name.strip(): value.strip() for name, _, value in pairs}

    async def runtime_stats(self, address: str) -> dict[str, str]:
        """Return a broker's figures by name (MQAdmin.fetchBrokerRuntimeStats). Raises as `pull`."""
        body = await self._body(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _decoded(decode_runtime_stats, body)

    async def topics(self, address: str) -> frozenset[str]:
        """Return the names of a broker's topics (MQAdmin.getAllTopicConfig). Raises as `pull`."""
        body = await self._body(address, RequestCode.GET_ALL_TOPIC_CONFIG)
        return _decoded(decode_topic_names, body)

    async def _body(self, address: str, code: RequestCode) -> bytes | memoryview:
        """Return what one broker answers to a request without fields."""
        answer = await self._channels.call(address, Command(code), self._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise _error_of(answer)
        return answer.body

    async def ask_broker(self, address: str, command: Command, timeout_s: float) -> Command:
        """Send any request to one broker. Raises RefusedError, OutcomeUnknownError."""
        return await self._channels.call(address, command, timeout_s)

    async def ask_master(self, queue: MessageQueue, command: Command) -> Command:
        """Send any request to the queue's master. Raises RefusedError, OutcomeUnknownError."""
        return await self._ask(queue, command, self._timeout_s, 0)

    async def _ask_for(self, queue: MessageQueue, code: RequestCode, fields: Fields) -> Command:
        return await self._ask(queue, Command(code, ext=fields.to_ext()), self._timeout_s, 0)

    async def _ask(
        self, queue: MessageQueue, command: Command, timeout_s: float, broker_id: int
    ) -> Command:
        """Call the queue's broker; after a failure, refresh the route before its next use."""
        deadline_s = trio.current_time() + timeout_s
        route = await self._names.route(queue.topic, timeout_s)
        address = route.reader(queue.broker_name, broker_id)
        if address is None:
            self._names.forget(queue.topic)
            raise RefusedError(UNREACHABLE, f"no broker {queue.broker_name} is known now")
        self.last_address = address
        try:
            left_s = deadline_s - trio.current_time()
            answer = await self._channels.call(address, command, left_s)
        except (RefusedError, OutcomeUnknownError):
            self._names.forget(queue.topic)
            raise
        if outcome_of(answer.code) != "ok":
            self._names.forget(queue.topic)
        return answer


def tags_of(message: Message) -> str:
    """Return a message's tags, "" for none."""
    return find_property(message.properties, TAGS).decode(errors="replace")


def stored_bytes(message: Message) -> int:
    """Return a stored message's size in bytes, without its entry header."""
    return len(encode_message(message))


def id_after(message: Message, shift: int) -> str:
    """Return the message id of the position `shift` bytes after a stored message's start."""
    return offset_message_id(message.store_host, message.physical_offset + shift).decode()


def _name(queue: MessageQueue) -> QueueName:
    return queue.topic, queue.broker_name, queue.queue_id


def _offset(answer: Command) -> int:
    if answer.code != ResponseCode.SUCCESS:
        raise _error_of(answer)
    return _decoded(QueueOffsetResponse.from_ext, answer.ext).offset


def _decoded(decode: Callable[[Encoded], Value], answer: Encoded) -> Value:
    """Decode a broker's answer. Raises DamagedResponseError."""
    try:
        return decode(answer)
    except CommandError as error:
        raise DamagedResponseError(f"a broker sent a bad answer: {error}") from None


def _error_of(answer: Command) -> RefusedError | OutcomeUnknownError:
    """Return the error for an unsuccessful response: refused or unknown, by its code."""
    remark = answer.remark or ""
    if outcome_of(answer.code) == "fail":
        return RefusedError(answer.code, remark, answer.ext.get("leaderId") or None)
    return OutcomeUnknownError(f"code {answer.code}: {remark}")
