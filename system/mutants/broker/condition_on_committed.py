"""A conditional append is compared with the end of what is committed, not with the log's own end.

Two appends that name the same offset, one right behind the other, are both stored: the second
one's condition was not true any more, and a compare-and-set overwrites what it never saw.

Source: our own; a condition checked against applied state while writes are pipelined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shaketable.system.broker.broker import Broker
from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.sends import ConditionalSends
from shaketable.system.mutants import GROUP, Hunt, Mutant


class _OnCommitted(ConditionalSends):
    """Compares with the consume queue's end."""

    def __init__(self, queues: Callable[[], ConsumeQueues], *more: Any) -> None:
        super().__init__(*more)
        self._queues = queues

    def _next_offset(self, queue: Queue) -> int:
        return self._queues().end(queue)


class ConditionOnCommitted(Broker):
    """A broker that takes conditional appends so."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        parts = self._sends, self._appender, self._outbox
        self._conditional = _OnCommitted(lambda: self.queues, *parts)


PLUGIN = Mutant(
    "condition-on-committed",
    broker=ConditionOnCommitted,
    targets=GROUP,
    hunt=Hunt("register", ("kill", "partition")),
)
