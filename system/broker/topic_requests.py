"""Operators' requests about topics: made, changed and deleted by replicated entries.

Source: RocketMQ's AdminBrokerProcessor.updateAndCreateTopic and deleteTopic.
"""

from __future__ import annotations

from shaketable.system.broker.effects import Connection
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.topic_rules import Topics
from shaketable.system.broker.topics import (
    INHERIT,
    QUEUES_MAX,
    READ,
    WRITE,
    TopicConfig,
    is_builtin,
    name_problem,
)
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import CreateTopic, DeleteTopic

ATTRIBUTES_BYTES_MAX = 4096
_FILTER_TYPES = frozenset(("SINGLE_TAG", "MULTI_TAG"))
_PERM_MAX = READ | WRITE | INHERIT


class TopicRequests:
    """Serves UPDATE_AND_CREATE_TOPIC and DELETE_TOPIC_IN_BROKER at the leader."""

    def __init__(self, topics: Topics, events: EventLog) -> None:
        self._topics = topics
        self._events = events

    def create(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Make a topic or change one; answered when that is acknowledged. Raises CommandError."""
        fields = CreateTopic.from_ext(command.ext)
        _check(fields)
        if self._is_refused(connection, command):
            return
        known = self._topics.get(fields.topic)
        config = TopicConfig(
            fields.topic,
            fields.read_queue_nums,
            fields.write_queue_nums,
            fields.perm,
            fields.topic_filter_type,
            fields.topic_sys_flag,
            fields.order,
            _attributes(known.attributes if known else "", fields.attributes or ""),
        )
        if refusal := self._topics.put(config, wall_ms):
            self._events.refuse(connection, command, *refusal)
        else:
            self._events.answer_when_acknowledged(connection, command, now_ms)

    def delete(self, connection: Connection, command: Command, now_ms: float, wall_ms: int) -> None:
        """Delete a topic; that there is none is no error, as in RocketMQ. Raises CommandError.

        Its messages stay in the log until they expire, and a topic made anew under its name
        goes on at the next offsets.
        """
        topic = DeleteTopic.from_ext(command.ext).topic
        if problem := name_problem(topic):
            raise CommandError(f"topic: {problem}")
        if is_builtin(topic):
            raise CommandError(f"topic {topic} belongs to the broker: it cannot be deleted")
        if self._is_refused(connection, command):
            return
        self._topics.delete(topic, wall_ms)
        self._events.answer_when_acknowledged(connection, command, now_ms)

    def _is_refused(self, connection: Connection, command: Command) -> bool:
        command.body = b""
        return self._events.refuse_not_ready(connection, command) or self._events.refuse_full(
            connection, command
        )


def _check(fields: CreateTopic) -> None:
    """Raise CommandError for a topic that cannot be."""
    if problem := name_problem(fields.topic):
        raise CommandError(f"topic: {problem}")
    if is_builtin(fields.topic):
        raise CommandError(f"topic {fields.topic} belongs to the broker: choose another name")
    for name, count in (
        ("readQueueNums", fields.read_queue_nums),
        ("writeQueueNums", fields.write_queue_nums),
    ):
        if not 0 < count <= QUEUES_MAX:
            raise CommandError(f"{name} {count} is not in 1..{QUEUES_MAX}")
    if not 0 <= fields.perm <= _PERM_MAX:
        raise CommandError(
            f"perm {fields.perm} is not in 0..{_PERM_MAX}: 4 read, 2 write, 1 inherit"
        )
    if fields.topic_filter_type not in _FILTER_TYPES:
        raise CommandError(f"topicFilterType must be one of {', '.join(sorted(_FILTER_TYPES))}")
    if len(fields.attributes or "") > ATTRIBUTES_BYTES_MAX:
        raise CommandError(f"attributes of more than {ATTRIBUTES_BYTES_MAX} characters")


def _attributes(known: str, changes: str) -> str:
    """Return "name=value,..." in order after changes of the form "+name=value,-name".

    Raises CommandError. Source: RocketMQ's AttributeParser.
    """
    pairs = dict(part.split("=", 1) for part in known.split(",") if part)
    for change in filter(None, changes.split(",")):
        name, equals, value = change[1:].partition("=")
        if change[0] == "+" and name and equals:
            pairs[name] = value
        elif change[0] == "-" and name and not equals:
            pairs.pop(name, None)
        else:
            raise CommandError(f"attributes: {change!r} is not of the form +name=value or -name")
    return ",".join(f"{name}={value}" for name, value in sorted(pairs.items()))
