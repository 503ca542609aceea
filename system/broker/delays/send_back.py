"""Retries messages that a consumer sends back, and finally moves them to the dead-letter queue.

Source: RocketMQ's SendMessageProcessor.asyncConsumerSendMsgBack (4.9.8); DLEDGER.md D.4.
"""

from __future__ import annotations

from shaketable.system.broker.appender import Appender
from shaketable.system.broker.core import Core
from shaketable.system.broker.delays.delay_levels import (
    SCHEDULE_TOPIC,
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
from shaketable.system.store.message import Message, find_property, offset_message_id

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
