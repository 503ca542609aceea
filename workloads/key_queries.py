"""Queries of a queue's clients by message key and by message id, and the state that they need.

Source: RocketMQ's MQAdminImpl.queryMessage (by key, within a time) and viewMessage (by id).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shaketable.harness.contracts.clients import ALL_SPAN, KeyedClient
from shaketable.harness.contracts.plugins import Answer, Operation
from shaketable.workloads.queue_shape import Shape

FINAL_RANGES_MAX: Final = 64
"""Number of value ranges queried in each queue at the end, spread over all values."""
INSIDE_BYTES: Final = 80
"""A lower bound of a stored message's size, so an id shifted by less points inside the message."""
LOOKED_UP: Final = 8
"""One of this many sends is looked up by its id, and one by its unique key."""


@dataclass(slots=True)
class HighestSent:
    """The highest value sent by any client of this process."""

    value: int = 0


class KeyQueries:
    """Chooses and runs the queries of one process of the history."""

    def __init__(
        self, client: KeyedClient, shape: Shape, keys: Sequence[str], highest: HighestSent
    ) -> None:
        self._client = client
        self._span = shape.key_span
        self._keys = keys
        self._highest = highest
        self._finals: dict[str, deque[Operation]] = {}

    async def send(self, operation: Operation) -> tuple[int, Operation | None]:
        """Send a message with keys; return its offset, and a query that looks it up, or None."""
        key, value = operation.key, operation.value
        assert value is not None, "a send of nothing"
        self._highest.value = max(self._highest.value, value)
        offset = await self._client.send_keyed(key, value, self._span)
        match value * LOOKED_UP // self._span % LOOKED_UP:
            case 0:
                return offset, Operation("view", key, offset=offset)
            case 1:
                return offset, Operation("find-unique", key, value=value)
        return offset, None

    def choose(self, aim: float) -> Operation:
        """Return a query that `aim` determines."""
        key = self._keys[int(aim * len(self._keys))]
        seen = self._client.seen(key)
        if seen is None or seen[1] < 0:
            return self._of_all(key)
        offset, value = seen
        kinds = (
            self._of_all(key),
            self._of_range(key, value),
            self._of_range(key, value // 2),
            self._of_range(key, value, offset),
            self._of_all(key, offset),
            Operation("find-unique", key, value=value),
            Operation("peek", key, value=0),
            Operation("peek", key, value=1 + int(aim * 99_991) % INSIDE_BYTES),
        )
        return kinds[int(aim * 997) % len(kinds)]

    def next_final(self, key: str) -> Operation | None:
        """Return the next query once a queue is drained; None when all were answered."""
        if key not in self._finals:
            self._finals[key] = deque(self._of_end(key))
        finals = self._finals[key]
        return finals[0] if finals else None

    async def run(self, operation: Operation) -> Answer:
        """Run a query."""
        key, value = operation.key, operation.value
        assert value is not None, "it asks for nothing"
        if operation.f == "find":
            assert operation.expected is not None, "a range without an end"
            found = await self._client.find(key, value, operation.expected, operation.offset)
        elif operation.f == "find-unique":
            found = await self._client.find_unique(key, value)
        else:
            found = await self._client.peek(key, value)
        finals = self._finals.get(key)
        if finals and finals[0] is operation:
            finals.popleft()
        return Answer(messages=found)

    def _of_all(self, key: str, offset: int | None = None) -> Operation:
        return Operation("find", key, value=0, offset=offset, expected=ALL_SPAN)

    def _of_range(self, key: str, value: int, offset: int | None = None) -> Operation:
        first = value - value % self._span
        return Operation("find", key, value=first, offset=offset, expected=self._span)

    def _of_end(self, key: str) -> list[Operation]:
        ranges = self._highest.value // self._span + 1
        asked = sorted({ranges * n // FINAL_RANGES_MAX for n in range(FINAL_RANGES_MAX)})
        finals = [self._of_all(key)]
        finals += [self._of_range(key, number * self._span) for number in asked]
        if (seen := self._client.seen(key)) is not None and seen[1] >= 0:
            finals += [self._of_range(key, seen[1], seen[0])]
            finals += [Operation("find-unique", key, value=seen[1])]
        return finals
