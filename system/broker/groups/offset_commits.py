"""Offset commits at the leader: batched by step, answered once acknowledged.

All commits between two calls of `Broker.take` share entries, from all connections. The commits of
one connection to a queue take effect in order; a client may set an offset back.
Source: RocketMQ's ConsumerManageProcessor.updateConsumerOffset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from shaketable.system.broker.delay_levels import DELIVERY_GROUP
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.event_log import EventLog
from shaketable.system.broker.groups.group_offsets import (
    KEYS_MAX,
    OFFSETS_MAX,
    OffsetEvent,
    OffsetTable,
    offset_key,
)
from shaketable.system.broker.topic_tables.topics import name_problem
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.requests import UpdateConsumerOffset
from shaketable.system.store.group_events import OFFSET_PROPERTIES, OFFSET_QUEUE

GROUP_BYTES_MAX = 255
QUEUE_ID_MAX = 1 << 16
_UPDATE_BYTES = 40  # the two numbers of an update, with punctuation
_KEY_BYTES = 10  # the punctuation around a key, and the outer brackets

_Offsets = dict[tuple[str, int], tuple[int, int]]
"""By "topic@group" and queue id, an unapplied offset after the index of its entry."""


class OffsetCommits:
    """Stages the offset commits of a step and writes them as few entries.

    `last_deletion` returns the index of the entry that last deleted a topic, if it is not applied
    yet, else -1.
    """

    def __init__(
        self, table: OffsetTable, events: EventLog, last_deletion: Callable[[str], int]
    ) -> None:
        self.table = table
        self._events = events
        self._last_deletion = last_deletion
        self._staged: dict[str, dict[int, int]] = {}
        self._staged_count = 0
        self._waiting: list[tuple[Connection, Command]] = []
        self._written: _Offsets = {}
        self._unapplied: deque[tuple[int, _Offsets]] = deque()  # by the last entry of a step
        self._wall_ms = 0
        events.on_discard(self._discard)

    def update(self, connection: Connection, command: Command, wall_ms: int) -> None:
        """Handle UPDATE_CONSUMER_OFFSET. Raises CommandError if it is illegal."""
        fields = UpdateConsumerOffset.from_ext(command.ext)
        group, topic, queue_id = fields.consumer_group, fields.topic, fields.queue_id
        _check(group, topic, queue_id, fields.commit_offset)
        if self._events.refuse_not_ready(connection, command):
            return
        if self._events.refuse_full(connection, command, len(self._waiting)):
            return
        if not self._has_room(offset_key(group, topic), queue_id):
            remark = f"{OFFSETS_MAX} offsets of {KEYS_MAX} topics and groups are kept: delete some"
            self._events.refuse(connection, command, ResponseCode.NO_PERMISSION, remark)
            return
        if command.is_oneway:
            self.store(group, topic, queue_id, fields.commit_offset, wall_ms)
            return
        command.body = b""  # a kept command must not pin its frame's buffer
        self._stage(offset_key(group, topic), queue_id, fields.commit_offset, wall_ms)
        self._waiting.append((connection, command))

    def store(self, group: str, topic: str, queue_id: int, offset: int, wall_ms: int) -> None:
        """Commit an offset without an answer: one-way, or with a pull.

        Nothing is written if the offset is unchanged, if this member does not lead, or if there
        is no room. Raises CommandError if it is illegal.
        """
        _check(group, topic, queue_id, offset)
        key = offset_key(group, topic)
        known = self._staged.get(key, {}).get(queue_id)
        if known is None:
            known = self._last_written(group, topic, queue_id)
        if known != offset and self._events.is_ready and self._has_room(key, queue_id):
            self._stage(key, queue_id, offset, wall_ms)

    @property
    def has_staged(self) -> bool:
        """Whether commits are staged."""
        return bool(self._staged)

    def build(self, now_ms: float) -> None:
        """Write the staged commits as entries; the caller appends them next."""
        updates, self._staged, self._staged_count = self._staged, {}, 0
        waiting, self._waiting = self._waiting, []
        if not self._events.is_ready:  # it stopped leading since they were staged
            for connection, command in waiting:
                self._events.refuse_not_ready(connection, command)
            return
        for body in encode_bodies(updates, self._events.body_bytes_max):
            self._events.write(OFFSET_QUEUE, OFFSET_PROPERTIES, body, self._wall_ms)
        index = self._events.end_index
        written = {
            (key, queue_id): (index, offset)
            for key, offsets in updates.items()
            for queue_id, offset in offsets.items()
        }
        self._unapplied.append((index, written))
        self._written.update(written)
        for connection, command in waiting:
            self._events.answer_when_acknowledged(connection, command, now_ms)

    def drop(self, connection: Connection) -> None:
        """Drop the pending replies of a connection that closed."""
        self._waiting = [one for one in self._waiting if one[0] != connection]

    def _stage(self, key: str, queue_id: int, offset: int, wall_ms: int) -> None:
        offsets = self._staged.setdefault(key, {})
        self._staged_count += queue_id not in offsets
        offsets[queue_id] = offset
        self._wall_ms = wall_ms

    def _last_written(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset that all entries written so far leave, None if they leave none."""
        self._forget_applied()
        deletion = self._last_deletion(topic)
        written = self._written.get((offset_key(group, topic), queue_id))
        if written is not None:
            index, offset = written
            return offset if index > deletion else None
        return self.table.get(group, topic, queue_id) if deletion < 0 else None

    def _forget_applied(self) -> None:
        """Forget written offsets that are applied: since then their topic may have been deleted."""
        unapplied, applied_index = self._unapplied, self._events.applied_index
        while unapplied and unapplied[0][0] <= applied_index:
            _, written = unapplied.popleft()
            for key, offset in written.items():
                if self._written.get(key) == offset:  # else a later entry has another one
                    del self._written[key]

    def _discard(self, last_kept: int) -> None:
        """Forget the offsets written after entry `last_kept`; the others may still be applied."""
        while self._unapplied and self._unapplied[-1][0] > last_kept:
            self._unapplied.pop()
        self._written = {}
        for _, written in self._unapplied:
            self._written.update(written)

    def _has_room(self, key: str, queue_id: int) -> bool:
        """Whether this offset fits the limits; unapplied offsets count as new ones."""
        self._forget_applied()
        if self.table.has(key, queue_id):
            return True
        if not self.table.has_key(key):
            unapplied = len(self._staged) + len(self._written)
            if len(self.table) + unapplied >= KEYS_MAX:
                return False
        return self.table.count + self._staged_count + len(self._written) < OFFSETS_MAX


def encode_bodies(updates: Mapping[str, Mapping[int, int]], bytes_max: int) -> list[bytes]:
    """Encode updates by "topic@group" and queue id, in as few bodies as `bytes_max` allows."""
    parts: list[OffsetEvent] = []
    left = 0
    for key, offsets in updates.items():
        key_bytes = len(key.encode()) + _KEY_BYTES
        is_open = False  # whether the newest part has the key
        for update in offsets.items():
            needed = _UPDATE_BYTES + (0 if is_open else key_bytes)
            if not parts or needed > left:
                parts.append([])
                left, is_open = bytes_max, False
                needed = _UPDATE_BYTES + key_bytes
                assert needed <= left
            if not is_open:
                parts[-1].append((key, []))
                is_open = True
            parts[-1][-1][1].append(update)
            left -= needed
    return [msgspec.json.encode(part) for part in parts]


def _check(group: str, topic: str, queue_id: int, offset: int) -> None:
    if problem := name_problem(group, GROUP_BYTES_MAX):
        raise CommandError(f"consumerGroup: {problem}")
    if group == DELIVERY_GROUP:
        raise CommandError(f"consumerGroup: {group} is the broker's own")
    if problem := name_problem(topic):
        raise CommandError(f"topic: {problem}")
    if not 0 <= queue_id < QUEUE_ID_MAX:
        raise CommandError(f"queueId {queue_id} is not in 0..{QUEUE_ID_MAX - 1}")
    if offset < 0:
        raise CommandError(f"commitOffset {offset} is below 0")
