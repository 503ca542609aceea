"""Reads one queue for a consumer group: pulls, hands over, commits; one queue, one reader.

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
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import SendMessageBack
from shaketable.system.store.message import TAGS, Message, find_property

RETRY_AFTER_S: Final = 0.2
SUSPEND_S: Final = 1.0
"""How long an ordered queue rests behind a message that was not consumed."""
LOCK_POLL_S: Final = 0.1
LOCK_GRACE_S: Final = 20.0
"""So long behind the end of its lock a handler may still be at work: nothing new is handed over,
and the broker, which keeps locks twice as long as they are trusted, gives it to nobody yet."""


class ConsumeError(Exception):
    """A handler could not consume: the first `consumed` messages count, the others come again.

    `delay_level` says after which delay, where they come by the retry topic (RocketMQ's
    delayLevelWhenNextConsume): 0 leaves it to the broker, -1 puts them to the dead letters at once.
    """

    def __init__(self, consumed: int = 0, delay_level: int = 0) -> None:
        super().__init__(f"{consumed} messages were consumed, the next was not")
        self.consumed = consumed
        self.delay_level = delay_level


Handler = Callable[[MessageQueue, Sequence[Message]], Awaitable[None]]


class QueueReader:
    """One queue that belongs to this consumer.

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
        self._offset: int | None = None  # what is in front of it is consumed
        self._committed: int | None = None
        self._scope = trio.CancelScope()
        self._handling = trio.CancelScope()
        self._locked_until_s = math.inf
        self._is_lost = False  # since the last turn began
        self.ended = trio.Event()

    def extend_lock(self, until_s: float) -> None:
        """Say until when, by trio's clock, the queue may be consumed."""
        self._locked_until_s = until_s
        self._handling.deadline = until_s + LOCK_GRACE_S

    def lock_lost(self) -> None:
        """Somebody else has the queue: stop at once.

        Should it come back, the group goes on where the other one committed.
        """
        self._is_lost = True
        self.extend_lock(-math.inf)

    async def run(self) -> None:
        """Read until `stop`, or until cancelled."""
        try:
            with self._scope:
                while True:
                    await self._step()
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Read no more. A handler that is at work is cancelled, its messages come again."""
        self._scope.cancel()

    async def commit(self) -> None:
        """Let the group go on behind what was consumed; where that fails it is tried later."""
        offset = self._offset
        if offset is None or offset == self._committed or self._is_lost:
            return
        try:
            await self._source.commit(self._queue, offset)
        except (RefusedError, OutcomeUnknownError):
            return
        self._committed = offset

    async def _step(self) -> None:
        """Pull once, and hand over what came."""
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
            return  # it ran out during the pull
        wanted = [message for message in pulled.messages if self._is_wanted(message)]
        if not wanted or await self._consume(wanted):
            self._offset = pulled.next_offset

    def _is_locked(self) -> bool:
        return trio.current_time() < self._locked_until_s

    async def _start_offset(self) -> int:
        """Where the group goes on: what it committed, else the first message that is retained."""
        committed = await self._source.committed(self._queue)
        return committed if committed is not None else await self._source.min_offset(self._queue)

    def _is_wanted(self, message: Message) -> bool:
        """The broker compares hashes of tags only."""
        return not self._tags or find_property(message.properties, TAGS) in self._tags

    async def _consume(self, messages: list[Message]) -> bool:
        """Hand messages over; True if all of them need not come here again."""
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
        """Have messages brought again later; False where the broker did not take one of them."""
        for message in messages:
            fields = SendMessageBack(
                message.physical_offset,
                self._source.group,
                delay_level,
                max_reconsume_times=self._reconsume_times_max,
            )
            command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=fields.to_ext())
            try:
                answer = await self._source.ask_master(self._queue, command)
            except (RefusedError, OutcomeUnknownError):
                return False
            if answer.code != ResponseCode.SUCCESS:
                return False
        return True
