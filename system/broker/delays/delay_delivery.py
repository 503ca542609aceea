"""Delivers delayed messages when their time has come: the leader's side.

Each delivery is one entry, the message itself under its real topic, and says by a property from
which place of the schedule it was made (`delay_levels.delivered`). How far the delivery is
follows from the committed entries alone, so a new leader goes on exactly behind what is in the
log, and within its term behind what it has appended: nothing is delivered twice or left out.
Source: RocketMQ's ScheduleMessageService, where the progress is a file of its own (E25). Where such
a file counts, it may know of messages that the log has lost: then it goes back to the queue's end.
"""

from __future__ import annotations

from shaketable.system.broker.appender import Appender
from shaketable.system.broker.consume_queue import Queue
from shaketable.system.broker.core import Core
from shaketable.system.broker.delays.delay_levels import (
    DELIVERY_GROUP,
    LEVELS_MAX,
    SCHEDULE_TOPIC,
    delivered,
    destination,
)
from shaketable.system.broker.limits import BrokerConfig
from shaketable.system.broker.reput import Reput
from shaketable.system.store.entry import EntryTooLarge
from shaketable.system.store.group_events import EVENT_TOPIC
from shaketable.system.store.message import decode_message

LOOK_INTERVAL_MS = 50.0
"""How late a delivery is at most, where the leader has time (RocketMQ's DELAY_FOR_A_WHILE: 100)."""
BYTES_A_STEP_MAX = 4 << 20
_SCHEDULE_TOPIC = SCHEDULE_TOPIC.decode()


class DelayDelivery:
    """Looks now and then at the first waiting message of each level.

    Its clock is the wall clock that gave messages their store times: where that is set back by
    more than a level's delay, the level's messages are delivered at once, as in RocketMQ.
    """

    def __init__(self, core: Core, reput: Reput, appender: Appender, config: BrokerConfig) -> None:
        self._core = core
        self._reput = reput
        self._appender = appender
        self._config = config
        self._next: dict[int, int] = {}  # by level: the first offset that this term has not done
        self._term = -1
        self._look_ms = 0.0
        self.has_more = False
        """Whether the last look ended at a limit: the next should come soon."""

    def deliver(self, now_ms: float, wall_ms: int) -> None:
        """Append what is due. The builder must be empty. Raises StoreError."""
        appender = self._appender
        if now_ms < self._look_ms and not self.has_more:
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
        self._look_ms = now_ms + LOOK_INTERVAL_MS
        if appender.append(now_ms) is not None:  # later then: nothing of it was appended
            self._refused(before)
            self.has_more = False

    def _deliver_level(
        self, level: int, count_max: int, bytes_max: int, wall_ms: int
    ) -> tuple[int, int]:
        """Build what is due of one level; return how many messages and bytes."""
        queue: Queue = (SCHEDULE_TOPIC, level)
        queues = self._reput.queues
        end = queues.max_offset(queue)
        offsets = self._reput.tables.offsets
        done = self._done(level)
        if done > end and self._reput.may_lose_entries:
            offsets.set_back(DELIVERY_GROUP, _SCHEDULE_TOPIC, level, end)
            done = end
        if not end:
            return 0, 0
        offset = max(done, self._next.get(level, 0), queues.min_offset(queue))
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
        """Build one delivery; what says no place to go to, as ours never does, stays behind."""
        message = decode_message(self._core.log.read(position, size))
        goal = destination(message.properties)
        if goal is None or goal.topic in (EVENT_TOPIC, SCHEDULE_TOPIC):
            return
        try:
            self._appender.copy(
                message,
                (goal.topic, goal.queue_id),
                delivered(message.properties, level, offset),
                message.reconsume_times,
                wall_ms,
            )
        except EntryTooLarge:
            return  # a foreign message that was stored without room for its delivery

    # ---- decisions that calibration may break, each in a method of its own -------------

    def _done(self, level: int) -> int:
        """Up to which offset of a level all is delivered, by the committed entries."""
        return self._reput.tables.offsets.get(DELIVERY_GROUP, _SCHEDULE_TOPIC, level) or 0

    def _must_wait(self, level: int, place: tuple[int, int], due_ms: int, wall_ms: int) -> bool:
        """Whether the message at that (position, size) is to come later."""
        del place
        return wall_ms < due_ms <= wall_ms + self._config.delay_ms(level)

    def _refused(self, before: dict[int, int]) -> None:
        """Nothing of what was built was appended: go on where the last look ended."""
        self._next = before
