"""Messages that are appended again: delayed ones when they are due, and those sent back.

A delivery is one entry: the message under its real topic, with a property that names its schedule
queue and offset (`delay_levels.delivered_properties`). The delivery progress is therefore part of
the log itself. A new leader continues after the last delivery in the log, and during its term after
what it has appended, so that each message is delivered exactly once.
Source: RocketMQ's ScheduleMessageService, which keeps the progress in a separate file (E25). A
broker that uses such a file may find it ahead of a log that lost messages: then the progress goes
back to the queue's max offset.
"""

from __future__ import annotations

from shaketable.system.broker.appender import Appender
from shaketable.system.broker.consume_queue import Queue
from shaketable.system.broker.core import Core
from shaketable.system.broker.delay_levels import (
    DELIVERY_GROUP,
    LEVELS_MAX,
    SCHEDULE_TOPIC,
    delivered_properties,
    destination,
    scheduled_properties,
    undelayed_properties,
)
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reading.key_items import message_at
from shaketable.system.broker.reput import Reput
from shaketable.system.broker.topic_tables.topic_rules import Topics
from shaketable.system.broker.topic_tables.topics import (
    NAME_BYTES_MAX,
    READ,
    RETRY_PREFIX,
    RETRY_QUEUES,
    WRITE,
)
from shaketable.system.broker.topic_tables.topics import name_problem as problem_of_name
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import SendMessageBack
from shaketable.system.store.entry import EntryTooLarge
from shaketable.system.store.group_events import EVENT_TOPIC
from shaketable.system.store.message import (
    Message,
    decode_message,
    find_property,
    offset_message_id,
)

POLL_INTERVAL_MS = 50.0
"""How late a delivery may be if the leader is not busy (RocketMQ's DELAY_FOR_A_WHILE: 100)."""
BYTES_A_STEP_MAX = 4 << 20
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()


class DelayDelivery:
    """Polls the first undelivered message of each level.

    It uses the wall clock, as messages' store times do. If that is set back by more than a level's
    delay, the level's messages are delivered at once, as in RocketMQ.
    """

    def __init__(self, core: Core, reput: Reput, appender: Appender, config: BrokerConfig) -> None:
        self._core = core
        self._reput = reput
        self._appender = appender
        self._config = config
        self._next: dict[int, int] = {}  # by level: first offset not delivered in this term
        self._term = -1
        self._next_poll_ms = 0.0
        self.has_more = False
        """Whether the last step ended at a limit, so that the next should follow soon."""

    def deliver(self, now_ms: float, wall_ms: int) -> None:
        """Append the due deliveries. The builder must be empty. Raises StoreError."""
        appender = self._appender
        if now_ms < self._next_poll_ms and not self.has_more:
            return
        self.has_more = False
        if not appender.is_ready or self._core.transferee is not None:
            return
        if appender.term != self._term:
            self._term = appender.term
            self._next.clear()
        before = dict(self._next)
        left = self._config.deliveries_a_step_max
        bytes_left = BYTES_A_STEP_MAX
        for level in range(LEVELS_MAX):
            count, size = self._deliver_level(level, left, bytes_left, wall_ms)
            left -= count
            bytes_left -= size
        self.has_more = left <= 0 or bytes_left <= 0
        self._next_poll_ms = now_ms + POLL_INTERVAL_MS
        if appender.append(now_ms) is not None:  # refused: retry later
            self._roll_back(before)
            self.has_more = False

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        """Build the due deliveries of one level; return the number of messages and bytes."""
        queue: Queue = (SCHEDULE_TOPIC, level)
        queues = self._reput.queues
        end = queues.max_offset(queue)
        offsets = self._reput.tables.offsets
        if self._reput.may_lose_entries and self._done(level) > end:
            offsets.set_back(DELIVERY_GROUP, _SCHEDULE_TOPIC, level, end)
        if not end:
            return 0, 0
        offset = max(self._done(level), self._next.get(level, 0), queues.min_offset(queue))
        count = size = 0
        while offset < end and count < count_max and size < bytes_max:
            ((position, message_bytes, due_ms),) = queues.units(queue, offset, 1)
            if self._must_wait(level, (position, message_bytes), due_ms, wall_ms):
                break
            self._build(level, offset, position, message_bytes, wall_ms)
            offset += 1
            count += 1
            size += message_bytes
        self._next[level] = offset
        return count, size

    def _build(self, level: int, offset: int, position: int, size: int, wall_ms: int) -> None:
        """Build one delivery. A message without a destination is skipped; we never write one."""
        message = decode_message(self._core.log.read(position, size))
        target = destination(message.properties)
        if target is None or target.topic in (EVENT_TOPIC, SCHEDULE_TOPIC):
            return
        try:
            self._appender.copy(
                message,
                (target.topic, target.queue_id),
                delivered_properties(message.properties, level, offset),
                message.reconsume_times,
                wall_ms,
            )
        except EntryTooLarge:
            return  # an imported message, stored without room for its delivery

    # ---- decisions that planted bugs override, each in its own method -------------------

    def _done(self, level: int) -> int:
        """Return the offset up to which a level is delivered, by the committed entries."""
        return self._reput.tables.offsets.get(DELIVERY_GROUP, _SCHEDULE_TOPIC, level) or 0

    def _must_wait(self, level: int, place: tuple[int, int], due_ms: int, wall_ms: int) -> bool:
        """Whether the message at `place` (position, size) is not due yet."""
        del place
        # A due time further ahead than the whole delay means that the clock was set back.
        return wall_ms < due_ms <= wall_ms + self._config.delay_ms(level)

    def _roll_back(self, before: dict[int, int]) -> None:
        """Roll back the progress: no built delivery was appended."""
        self._next = before


# Retries messages that a consumer sends back, and finally moves them to the dead-letter queue.
#
# Source: RocketMQ's SendMessageProcessor.asyncConsumerSendMsgBack (4.9.8); DLEDGER.md D.4.

DLQ_PREFIX = "%DLQ%"
FIRST_RETRY_LEVEL = 3
"""Retry n (from 0) waits at delay level 3 + n, unless the client names a level."""
_RETRY_TOPIC, _ORIGIN_ID = b"RETRY_TOPIC", b"ORIGIN_MESSAGE_ID"


class SendBack:
    """Serves CONSUMER_SEND_MSG_BACK while this member leads."""

    def __init__(
        self,
        core: Core,
        reput: Reput,
        appender: Appender,
        topics: Topics,
        events: EventLog,
        config: BrokerConfig,
    ) -> None:
        self._core = core
        self._reput = reput
        self._appender = appender
        self._topics = topics
        self._events = events
        self._config = config

    def handle(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Store the message for its retry, or in the dead-letter queue. Raises CommandError."""
        fields = SendMessageBack.from_ext(command.ext)
        if problem := problem_of_name(fields.group, NAME_BYTES_MAX - len(RETRY_PREFIX)):
            raise CommandError(f"group: {problem}")
        if self._events.refuse_not_ready(connection, command):
            return
        if self._events.refuse_full(connection, command):
            return
        found = message_at(self._core.log, fields.offset, self._reput.applied_position)
        if found is None:
            remark = f"there is no committed message at {fields.offset} of this broker's log"
            self._events.refuse(connection, command, ResponseCode.SYSTEM_ERROR, remark)
            return
        message, _ = found
        level = self._level(fields, message)
        topic = f"{RETRY_PREFIX if level else DLQ_PREFIX}{fields.group}"
        if refusal := self._topics.ensure(topic, RETRY_QUEUES, READ | WRITE, wall_ms):
            self._events.refuse(connection, command, *refusal)
            return
        known = self._topics.get(topic)
        if known is not None and not known.perm & WRITE:
            remark = f"sending to topic {topic} is forbidden (its perm)"
            self._events.refuse(connection, command, ResponseCode.NO_PERMISSION, remark)
            return
        try:
            self._build(message, topic.encode(), level, wall_ms)
        except EntryTooLarge as error:
            raise CommandError(f"the message cannot come again: {error}") from None
        self._events.answer_when_stored(connection, command, now_ms)

    def _level(self, fields: SendMessageBack, message: Message) -> int:
        """Return the delay level of the retry, 0 if the message is to be dead-lettered."""
        times_max = fields.max_reconsume_times
        if times_max is None or times_max < 0:
            times_max = self._config.reconsume_times_max
        if fields.delay_level < 0 or message.reconsume_times >= times_max:
            return 0
        level = fields.delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
        return max(1, min(level, len(self._config.delay_levels_ms)))

    def _build(self, message: Message, topic: bytes, level: int, wall_ms: int) -> None:
        """Build the message's copy for its retry. Raises EntryTooLarge."""
        properties = undelayed_properties(message.properties)
        if not find_property(properties, _RETRY_TOPIC):
            properties += b"RETRY_TOPIC\x01%b\x02" % message.topic
        if not find_property(properties, _ORIGIN_ID):
            own_id = offset_message_id(message.store_host, message.physical_offset)
            properties += b"ORIGIN_MESSAGE_ID\x01%b\x02" % own_id
        queue = (topic, 0)
        if level:
            properties = scheduled_properties(properties, topic, 0, level)
            queue = (SCHEDULE_TOPIC, level - 1)
        self._appender.copy(message, queue, properties, message.reconsume_times + 1, wall_ms)
