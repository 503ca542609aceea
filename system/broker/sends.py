"""Serves sends: checks and appends a message, or a batch of messages of one queue.

Source: RocketMQ's SendMessageProcessor and DLedgerCommitLog.putMessage(s); DLEDGER.md A.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from shaketable.system.broker.appender import Appender, PendingAppend, PendingAppends
from shaketable.system.broker.consume_queue import Queue
from shaketable.system.broker.delay_levels import (
    DELAY_MARK,
    DELIVERY_ROOM_BYTES,
    SCHEDULE_TOPIC,
    delay_level,
    scheduled_properties,
    undelayed_properties,
)
from shaketable.system.broker.deliveries import DLQ_PREFIX
from shaketable.system.broker.effects import AnyRequest, Connection, Outbox
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.topic_tables.topic_rules import Topics
from shaketable.system.broker.topic_tables.topics import READ, RETRY_QUEUES, WRITE
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command, CommandError, send_response
from shaketable.system.remoting.requests import (
    BatchMessage,
    ExpectedOffset,
    SendMessageV2,
    SendRequest,
    decode_batch,
    joined_properties,
)
from shaketable.system.store.entry import BLANK_BYTES, ENTRY_BYTES_MAX, EntryTooLarge
from shaketable.system.store.message import find_property, offset_message_id

RETRY_TOPIC_PREFIX = "%RETRY%"
RESERVED_TOPIC_PREFIX = "RMQ_SYS_"
WAIT_FALSE = "WAIT\x01false"
"""The property of a message whose sender waits for neither disk nor slave (setWaitStoreMsgOK)."""
_TRANSACTION_TYPE, _PREPARED, _ROLLED_BACK = 12, 4, 12
"""Bits of a message's sys flag (MessageSysFlag)."""
ENTRY_OVERHEAD_BYTES = 48 + 91
"""Size of an entry without topic, body and properties: its header, the message's fixed part."""


class Sends:
    """Builds the entries of sends while this member leads; `pending` answers them."""

    def __init__(
        self,
        appender: Appender,
        pending: PendingAppends,
        outbox: Outbox,
        config: BrokerConfig,
        topics: Topics,
    ) -> None:
        self._appender = appender
        self._pending = pending
        self._outbox = outbox
        self._config = config
        self._topics = topics
        self._entry_bytes_max = min(ENTRY_BYTES_MAX, config.data_file_bytes - BLANK_BYTES)

    def send(
        self,
        connection: Connection,
        born_host: bytes,
        request: SendRequest,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Build one message's entry. Raises CommandError if it is illegal: nothing is built.

        The appender must be ready; the caller calls its `append` soon.
        """
        fields = request.fields
        if fields.batch:
            self.send_batch(connection, born_host, request, now_ms, wall_ms)
            return
        if len(self._pending.waiting) >= self._config.pending_sends_max:
            self._refuse_full(connection, request)
            return
        if fields.topic.startswith(RETRY_TOPIC_PREFIX):
            fields = self._to_dlq_if_exhausted(fields, wall_ms)
        topic = fields.topic.encode()
        properties = fields.properties.encode()
        self._check(fields, topic, len(properties), len(request.body))
        if self._is_refused(connection, request, fields, topic, wall_ms):
            return
        queue = (topic, fields.queue_id)
        if DELAY_MARK in fields.properties:
            queue, properties = self._delayed(fields, queue, properties, len(request.body))
        appender = self._appender
        offset = appender.next_offset.get(queue)
        if offset is None:
            offset = appender.offset_of(queue)
        builder = appender.builder
        try:
            position = builder.add(
                *queue,
                offset,
                request.body,
                properties,
                flag=fields.flag,
                sys_flag=fields.sys_flag,
                born_ms=fields.born_ms,
                born_host=born_host,
                store_ms=wall_ms,
                reconsume_times=fields.reconsume_times,
            )
        except EntryTooLarge as error:
            raise CommandError(str(error)) from None
        appender.next_offset[queue] = offset + 1
        if request.is_oneway:
            return
        self._wait(
            connection,
            request,
            send_response(
                request.opaque,
                offset_message_id(self._config.store_host, position),
                fields.queue_id,
                offset,
                request.serialize_type,
            ),
            now_ms,
        )

    def send_batch(
        self,
        connection: Connection,
        born_host: bytes,
        request: SendRequest,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Build the entries of a batch, all of them or none. Raises CommandError."""
        if len(self._pending.waiting) >= self._config.pending_sends_max:
            self._refuse_full(connection, request)
            return
        fields = request.fields
        topic = fields.topic.encode()
        messages = self._checked_batch(request, topic)
        if self._is_refused(connection, request, fields, topic, wall_ms):
            return
        queue = (topic, fields.queue_id)
        first_offset = self._appender.offset_of(queue)
        builder = self._appender.builder
        ids = []
        for ordinal, (body, properties, flag) in enumerate(messages):
            position = builder.add(
                topic,
                fields.queue_id,
                first_offset + ordinal,
                body,
                bytes(properties),
                flag=flag,
                sys_flag=fields.sys_flag,
                born_ms=fields.born_ms,
                born_host=born_host,
                store_ms=wall_ms,
                reconsume_times=fields.reconsume_times,
            )
            ids.append(offset_message_id(self._config.store_host, position))
        self._appender.next_offset[queue] = first_offset + len(messages)
        if request.is_oneway:
            return
        joined_ids = b",".join(self._response_ids(ids))
        reply = send_response(
            request.opaque, joined_ids, fields.queue_id, first_offset, request.serialize_type
        )
        self._wait(connection, request, reply, now_ms)

    def _response_ids(self, ids: list[bytes]) -> list[bytes]:
        """Return the message ids of a batch for its response, one a message."""
        return ids

    def _checked_batch(self, request: SendRequest, topic: bytes) -> Sequence[BatchMessage]:
        """Return the messages with their full properties. Raises CommandError."""
        fields, config = request.fields, self._config
        if fields.topic.startswith(RETRY_TOPIC_PREFIX):
            raise CommandError("a batch may not go to a retry topic")
        batch_properties = fields.properties.encode()
        self._check(fields, topic, len(batch_properties), len(request.body))
        messages = [
            message._replace(properties=_joined(message, batch_properties, config))
            for message in decode_batch(request.body, config.batch_messages_max)
        ]
        for message in messages:
            self._check(fields, topic, len(message.properties), len(message.body))
            size = ENTRY_OVERHEAD_BYTES + len(topic) + len(message.body) + len(message.properties)
            if size > self._entry_bytes_max:
                raise CommandError(f"entry of {size} bytes: at most {self._entry_bytes_max}")
        return messages

    def _check(
        self, fields: SendMessageV2, topic: bytes, properties_bytes: int, body_bytes: int
    ) -> None:
        """Raise CommandError for an illegal message, in RocketMQ's sense. Nothing is appended."""
        config = self._config
        if not topic or len(topic) > config.topic_bytes_max:
            raise CommandError(
                f"topic of {len(topic)} bytes, 1..{config.topic_bytes_max} are legal"
            )
        if fields.topic.startswith(RESERVED_TOPIC_PREFIX):
            raise CommandError(f"topic {fields.topic} is reserved")
        if body_bytes > config.message_bytes_max:
            raise CommandError(f"body of {body_bytes} bytes, at most {config.message_bytes_max}")
        if properties_bytes > config.properties_bytes_max:
            raise CommandError(
                f"properties of {properties_bytes} bytes, at most {config.properties_bytes_max}"
            )

    def _is_refused(
        self,
        connection: Connection,
        request: SendRequest,
        fields: SendMessageV2,
        topic: bytes,
        wall_ms: int,
    ) -> bool:
        """Refuse a send that its topic does not allow; create a new topic first."""
        if 0 <= fields.queue_id < self._topics.write_queues.get(topic, 0):
            return False
        refusal = self._topics.admit(fields, wall_ms)
        if refusal is not None:
            self._outbox.refuse(connection, request, *refusal)
        return refusal is not None

    def _delayed(
        self, fields: SendMessageV2, queue: Queue, properties: bytes, body_bytes: int
    ) -> tuple[Queue, bytes]:
        """Return the schedule queue of a delayed message, and its properties there.

        A message without a delay keeps its queue. Raises CommandError.
        """
        levels = len(self._config.delay_levels_ms)
        level = delay_level(properties, levels)
        is_transaction = fields.sys_flag & _TRANSACTION_TYPE in (_PREPARED, _ROLLED_BACK)
        if not level or is_transaction:
            return queue, undelayed_properties(properties)
        properties = scheduled_properties(properties, *queue, level)
        more_bytes = self._config.topic_bytes_max + DELIVERY_ROOM_BYTES
        size = ENTRY_OVERHEAD_BYTES + body_bytes + len(properties) + more_bytes
        if len(properties) + DELIVERY_ROOM_BYTES > self._config.properties_bytes_max:
            raise CommandError(f"properties of {len(properties)} bytes leave no room for a delay")
        if size > self._entry_bytes_max:
            raise CommandError(f"entry of {size} bytes: at most {self._entry_bytes_max}")
        return (SCHEDULE_TOPIC, level - 1), properties

    def _to_dlq_if_exhausted(self, fields: SendMessageV2, wall_ms: int) -> SendMessageV2:
        """Redirect a message that was retried too often to the group's dead-letter queue.

        Source: AbstractSendMessageProcessor.handleRetryAndDLQ (5.3.3).
        """
        times_max = fields.max_reconsume_times
        if times_max is None or times_max < 0:
            times_max = self._config.reconsume_times_max
        if fields.reconsume_times <= times_max:
            return fields
        topic = DLQ_PREFIX + fields.topic.removeprefix(RETRY_TOPIC_PREFIX)
        if refusal := self._topics.ensure(topic, RETRY_QUEUES, READ | WRITE, wall_ms):
            raise CommandError(refusal[1])
        properties = undelayed_properties(fields.properties.encode()).decode()
        return replace(fields, topic=topic, queue_id=0, properties=properties)

    def _wait(
        self, connection: Connection, request: SendRequest, reply: bytes, now_ms: float
    ) -> None:
        properties = request.fields.properties
        self._pending.waiting.append(
            PendingAppend(
                self._appender.builder.end.index,
                now_ms + self._config.ack_timeout_ms,
                connection,
                request.opaque,
                request.serialize_type,
                reply,
                WAIT_FALSE not in properties or not _skips_store_wait(properties),
            )
        )

    def _refuse_full(self, connection: Connection, request: AnyRequest) -> None:
        limit = self._config.pending_sends_max
        remark = f"[503] {limit} appends wait for the group already"
        self._outbox.refuse(connection, request, ResponseCode.SYSTEM_BUSY, remark)


def _skips_store_wait(properties: str) -> bool:
    """Whether the sender waits for neither disk nor slave. A DLedger group ignores it."""
    return find_property(properties.encode(), b"WAIT") == b"false"


def _joined(message: BatchMessage, batch_properties: bytes, config: BrokerConfig) -> bytes:
    """Return the full properties of a batch's message. Raises CommandError."""
    properties = joined_properties(message.properties, batch_properties)
    if DELAY_MARK.encode() not in properties:
        return properties
    if delay_level(properties, len(config.delay_levels_ms)):
        raise CommandError("a batch may not have messages with DELAY: send them by themselves")
    return undelayed_properties(properties)


def batch_request(command: Command) -> SendRequest:
    """Convert SEND_BATCH_MESSAGE to a send. Raises CommandError."""
    fields = SendMessageV2.from_ext(command.ext)
    fields.batch = True
    body = command.body if isinstance(command.body, memoryview) else memoryview(command.body)
    return SendRequest(command.opaque, command.flag, fields, body, command.serialize_type)


# Conditional appends: a message is stored only if it gets the offset that its sender expects.
#
# This is compare-and-set on a log: a client that has read a queue to its end extends what it read,
# or changes nothing. The leader compares with the offset of its own next append to the queue,
# which counts every earlier append, acknowledged or not, from any connection. A stored message
# therefore directly follows what its sender read. A refused message was not appended, though the
# unacknowledged messages that caused the refusal may still be lost.
#
# Source: our own; conditional appends of event stores (EventStoreDB's expectedVersion).


class ConditionalSends:
    """Serves APPEND_AT while this member leads: a send, if its condition holds."""

    def __init__(self, sends: Sends, appender: Appender, outbox: Outbox) -> None:
        self._sends = sends
        self._appender = appender
        self._outbox = outbox

    def append_at(
        self,
        connection: Connection,
        born_host: bytes,
        command: Command,
        now_ms: float,
        wall_ms: int,
    ) -> None:
        """Build the message's entry if it gets the expected offset. Raises CommandError.

        The appender must be ready; the caller calls its `append` soon.
        """
        expected = ExpectedOffset.from_ext(command.ext).expected_offset
        request = _send_of(command)
        fields = request.fields
        end = self._next_offset((fields.topic.encode(), fields.queue_id))
        if expected == end:
            # Nothing runs in between (no await), so the send below gets exactly this offset.
            self._sends.send(connection, born_host, request, now_ms, wall_ms)
            return
        remark = f"{fields.topic}/{fields.queue_id} does not end at the expected offset"
        ext = {"queueOffset": str(end)}
        self._outbox.answer(connection, command, ResponseCode.QUEUE_END_MOVED, remark, ext)

    def _next_offset(self, queue: Queue) -> int:
        """Return the offset of the queue's next message. A planted bug overrides this."""
        return self._appender.offset_of(queue)


def _send_of(command: Command) -> SendRequest:
    """Return the send to do if the condition holds. Raises CommandError if it changes its queue."""
    fields = SendMessageV2.from_ext(command.ext)
    if fields.batch:
        raise CommandError("a conditional append is of one message")
    if fields.topic.startswith(RETRY_TOPIC_PREFIX) or DELAY_MARK in fields.properties:
        raise CommandError("a conditional append goes to its own queue, and at once")
    body = command.body if isinstance(command.body, memoryview) else memoryview(command.body)
    return SendRequest(command.opaque, command.flag, fields, body, command.serialize_type)
