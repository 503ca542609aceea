"""A push consumer, which is handed messages, running beside a campaign's client.

Source: RocketMQ's DefaultMQPushConsumer with a message listener; `system.client.GroupConsumer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final

import trio

from shaketable.harness.contracts.clients import Delivery
from shaketable.system.client import ConsumeError, GroupConsumer, Intervals, Message, MessageQueue

END_TIMEOUT_S: Final = 5.0
"""How long a leaving consumer may take: `system.client` waits for its last commit."""
HEARTBEAT_S: Final = 2.0
REBALANCE_S: Final = 2.0
COMMIT_S: Final = 0.5
LOCK_S: Final = 2.0
WAIT_S: Final = 1.0
ROUTES_S: Final = 2.0
"""Intervals of the consumer. With RocketMQ's defaults a run of 40 s would have two rebalances."""
_LOG = logging.getLogger(__name__)

MakesConsumer = Callable[..., GroupConsumer]


def intervals(timeout_s: float) -> Intervals:
    """Return the intervals of a campaign's consumers."""
    return Intervals(
        heartbeat_s=HEARTBEAT_S,
        rebalance_s=REBALANCE_S,
        commit_s=COMMIT_S,
        lock_s=LOCK_S,
        wait_s=WAIT_S,
        call_s=timeout_s,
        routes_s=ROUTES_S,
    )


@dataclass(slots=True, eq=False)
class _Waiting:
    """A batch in its handler, until `let_go` is set; `over` is set when the handler ended.

    It fails with `error`, if that is not None.
    """

    delivery: Delivery
    error: ConsumeError | None = None
    let_go: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    is_handled: bool = False


class Handling:
    """A consumer in the background, and its deliveries that are not handled yet.

    Args:
        make: returns the consumer, given its `handler`.
        read: converts a queue's messages for the history; returns None for another topic.
    """

    def __init__(
        self,
        make: MakesConsumer,
        read: Callable[[MessageQueue, Sequence[Message]], Delivery | None],
    ) -> None:
        self._consumer = make(handler=self._handler)
        self._read = read
        self._waiting: dict[int, _Waiting] = {}
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.failure: Exception | None = None
        self._failed_s = 0.0
        # A system task, since the client's own task ends with each operation.
        trio.lowlevel.spawn_system_task(self._run, context=copy_context())

    def next_delivery(self) -> Delivery | None:
        """Return the delivery that has waited longest; None if there is none."""
        return next((waiting.delivery for waiting in self._waiting.values()), None)

    async def handle(self, delivery: Delivery, error: ConsumeError | None = None) -> bool:
        """Let its handler return, or raise `error`; False if its queue was revoked."""
        waiting = self._waiting.get(id(delivery))
        if waiting is None:
            return False
        waiting.error = error
        waiting.let_go.set()
        # The handler may just have been cancelled and not have run since. Wait, shielded, for the
        # outcome: a message that was handled without being in the history would look lost.
        with trio.CancelScope(shield=True):
            await waiting.over.wait()
        return waiting.is_handled

    async def end(self, *, is_tidy: bool) -> None:
        """Stop the consumer, tidily or at once; deliveries that wait go to another consumer.

        Raises the error that the consumer had ended with by itself, with a note on how long ago.
        """
        if not is_tidy:
            self._consumer.close()
        self._scope.cancel()
        with trio.move_on_after(END_TIMEOUT_S):
            await self._ended.wait()
        if self.failure is not None:
            ago_s = trio.current_time() - self._failed_s
            self.failure.add_note(f"it had ended {ago_s:.1f} s before")
            raise self.failure

    async def _run(self) -> None:
        try:
            with self._scope:
                await self._consumer.run()
        except Exception as error:
            self.failure, self._failed_s = error, trio.current_time()
            _LOG.exception("the consumer ended")
        finally:
            self._ended.set()

    async def _handler(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        delivery = self._read(queue, messages)
        if delivery is None:
            return
        waiting = self._waiting[id(delivery)] = _Waiting(delivery)
        try:
            await waiting.let_go.wait()
            waiting.is_handled = True
            if waiting.error is not None:
                raise waiting.error
        finally:
            del self._waiting[id(delivery)]
            waiting.over.set()
