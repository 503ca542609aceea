"""What clients of a queue ask by key and by id, and what they have to remember for that.

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
"""Ranges of values that are asked for in each queue in the end, spread over all there were."""
INSIDE_BYTES: Final = 80
"""A stored message is longer than that."""
LOOKED_UP: Final = 8
"""Of so many sends one is looked up by its id, and one by its unique key."""


@dataclass(slots=True)
class Greatest:
    """The greatest value that clients of one process have sent, whoever of them did."""

    value: int = 0


class KeyQuestions:
    """Draws what one process of the history asks, and asks it."""

    def __init__(
        self, client: KeyedClient, shape: Shape, keys: Sequence[str], greatest: Greatest
    ) -> None:
        self._client = client
        self._span = shape.key_span
        self._keys = keys
        self._greatest = greatest
        self._finals: dict[str, deque[Operation]] = {}

    async def send(self, operation: Operation) -> tuple[int, Operation | None]:
        """Send a message with its keys; return its offset, and how it is looked up, if it is."""
        key, value = operation.key, operation.value
        assert value is not None, "a send of nothing"
        self._greatest.value = max(self._greatest.value, value)
        offset = await self._client.send_keyed(key, value, self._span)
        match value * LOOKED_UP // self._span % LOOKED_UP:
            case 0:
                return offset, Operation("view", key, offset=offset)
            case 1:
                return offset, Operation("find-unique", key, value=value)
        return offset, None

    def drawn(self, aim: float) -> Operation:
        """Return a question, drawn by `aim`."""
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
        """Return what is asked next once a queue is drained; None when all of it was answered."""
        if key not in self._finals:
            self._finals[key] = deque(self._of_end(key))
        finals = self._finals[key]
        return finals[0] if finals else None

    async def ask(self, operation: Operation) -> Answer:
        """Ask it."""
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
        ranges = self._greatest.value // self._span + 1
        asked = sorted({ranges * n // FINAL_RANGES_MAX for n in range(FINAL_RANGES_MAX)})
        finals = [self._of_all(key)]
        finals += [self._of_range(key, number * self._span) for number in asked]
        if (seen := self._client.seen(key)) is not None and seen[1] >= 0:
            finals += [self._of_range(key, seen[1], seen[0])]
            finals += [Operation("find-unique", key, value=seen[1])]
        return finals
