"""What consumers of `queue-push` do where a handler fails: what is left comes again later.

Operations beside those of `workloads.queue_push`: handle-failed (its handler failed at the answer's
`offset`; that message and those behind it were sent back, to come again after the delay of level
`expected`, 0: as the broker says, below 0: never; so often at most as `input` says), retry (handle,
of messages that came again: `attempts` in `extra`), retry-failed (the same, of such messages), look
(in the end: what lies in the retry queue, or among the dead letters).

Source: RocketMQ's ConsumeConcurrentlyContext.delayLevelWhenNextConsume and maxReconsumeTimes.
"""

from __future__ import annotations

from typing import Final

import trio

from shaketable.harness.contracts.clients import RetryingClient
from shaketable.harness.contracts.errors import DefiniteError
from shaketable.harness.contracts.groups import RETRY, Handed, dead_key
from shaketable.harness.contracts.plugins import Answer, Operation

FAIL_SHARE: Final = 0.1
AGAIN_SHARE: Final = 0.4
"""Of what is handled for the first time, and of what came again: so many come to the last time."""
DEAD_SHARE: Final = 0.15
"""Of the failures that say that the messages are never to come again."""
TIMES_MAX: Final = 2
"""How often a message comes again at most, of every other consumer; else the broker says it."""
FIRST_LEVEL, LEVEL, DEAD_LEVEL = 0, 1, -1
"""The first failure of a client leaves the delay to the broker (10 s), others ask for one second: a
run's end waits for them."""
LOOK_AFTER_S: Final = 0.2


class Returning:
    """What the clients of a worker have sent back, and nobody of them has seen come again."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[int, bool]] = {}
        self._handled: dict[int, int] = {}
        self._looked_to: dict[str, int] = {}

    def failed(self, value: int, attempt: int, *, is_last: bool) -> None:
        """It was sent back when it came for that time.

        Where it was handled as well, by whoever had its queue before, it need not come again: the
        group may go on behind it by that.
        """
        if self._handled.get(value, -1) < attempt:
            self._expected[value] = attempt + 1, is_last

    def handled(self, value: int, attempt: int) -> None:
        """It was handled when it came for that time."""
        self._handled[value] = max(attempt, self._handled.get(value, 0))
        self.came(value, attempt)

    def came(self, value: int, attempt: int) -> None:
        """It was seen again, later or in its place."""
        if value in self._expected and attempt >= self._expected[value][0] - 1:
            del self._expected[value]

    @property
    def is_open(self) -> bool:
        """Whether anything has not been seen yet."""
        return bool(self._expected)

    @property
    def has_dead(self) -> bool:
        """Whether any of that lies among the dead letters, if all is well."""
        return any(is_last for _, is_last in self._expected.values())

    def looked_to(self, key: str) -> int:
        """Up to which offset a retry queue has been looked through."""
        return self._looked_to.get(key, 0)

    def looked(self, found: Handed) -> None:
        """Take in what lies in a queue."""
        for (offset, value), attempt in zip(found.messages, found.attempts, strict=True):
            self._looked_to[found.key] = max(self.looked_to(found.key), offset + 1)
            if value in self._expected and attempt >= self._expected[value][0]:
                del self._expected[value]


class Retries:
    """One client's part in it. `keys` are those by which messages come again."""

    def __init__(self, client: RetryingClient, topic: str, returning: Returning) -> None:
        self._client = client
        self._topic = topic
        self._returning = returning
        self._times_max = -1
        self._level = FIRST_LEVEL
        self.keys = tuple(client.retry_keys())
        self._places = [*self.keys, dead_key(topic)]

    def begin(self, aim: float | None) -> None:
        """Say how often messages of the consumer that begins now come again."""
        self._times_max = -1 if aim is None or aim < 0.5 else TIMES_MAX
        self._client.retry_later(self._times_max)

    def choose(self, handed: Handed, aim: float) -> Operation:
        """Handle this, or fail at some of it."""
        is_again = f"/{RETRY}/" in handed.key
        kind, share = ("retry", AGAIN_SHARE) if is_again else ("handle", FAIL_SHARE)
        if aim >= share:
            return Operation(kind, handed.key, expected=0)
        part = aim / share
        level = LEVEL
        if not is_again:  # what came again would wait for half a minute and more
            level, self._level = self._level, LEVEL
        if level == LEVEL and part * 100 % 1 < DEAD_SHARE:
            level = DEAD_LEVEL
        failed = f"{kind}-failed"
        return Operation(failed, handed.key, value=self._times_max, aim=part, expected=level)

    async def do(self, operation: Operation, handed: Handed) -> Answer:
        """Let a handler return, or fail."""
        if operation.f in ("handle", "retry"):
            if not await self._client.handle(handed):
                raise DefiniteError("the consumer took it away before it was handled")
            self._note(handed, len(handed.messages))
            return self._answer(handed, None)
        level = operation.expected
        assert operation.aim is not None, "chosen here"
        assert level is not None, "chosen here"
        consumed = int(operation.aim * len(handed.messages))
        if not await self._client.send_back(handed, consumed, level):
            raise DefiniteError("the consumer took it away before it was handled")
        self._note(handed, consumed, level)
        return self._answer(handed, handed.messages[consumed][0])

    def next_look(self) -> Operation | None:
        """Look for what was sent back and not seen again; None where nothing is open."""
        if not self._returning.is_open:
            return None
        dead = dead_key(self._topic)
        places = [key for key in self._places if key != dead or self._returning.has_dead]
        return Operation("look", places[0])

    async def look(self, key: str) -> Answer:
        """Look what lies in a queue of what was sent back, behind what was seen of it."""
        await trio.sleep(LOOK_AFTER_S)
        self._places.append(self._places.pop(self._places.index(key)))  # at others first, then
        found = await self._client.look(key, self._returning.looked_to(key))
        self._returning.looked(found)
        return Answer(messages=found.messages, attempts=found.attempts)

    def _note(self, handed: Handed, consumed: int, level: int = 0) -> None:
        """Remember that the first messages were handled, and the others sent back."""
        pairs = zip(handed.messages, handed.attempts, strict=True)
        for place, ((_, value), attempt) in enumerate(pairs):
            if place < consumed:
                self._returning.handled(value, attempt)
                continue
            self._returning.came(value, attempt)
            is_last = level < 0 or 0 <= self._times_max <= attempt
            self._returning.failed(value, attempt, is_last=is_last)

    def _answer(self, handed: Handed, failed_at: int | None) -> Answer:
        attempts = handed.attempts if f"/{RETRY}/" in handed.key else None
        return Answer(offset=failed_at, messages=handed.messages, attempts=attempts)
