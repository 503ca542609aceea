"""A consumer that is handed messages, running beside the client of a campaign.

Source: RocketMQ's DefaultMQPushConsumer with a message listener; `system.client.GroupConsumer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import Final

import trio

from shaketable.harness.contracts.groups import Handed
from shaketable.system.client import ConsumeError, GroupConsumer, Intervals, Message, MessageQueue

END_TIMEOUT_S: Final = 5.0
"""How long a consumer that leaves may take: `system.client` waits for its last commit."""
HEARTBEAT_S: Final = 2.0
REBALANCE_S: Final = 2.0
COMMIT_S: Final = 0.5
LOCK_S: Final = 2.0
WAIT_S: Final = 1.0
ROUTES_S: Final = 2.0
"""How often what is done: RocketMQ's defaults would leave a run of 40 s two rebalances."""
_LOG = logging.getLogger(__name__)

MakesConsumer = Callable[..., GroupConsumer]


def intervals(timeout_s: float) -> Intervals:
    """Return how often a campaign's consumers do what."""
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
    """A batch in its handler, until `let_go`; `over`: that has ended, or was cancelled.

    It fails with `error`; None: it does not.
    """

    handed: Handed
    error: ConsumeError | None = None
    let_go: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    is_handled: bool = False


class Handling:
    """One consumer in the background, and what it was handed and nobody has handled yet.

    Args:
        make: returns the consumer, given its `handler`.
        read: turns a queue's messages into what a history says of them; None: not of the topic.
    """

    def __init__(
        self,
        make: MakesConsumer,
        read: Callable[[MessageQueue, Sequence[Message]], Handed | None],
    ) -> None:
        self._consumer = make(handler=self._handler)
        self._read = read
        self._waiting: dict[int, _Waiting] = {}
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.failure: Exception | None = None
        self._failed_s = 0.0
        # The client's own task comes and goes with its operations.
        trio.lowlevel.spawn_system_task(self._run, context=copy_context())

    def handed(self) -> Handed | None:
        """Return what has waited longest, if anything does."""
        return next((waiting.handed for waiting in self._waiting.values()), None)

    async def handle(self, handed: Handed, error: ConsumeError | None = None) -> bool:
        """Let its handler return, or fail so; False if the consumer has taken it away."""
        waiting = self._waiting.get(id(handed))
        if waiting is None:
            return False
        waiting.error = error
        waiting.let_go.set()
        # Its handler may have been cancelled just before, and not know it yet: it will in its next
        # turn. Whoever asks must hear which, however late it is: a message that was handled and
        # is not in the history would be a lost one.
        with trio.CancelScope(shield=True):
            await waiting.over.wait()
        return waiting.is_handled

    async def end(self, *, is_tidy: bool) -> None:
        """End it, by and by or at once; what waits comes to another consumer.

        Raises what it had ended with by itself, which says in a note how long before.
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
        handed = self._read(queue, messages)
        if handed is None:
            return
        waiting = self._waiting[id(handed)] = _Waiting(handed)
        try:
            await waiting.let_go.wait()
            waiting.is_handled = True
            if waiting.error is not None:
                raise waiting.error
        finally:
            del self._waiting[id(handed)]
            waiting.over.set()
