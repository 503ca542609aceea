"""Failing handlers of `queue-push`: the failed messages are sent back, and come again later.

Operations beside those of `workloads.queue_push`: handle-failed (the handler failed at the answer's
`offset`; that message and those after it were sent back, to come again after the delay of level
`expected`, 0: the broker's choice, below 0: never; `input` is the maximum number of retries), retry
(handle, of messages that came again: `attempts` in `extra`), retry-failed (the same as
handle-failed, for such messages), look (at the end: the contents of a retry or dead-letter queue).

Source: RocketMQ's ConsumeConcurrentlyContext.delayLevelWhenNextConsume and maxReconsumeTimes.
"""

from __future__ import annotations

from typing import Final

import trio

from shaketable.harness.contracts.clients import RETRY, Delivery, RetryingClient, dead_key
from shaketable.harness.contracts.errors import DefiniteError
from shaketable.harness.contracts.plugins import Answer, Operation

FAIL_SHARE: Final = 0.1
RETRY_FAIL_SHARE: Final = 0.4
"""Share of retries that fail: enough of them to use up their attempts."""
DEAD_SHARE: Final = 0.15
"""Share of failures that make messages dead letters at once."""
TIMES_MAX: Final = 2
"""Maximum number of retries, for every other consumer; the others use the broker's maximum."""
FIRST_LEVEL, LEVEL, DEAD_LEVEL = 0, 1, -1
"""A client's first failure leaves the delay to the broker (10 s); later ones use 1 s, since a run's
end waits for the retries."""
LOOK_AFTER_S: Final = 0.2


class SentBack:
    """Messages that this worker's clients sent back, and that none of them has seen again yet."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[int, bool]] = {}
        self._handled: dict[int, int] = {}
        self._looked_to: dict[str, int] = {}

    def failed(self, value: int, attempt: int, *, is_last: bool) -> None:
        """Record that a message was sent back at that attempt.

        If it was also handled, by the queue's earlier owner, it need not come again: the group may
        have committed past it because of that.
        """
        if self._handled.get(value, -1) < attempt:
            self._expected[value] = attempt + 1, is_last

    def handled(self, value: int, attempt: int) -> None:
        """Record that a message was handled at that attempt."""
        self._handled[value] = max(attempt, self._handled.get(value, 0))
        self.seen_again(value, attempt)

    def seen_again(self, value: int, attempt: int) -> None:
        """Record that a message was seen again, through the retry queue or in place."""
        if value in self._expected and attempt >= self._expected[value][0] - 1:
            del self._expected[value]

    @property
    def is_open(self) -> bool:
        """Whether any message has not been seen again yet."""
        return bool(self._expected)

    @property
    def has_dead(self) -> bool:
        """Whether any of them should be a dead letter."""
        return any(is_last for _, is_last in self._expected.values())

    def looked_to(self, key: str) -> int:
        """Return the next offset to look at in a retry queue."""
        return self._looked_to.get(key, 0)

    def looked(self, found: Delivery) -> None:
        """Record the contents of a queue."""
        for (offset, value), attempt in zip(found.messages, found.attempts, strict=True):
            self._looked_to[found.key] = max(self.looked_to(found.key), offset + 1)
            if value in self._expected and attempt >= self._expected[value][0]:
                del self._expected[value]


class Retries:
    """One client's retries. `keys` are those of the retry queues."""

    def __init__(self, client: RetryingClient, topic: str, sent_back: SentBack) -> None:
        self._client = client
        self._topic = topic
        self._sent_back = sent_back
        self._times_max = -1
        self._level = FIRST_LEVEL
        self.keys = tuple(client.retry_keys())
        self._places = [*self.keys, dead_key(topic)]

    def begin(self, aim: float | None) -> None:
        """Set the maximum number of retries for the consumer that starts now."""
        self._times_max = -1 if aim is None or aim < 0.5 else TIMES_MAX
        self._client.retry_later(self._times_max)

    def choose(self, delivery: Delivery, aim: float) -> Operation:
        """Choose to handle a delivery, or to fail at one of its messages."""
        is_again = f"/{RETRY}/" in delivery.key
        kind, share = ("retry", RETRY_FAIL_SHARE) if is_again else ("handle", FAIL_SHARE)
        if aim >= share:
            return Operation(kind, delivery.key, expected=0)
        part = aim / share
        level = LEVEL
        if not is_again:  # the broker's delay of a second retry is half a minute and more
            level, self._level = self._level, LEVEL
        if level == LEVEL and part * 100 % 1 < DEAD_SHARE:
            level = DEAD_LEVEL
        failed = f"{kind}-failed"
        return Operation(failed, delivery.key, value=self._times_max, aim=part, expected=level)

    async def do(self, operation: Operation, delivery: Delivery) -> Answer:
        """Let the handler return, or fail."""
        if operation.f in ("handle", "retry"):
            if not await self._client.handle(delivery):
                raise DefiniteError("the consumer took it away before it was handled")
            self._note(delivery, len(delivery.messages))
            return self._answer(delivery, None)
        level = operation.expected
        assert operation.aim is not None, "chosen here"
        assert level is not None, "chosen here"
        consumed = int(operation.aim * len(delivery.messages))
        if not await self._client.send_back(delivery, consumed, level):
            raise DefiniteError("the consumer took it away before it was handled")
        self._note(delivery, consumed, level)
        return self._answer(delivery, delivery.messages[consumed][0])

    def next_look(self) -> Operation | None:
        """Look for messages that were sent back and not seen again; None if there are none."""
        if not self._sent_back.is_open:
            return None
        dead = dead_key(self._topic)
        places = [key for key in self._places if key != dead or self._sent_back.has_dead]
        return Operation("look", places[0])

    async def look(self, key: str) -> Answer:
        """Look into a retry or dead-letter queue, after what was seen of it."""
        await trio.sleep(LOOK_AFTER_S)
        self._places.append(self._places.pop(self._places.index(key)))  # round robin
        found = await self._client.look(key, self._sent_back.looked_to(key))
        self._sent_back.looked(found)
        return Answer(messages=found.messages, attempts=found.attempts)

    def _note(self, delivery: Delivery, consumed: int, level: int = 0) -> None:
        """Record that the first messages were handled, and the others sent back."""
        pairs = zip(delivery.messages, delivery.attempts, strict=True)
        for place, ((_, value), attempt) in enumerate(pairs):
            if place < consumed:
                self._sent_back.handled(value, attempt)
                continue
            self._sent_back.seen_again(value, attempt)
            is_last = level < 0 or 0 <= self._times_max <= attempt
            self._sent_back.failed(value, attempt, is_last=is_last)

    def _answer(self, delivery: Delivery, failed_at: int | None) -> Answer:
        attempts = delivery.attempts if f"/{RETRY}/" in delivery.key else None
        return Answer(offset=failed_at, messages=delivery.messages, attempts=attempts)
