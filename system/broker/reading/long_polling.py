"""Long polling: holds pulls that found nothing until a wanted message arrives or they time out.

Source: RocketMQ's PullRequestHoldService and ManyPullRequest; DLEDGER.md A.2. Unlike there, a
held pull is checked in the same step in which its queue gets a message, and the number of held
pulls and their time are limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeVar

from shaketable.system.broker.consume_queue import ConsumeQueues, Queue
from shaketable.system.broker.effects import Connection
from shaketable.system.broker.tag_filter import TagFilter

STALE_DEADLINES_MAX = 1024
"""Deadlines of finished pulls that are kept, beside one for each held pull."""


class Holdable(Protocol):
    """A pull that can be held."""

    @property
    def number(self) -> int:
        """Identifies the pull; later pulls have higher numbers."""

    @property
    def connection(self) -> Connection:
        """Where its answer goes."""


Pull = TypeVar("Pull", bound=Holdable)


@dataclass(slots=True)
class _Held(Generic[Pull]):
    pull: Pull
    queue: Queue
    next_offset: int
    """No message before this offset is wanted."""
    tags: TagFilter | None


class HeldPulls(Generic[Pull]):
    """The held pulls. The caller answers each pull that it takes out.

    `units_max` limits how many messages a pull's filter scans here. If more have arrived, the
    pull is returned unfiltered and continues at its own offset.
    """

    def __init__(self, count_max: int, units_max: int) -> None:
        self._count_max = count_max
        self._units_max = units_max
        self._held: dict[int, _Held[Pull]] = {}
        self._by_queue: dict[Queue, dict[int, None]] = {}
        self._by_connection: dict[Connection, dict[int, None]] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def is_full(self) -> bool:
        """Whether the limit of held pulls is reached."""
        return len(self._held) >= self._count_max

    def hold(
        self,
        pull: Pull,
        queues: ConsumeQueues,
        queue: Queue,
        next_offset: int,
        tags: TagFilter | None,
        due_ms: float,
    ) -> None:
        """Hold a pull that wants messages of a queue from `next_offset` on."""
        assert not self.is_full, "whoever holds a pull looks at the limit first"
        number = pull.number
        self._held[number] = _Held(pull, queue, next_offset, tags)
        self._by_queue.setdefault(queue, {})[number] = None
        self._by_connection.setdefault(pull.connection, {})[number] = None
        heappush(self._deadlines, (due_ms, number))
        queues.watch(queue)

    def take_arrived(self, queues: ConsumeQueues) -> list[Pull]:
        """Return the pulls whose queue got a message they may want. Raises StoreError."""
        found: list[Pull] = []
        for queue in queues.take_arrived():
            waiting = self._by_queue.get(queue, {})
            wanted = [number for number in waiting if self._is_wanted(self._held[number], queues)]
            found += [self._take(number, queues) for number in wanted]
            if queue in self._by_queue:
                queues.watch(queue)
        return found

    def take_due(self, queues: ConsumeQueues, now_ms: float) -> list[Pull]:
        """Return the pulls that have timed out."""
        found: list[Pull] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            _, number = heappop(self._deadlines)
            if number in self._held:
                found.append(self._take(number, queues))
        return found

    def take_all(self, queues: ConsumeQueues) -> list[Pull]:
        """Return every pull, for messages may not arrive here any more."""
        return [self._take(number, queues) for number in list(self._held)]

    def drop(self, connection: Connection, queues: ConsumeQueues) -> None:
        """Drop the pulls of a connection that closed."""
        for number in list(self._by_connection.get(connection, ())):
            self._take(number, queues)

    def _take(self, number: int, queues: ConsumeQueues) -> Pull:
        held = self._held.pop(number)
        of_queue = self._by_queue[held.queue]
        del of_queue[number]
        if not of_queue:
            del self._by_queue[held.queue]
            queues.unwatch(held.queue)
        of_connection = self._by_connection[held.pull.connection]
        del of_connection[number]
        if not of_connection:
            del self._by_connection[held.pull.connection]
        if len(self._deadlines) > 2 * len(self._held) + STALE_DEADLINES_MAX:
            self._deadlines = [due for due in self._deadlines if due[1] in self._held]
            heapify(self._deadlines)
        return held.pull

    def _is_wanted(self, held: _Held[Pull], queues: ConsumeQueues) -> bool:
        min_offset, max_offset = queues.min_offset(held.queue), queues.max_offset(held.queue)
        if max_offset <= held.next_offset:
            return False  # this follower lags behind the requested offset
        count = max_offset - held.next_offset
        if held.tags is None or held.next_offset < min_offset or count > self._units_max:
            return True
        units = queues.units(held.queue, held.next_offset, count)
        if any(held.tags.passes(tags_code) for _, _, tags_code in units):
            return True
        held.next_offset = max_offset
        return False
