"""Checks access to topics and creates new ones: the leader's side.

The leader also counts topics that it has appended but not applied yet.
Source: RocketMQ's AbstractSendMessageProcessor.msgCheck, TopicConfigManager and
PullMessageProcessor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from shaketable.system.broker.appender import Refusal
from shaketable.system.broker.consume_queue import ConsumeQueues
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.topic_tables.topics import (
    INHERIT,
    READ,
    RETRY_PREFIX,
    RETRY_QUEUES,
    SCHEDULE_TOPIC,
    WRITE,
    TopicConfig,
    TopicEvent,
    TopicTable,
    name_problem,
)
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.requests import SendMessageV2
from shaketable.system.store.group_events import TOPIC_PROPERTIES, TOPIC_QUEUE


class Topics:
    """Decides what may be sent and read, and writes topic changes.

    Methods that write require `events.is_ready`; their entries are appended with the next step.
    """

    def __init__(
        self,
        table: TopicTable,
        events: EventLog,
        queues: Callable[[], ConsumeQueues],
        topics_max: int,
    ) -> None:
        self.table = table
        self.write_queues = table.write_queues
        self._events = events
        self._queues = queues
        self._topics_max = topics_max
        self._pending: dict[str, TopicConfig | None] = {}
        # by entry, not applied
        self._pending_entries: deque[tuple[int, str, TopicConfig | None]] = deque()
        events.on_discard(self._discard_pending)

    @property
    def is_ready(self) -> bool:
        """Whether the table is current: this member leads and has applied all earlier terms."""
        return self._events.is_ready

    def get(self, name: str) -> TopicConfig | None:
        """Return a topic's configuration, appended changes included; None if there is none."""
        return self._pending[name] if name in self._pending else self.table.get(name)

    def admit(self, fields: SendMessageV2, wall_ms: int) -> Refusal | None:
        """Return why a send is refused, None if it is not; create a new topic.

        Source: TopicConfigManager.createTopicInSendMessageMethod.
        """
        name = fields.topic
        known = self.get(name)
        config = known or self._new(fields)
        if config is None:
            return ResponseCode.TOPIC_NOT_EXIST, f"topic {name} does not exist: create it first"
        if not config.perm & WRITE or name == SCHEDULE_TOPIC:
            return ResponseCode.NO_PERMISSION, f"sending to topic {name} is forbidden (its perm)"
        if not 0 <= fields.queue_id < config.write_queue_nums:
            last = config.write_queue_nums - 1
            return ResponseCode.MESSAGE_ILLEGAL, f"queue {fields.queue_id} is not in 0..{last}"
        return None if known else self.put(config, wall_ms)

    def ensure(self, name: str, queues: int, perm: int, wall_ms: int) -> Refusal | None:
        """Create a topic unless it exists (retry and dead-letter topics); return a refusal."""
        if self.get(name) is not None:
            return None
        return self.put(
            TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm), wall_ms
        )

    def put(self, config: TopicConfig, wall_ms: int) -> Refusal | None:
        """Write a topic's configuration, or return why it is refused."""
        name = config.topic_name
        if problem := name_problem(name):
            return ResponseCode.MESSAGE_ILLEGAL, problem
        self._forget_applied()
        is_new = not self.table.is_known(name) and name not in self._pending
        if is_new and self._is_full():
            remark = f"there are {self._topics_max} topics already: use one of them"
            return ResponseCode.NO_PERMISSION, remark
        if (size := len(_body(name, config))) > (size_max := self._events.body_bytes_max):
            remark = f"topic {name} has a configuration of {size} bytes, at most {size_max}"
            return ResponseCode.MESSAGE_ILLEGAL, remark
        self._write(name, config, wall_ms)
        return None

    def _is_full(self) -> bool:
        """Return whether there are `topics_max` topics, pending new ones included."""
        free = self._topics_max - len(self.table)
        if len(self._pending) < free:  # even if all of them are new
            return False
        return sum(not self.table.is_known(name) for name in self._pending) >= free

    def delete(self, name: str, wall_ms: int) -> None:
        """Delete a topic, and with it the offsets that groups committed in it."""
        if self.get(name) is not None:
            self._write(name, None, wall_ms)

    def last_deletion(self, name: str) -> int:
        """Return the index of a topic's last unapplied deletion, -1 if there is none."""
        self._forget_applied()
        deletions = (
            index
            for index, topic, config in self._pending_entries
            if topic == name and config is None
        )
        return max(deletions, default=-1)

    def pull_refusal(self, name: str, queue_id: int) -> Refusal | None:
        """Return why a pull is refused, None if it is not."""
        config = self.get(name)
        if config is None:
            if not self.table.is_known(name) and self._queues().max_offset(
                (name.encode(), queue_id)
            ):
                return None  # in a log from before topics were entries
            return ResponseCode.TOPIC_NOT_EXIST, f"topic {name} does not exist: create it first"
        if not config.perm & READ:
            return ResponseCode.NO_PERMISSION, f"reading topic {name} is forbidden (its perm)"
        last = config.read_queue_nums - 1
        if not 0 <= queue_id <= last and not self._queues().max_offset((name.encode(), queue_id)):
            return ResponseCode.SYSTEM_ERROR, f"queue {queue_id} of {name} is not in 0..{last}"
        return None

    def _new(self, fields: SendMessageV2) -> TopicConfig | None:
        """Return the topic that a send creates, None if it may not create one."""
        name = fields.topic
        if name.startswith(RETRY_PREFIX):
            return TopicConfig(name, RETRY_QUEUES, RETRY_QUEUES)
        default = self.get(fields.default_topic)
        if default is None or not default.perm & INHERIT:
            return None
        queues = max(0, min(fields.default_topic_queue_nums, default.write_queue_nums))
        queues = max(queues, self._queues_of(name))
        return TopicConfig(
            name,
            queues,
            queues,
            default.perm & ~INHERIT,
            default.topic_filter_type,
            default.topic_sys_flag,
        )

    def _queues_of(self, name: str) -> int:
        """Return the highest queue id that ever had messages, plus one."""
        topic = name.encode()
        numbers = (number for of, number in self._queues().ranges() if of == topic)
        return max(numbers, default=-1) + 1

    def _write(self, name: str, config: TopicConfig | None, wall_ms: int) -> None:
        self._events.write(TOPIC_QUEUE, TOPIC_PROPERTIES, _body(name, config), wall_ms)
        self._pending[name] = config
        self._pending_entries.append((self._events.end_index, name, config))
        self.table.allow(name, config)

    def _forget_applied(self) -> None:
        """Forget pending changes once the table has them all."""
        while self._pending_entries and self._pending_entries[0][0] <= self._events.applied_index:
            self._pending_entries.popleft()
        if not self._pending_entries:
            self._pending.clear()

    def _discard_pending(self, last_kept: int) -> None:
        """Forget the changes built after entry `last_kept`; the others may still be applied."""
        pending = self._pending_entries
        if not pending or pending[-1][0] <= last_kept:
            return
        while pending and pending[-1][0] > last_kept:
            pending.pop()
        self._pending = {name: config for _, name, config in pending}
        self.table.reset_write_queues()
        for name, config in self._pending.items():
            self.table.allow(name, config)


def _body(name: str, config: TopicConfig | None) -> bytes:
    """Return the body of the entry that sets a topic's configuration, or deletes the topic."""
    return msgspec.json.encode(TopicEvent(name, config))
