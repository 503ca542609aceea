"""Consumes one queue for a consumer group: pulls, calls the handler, commits.

Source: RocketMQ's PullMessageService, ProcessQueue, ConsumeMessageConcurrentlyService and
ConsumeMessageOrderlyService; DLEDGER.md D.4.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.client.routes import MessageQueue
from shaketable.system.store.message import TAGS, Message, find_property

RETRY_AFTER_S: Final = 0.2
SUSPEND_S: Final = 1.0
"""How long an ordered queue pauses after a message that was not consumed."""
LOCK_POLL_S: Final = 0.1
LOCK_GRACE_S: Final = 20.0
"""How long a handler may keep running after its lock ends. It gets no new messages then, and the
broker keeps a lock twice as long as clients trust it, so no other consumer gets the queue yet."""


class ConsumeError(Exception):
    """A handler failed: the first `consumed` messages count as consumed, the others are retried.

    `delay_level` is the delay before a retry through the retry topic (RocketMQ's
    delayLevelWhenNextConsume): 0 leaves it to the broker, -1 sends the messages to the dead-letter
    queue at once.
    """

    def __init__(self, consumed: int = 0, delay_level: int = 0) -> None:
        super().__init__(f"{consumed} messages were consumed, the next was not")
        self.consumed = consumed
        self.delay_level = delay_level


Handler = Callable[[MessageQueue, Sequence[Message]], Awaitable[None]]


class QueueReader:
    """Consumes one queue that is assigned to this consumer.

    Attributes:
        ended: set when `run` has ended.
    """

    def __init__(
        self,
        source: PullConsumer,
        queue: MessageQueue,
        subscription: str,
        handler: Handler,
        *,
        is_ordered: bool,
        wait_s: float,
        reconsume_times_max: int = -1,
    ) -> None:
        self._source = source
        self._queue = queue
        self._subscription = subscription
        tags = [] if subscription == "*" else subscription.split("||")
        self._tags = frozenset(tag.strip().encode() for tag in tags)
        self._handler = handler
        self._is_ordered = is_ordered
        self._wait_s = wait_s
        self._reconsume_times_max = reconsume_times_max
        self._offset: int | None = None  # messages before it are consumed
        self._committed: int | None = None
        self._scope = trio.CancelScope()
        self._handling = trio.CancelScope()
        self._locked_until_s = math.inf
        self._is_lost = False  # whether the lock was lost since the last step started
        self.ended = trio.Event()

    def extend_lock(self, until_s: float) -> None:
        """Set until when, by trio's clock, the queue may be consumed."""
        self._locked_until_s = until_s
        self._handling.deadline = until_s + LOCK_GRACE_S

    def lock_lost(self) -> None:
        """Stop at once: another consumer holds the queue's lock.

        If the queue comes back, consumption continues at the group's committed offset.
        """
        self._is_lost = True
        self.extend_lock(-math.inf)

    async def run(self) -> None:
        """Consume until `stop` is called, or until cancelled."""
        try:
            with self._scope:
                while True:
                    await self._step()
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Stop consuming. A running handler is cancelled; its messages are delivered again."""
        self._scope.cancel()

    async def commit(self) -> None:
        """Commit the offset after the consumed messages; if that fails, it is retried later."""
        offset = self._offset
        if offset is None or offset == self._committed or self._is_lost:
            return
        try:
            await self._source.commit(self._queue, offset)
        except (RefusedError, OutcomeUnknownError):
            return
        self._committed = offset

    async def _step(self) -> None:
        """Pull once, and pass the messages to the handler."""
        if self._is_lost:
            self._is_lost, self._offset = False, None
        if not self._is_locked():
            await trio.sleep(LOCK_POLL_S)
            return
        try:
            if self._offset is None:
                self._offset = self._committed = await self._start_offset()
            pulled = await self._source.pull(
                self._queue, self._offset, subscription=self._subscription, wait_s=self._wait_s
            )
        except (RefusedError, OutcomeUnknownError):
            await trio.sleep(RETRY_AFTER_S)
            return
        if self._is_lost or not self._is_locked():
            return  # the lock ended during the pull
        wanted = [message for message in pulled.messages if self._is_wanted(message)]
        if not wanted or await self._consume(wanted):
            self._offset = pulled.next_offset

    def _is_locked(self) -> bool:
        return trio.current_time() < self._locked_until_s

    async def _start_offset(self) -> int:
        """Return the group's committed offset, else the queue's min offset."""
        committed = await self._source.committed(self._queue)
        return committed if committed is not None else await self._source.min_offset(self._queue)

    def _is_wanted(self, message: Message) -> bool:
        """Return whether a message's tag is subscribed to; the broker compares hashes only."""
        return not self._tags or find_property(message.properties, TAGS) in self._tags

    async def _consume(self, messages: list[Message]) -> bool:
        """Call the handler; return True if this queue need not deliver the messages again."""
        deadline_s = self._locked_until_s + LOCK_GRACE_S
        try:
            with trio.CancelScope(deadline=deadline_s) as self._handling:
                await self._handler(self._queue, messages)
            if self._handling.cancelled_caught:
                return False
        except ConsumeError as error:
            left = messages[error.consumed :]
            if not self._is_ordered and await self._send_back(left, error.delay_level):
                return True
            if left:
                self._offset = left[0].queue_offset
                await trio.sleep(SUSPEND_S)
                return False
        return True

    async def _send_back(self, messages: Sequence[Message], delay_level: int) -> bool:
        """Send messages back for a retry; return False if the broker did not take them all."""
        for message in messages:
            try:
                await self._source.send_back(
                    self._queue,
                    message.physical_offset,
                    delay_level=delay_level,
                    reconsume_times_max=self._reconsume_times_max,
                )
            except (RefusedError, OutcomeUnknownError):
                return False
        return True
