"""A message queue with push consumers, which are handed messages, as RocketMQ's are.

Source: RocketMQ's DefaultMQPushConsumer with a concurrent or an orderly message listener.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Self

import trio

from shaketable.harness.contracts.clients import (
    RETRY,
    Delivery,
    FailingClient,
    GroupClient,
    HandlingClient,
    RetryingClient,
    WrappedClient,
    dead_key,
)
from shaketable.harness.contracts.errors import DefiniteError, HarnessError
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators.clients import KeySpread
from shaketable.workloads.queue_consumer import TOPIC

QUEUES_DEFAULT: Final = 5
"""A number that few numbers of consumers divide evenly."""
LEAVE_SHARE: Final = 0.065
"""Share of a consumer's steps that leave, in leaving periods; the others handle a delivery."""
LEAVING_S: Final = 3.0
LEAVING_EVERY_S: Final = 10.0
"""Every 10 s, consumers leave for 3 s. In between the group is stable, so that what must not happen
to a stable group shows (`checkers.queues.queue_owners`).
"""
TIDY_FIRST_S: Final = 0.5
"""Consumers that leave in this first part of a period (but the first period) do so tidily: no
redelivery is allowed.
"""
TIDY_SHARE: Final = 0.5
"""Share of leaving consumers that do so tidily; the others vanish as a killed process does."""
FAIL_SHARE: Final = 0.1
"""Share of deliveries at which the handler fails, at one of the messages.

That one and those after it come again: in place under the queue's lock, else through the retry
topic.
"""
DRAIN_TIMEOUT_S: Final = 25.0
"""How long consumers continue at the end, until the group has committed all: longer than
`checkers.queues.push_delivery` needs to call a message overdue after the last fault.
"""
LEASE_S: Final = 60.0
"""How long a broker keeps the lock of a consumer that is gone (RocketMQ's RebalanceLockManager).

One whose connections are broken comes back as another client, and waits for its own lock.
"""
SHORT_S: Final = 2.5
"""How long the end of a queue that is too short for what was acknowledged is polled after the heal:
longer than `checkers.queues.push_delivery` allows for it to catch up.
"""
FINALS_ROOM_S: Final = 5.0
"""What other final operations take beside that, in seconds."""
LOOK_AFTER_S: Final = 0.2
"""Interval, in seconds, at which the group's progress is polled at the end."""


def drain_s(is_ordered: bool) -> float:
    """Return how long consumers continue at the end, in seconds: until locks have ended, too."""
    return DRAIN_TIMEOUT_S + (LEASE_S if is_ordered else 0.0)


class QueuePush:
    """Producers and push consumers, which pull, handle and commit messages by themselves.

    Queues are "shaketable/0" to "shaketable/n-1". Clients with even numbers produce; client c of n
    sends the values c, n + c, 2n + c, .... The others consume (a single client does both).
    Operations: send; subscribe (start a consumer), handle (a delivery: ok means that its handler
    returned, or failed at the message after those answered), unsubscribe (stop it; `expected` 1:
    commit what was handled, 0: as a killed process), fetch (the group's offset, at the end; the
    queue's end is in `offset`). Without locks, failed messages are sent back:
    `workloads.queue_push`.
    """

    name = "queue-push"
    is_ordered = False

    @property
    def finals_s(self) -> float:
        """How long final operations may take, in seconds."""
        return drain_s(self.is_ordered) + FINALS_ROOM_S

    checkers: tuple[str, ...] = (
        "push-delivery",
        "retried-messages",
        "queue-owners",
        "durability",
        "committed-prefix",
        "vacuity",
        "stats",
    )

    def __init__(
        self,
        queues: int = QUEUES_DEFAULT,
        spread: KeySpread | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.spread = spread or KeySpread(queues)
        self.queues = self.spread.keys
        self.topic = topic
        self._end_at_least: dict[str, int] = {}
        """Lower bounds of the queues' ends, from the sends of this worker's clients."""
        self._sent_back = SentBack()
        self._began_s: float | None = None

    def configured(self, options: Json) -> Self:
        """Return this workload on options["queues"] queues, spread over producers as they say."""
        spread = KeySpread.of_options(self.name, options, self.queues)
        return type(self)(spread=spread, topic=options.get("topic", self.topic))

    def why_not(self, client: type) -> str | None:
        """Return what clients of that type lack; None if nothing."""
        return None if issubclass(client, HandlingClient) else "are handed no messages"

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate a producer's sends, or a consumer's steps, endlessly."""
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        while True:
            if not _consumes(client, clients) or (clients == 1 and rng.random() < 0.5):
                yield Operation("send", self._key(keys.choose(rng)), value=value)
                value += clients
            else:
                leaves = rng.random() < LEAVE_SHARE
                yield Operation("unsubscribe" if leaves else "handle", self.topic, aim=rng.random())

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Continue until the group has committed every queue to its end.

        Every second consumer vanishes first, as a killed process does, and comes back as another:
        a healthy group gives its queues to those that are left, and loses nothing. While leaders
        change this cannot be seen: each begins with a table of consumers of its own.
        """
        if _consumes(client, clients):
            vanishes = not self.is_ordered and clients > 2 and client % 4 == 1
            yield Operation("drain", self.topic, expected=int(vanishes))

    def opened(self, client: GroupClient) -> TargetClient:
        """Wrap the client with a consumer's state."""
        if not isinstance(client, HandlingClient):
            raise HarnessError(
                f"workload {self.name}: this target's clients are handed no messages"
            )
        client.use(self.topic, self.queues)
        keys = [self._key(queue) for queue in range(self.queues)]
        return _Consumer(
            client, self.topic, keys, self.is_ordered, self._end_at_least, self._sent_back
        )

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Return this client's next operation: a send, or the next step of its consumer."""
        assert isinstance(client, _Consumer), "opened by this workload"
        if self._began_s is None:
            self._began_s = trio.current_time()
        if operation.f == "send":
            return operation
        if operation.f == "unsubscribe":
            operation = self._leaving(operation)
        if operation.f == "drain":
            return client.next_of_drain(vanishes=bool(operation.expected))
        return client.next_step(operation)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation.

        `handle` returns messages; a fetch the group's offset and the queue's end.
        """
        assert isinstance(client, _Consumer), "opened by this workload"
        return await client.do(operation)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Return None: brokers assign offsets, and groups keep their own."""
        return None

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Return 0: no operation uses a queue's end as this worker knows it."""
        return 0

    def _leaving(self, operation: Operation) -> Operation:
        """Keep the consumer outside leaving periods, and let it leave tidily at their start.

        The clients of a worker share the periods.
        """
        assert self._began_s is not None, "set with the first choice"
        period, since_s = divmod(trio.current_time() - self._began_s, LEAVING_EVERY_S)
        if since_s >= LEAVING_S:
            return replace(operation, f="handle")
        return replace(operation, aim=0.0) if period and since_s < TIDY_FIRST_S else operation

    def _key(self, queue: int) -> str:
        return f"{self.topic}/{queue}"


def _consumes(client: int, clients: int) -> bool:
    return client % 2 == 1 or clients == 1


class _Consumer(WrappedClient):
    """One process of the history: whether its consumer runs, and the group's known progress."""

    def __init__(
        self,
        client: GroupClient,
        topic: str,
        keys: list[str],
        is_ordered: bool,
        end_at_least: dict[str, int],
        sent_back: SentBack,
    ) -> None:
        assert isinstance(client, HandlingClient), "looked at when it was opened"
        super().__init__(client)
        self._messages: GroupClient = client
        self._handling: HandlingClient = client
        self._topic = topic
        self._keys = keys
        self._end_at_least = end_at_least
        self._is_ordered = is_ordered
        self._ordered = int(is_ordered)
        self._may_fail = is_ordered and isinstance(client, FailingClient)
        self._retries: Retries | None = None
        if not is_ordered and isinstance(client, RetryingClient):
            self._retries = Retries(client, topic, sent_back)
            self._keys += client.retry_keys()
        self._runs = False
        self._begin_aim: float | None = None
        self._is_done = False
        self._current: Delivery | None = None
        self._fails_at: float | None = None
        self._drain_from_s = 0.0
        self._drain_until_s: float | None = None

    def next_step(self, operation: Operation) -> Operation | None:
        """Start the consumer, stop it, or handle the oldest delivery; None if there is none."""
        if not self._runs:
            self._begin_aim = operation.aim
            return Operation("subscribe", self._topic, expected=self._ordered)
        if operation.f == "unsubscribe":
            assert operation.aim is not None, "a step that was not drawn"
            # Always unlock: an abandoned lock blocks its queue for a minute.
            is_tidy = self._is_ordered or operation.aim < TIDY_SHARE
            return Operation("unsubscribe", self._topic, expected=int(is_tidy))
        aim = 1.0 if operation.aim is None else operation.aim
        return self._handle(aim)

    def next_of_drain(self, *, vanishes: bool = False) -> Operation | None:
        """Handle deliveries until the group has committed all; None then, or after the timeout.

        A running consumer vanishes first if it is to.
        """
        now_s = trio.current_time()
        if self._drain_until_s is None:
            self._drain_from_s, self._drain_until_s = now_s, now_s + drain_s(self._is_ordered)
            if vanishes and self._runs:
                return Operation("unsubscribe", self._topic, expected=0)
        look = None if self._retries is None else self._retries.next_look()
        self._is_done |= now_s > self._drain_until_s or not (self._keys or look)
        if self._is_done:
            # Messages that others sent back may still come, and need a running consumer.
            is_late = self._retries is not None and self._runs
            return Operation("unsubscribe", self._topic, expected=1) if is_late else None
        if not self._runs:
            return Operation("subscribe", self._topic, expected=self._ordered)
        if (handle := self._handle(1.0)) is not None:
            return handle
        if self._keys:
            return Operation("fetch", self._keys[0], expected=self._ordered)
        return look

    def _handle(self, aim: float) -> Operation | None:
        """Choose how to handle the oldest delivery; a small `aim` lets it fail."""
        self._current = self._handling.next_delivery()
        if self._current is None:
            return None
        if self._retries is not None:
            return self._retries.choose(self._current, aim)
        self._fails_at = aim / FAIL_SHARE if self._may_fail and aim < FAIL_SHARE else None
        return Operation("handle", self._current.key, expected=self._ordered)

    async def do(self, operation: Operation) -> Answer:
        """Run an operation and record its result."""
        match operation.f:
            case "send":
                assert operation.value is not None, "a send of nothing"
                offset = await self._messages.send(operation.key, operation.value)
                self._end_at_least[operation.key] = max(
                    offset + 1, self._end_at_least.get(operation.key, 0)
                )
                return Answer(offset=offset)
            case "subscribe":
                if self._retries is not None:
                    self._retries.begin(self._begin_aim)
                await self._handling.start_handling(is_ordered=self._is_ordered)
                self._runs = True
                return Answer()
            case "unsubscribe":
                self._runs = False
                await self._handling.stop_handling(is_tidy=bool(operation.expected))
                return Answer()
            case "handle" | "retry" | "handle-failed" | "retry-failed":
                return await self._do_handle(operation)
            case "look":
                return await self._do_look(operation.key)
        assert operation.f == "fetch", f"the queue has no operation {operation.f!r}"
        return await self._do_fetch(operation.key)

    async def _do_handle(self, operation: Operation) -> Answer:
        delivery = self._current
        assert delivery is not None, "chosen because something waited"
        if self._retries is not None:
            return await self._retries.do(operation, delivery)
        if self._fails_at is not None:
            return await self._do_fail(delivery, int(self._fails_at * len(delivery.messages)))
        if not await self._handling.handle(delivery):
            raise DefiniteError("the consumer took it away before it was handled")
        return Answer(messages=delivery.messages)

    async def _do_fail(self, delivery: Delivery, consumed: int) -> Answer:
        """Handle the first messages; the others come again."""
        assert isinstance(self._handling, FailingClient), "looked at when it was opened"
        if not await self._handling.fail(delivery, consumed):
            raise DefiniteError("the consumer took it away before it was handled")
        if not consumed:
            raise DefiniteError("the handler failed")
        return Answer(messages=delivery.messages[:consumed])

    async def _do_look(self, key: str) -> Answer:
        """Look for messages that were sent back; if more have come, the group continues there."""
        assert self._retries is not None, "chosen by it"
        answer = await self._retries.look(key)
        if answer.messages and key in self._retries.keys and key not in self._keys:
            self._keys.append(key)
        return answer

    async def _do_fetch(self, key: str) -> Answer:
        """Fetch the group's progress in the first queue that it may not have consumed yet."""
        await trio.sleep(LOOK_AFTER_S)
        committed, end = await self._handling.fetch_with_end(key)
        self._keys.remove(key)
        if (committed or 0) < end or self._is_short(key, end):
            self._keys.append(key)
        return Answer(output=committed, offset=end)

    def _is_short(self, key: str, end: int) -> bool:
        """Return whether the queue ends before an acknowledged message, and may still catch up."""
        assert self._drain_until_s is not None, "asked at the end"
        asked_s = trio.current_time() - self._drain_from_s
        return end < self._end_at_least.get(key, 0) and asked_s < SHORT_S


# Ordered push consumers: each queue is consumed under its lock.
#
# Source: RocketMQ's ConsumeMessageOrderlyService.


class QueuePushOrdered(QueuePush):
    """Producers and ordered push consumers: one message at a time from each queue, in order."""

    name = "queue-push-ordered"
    is_ordered = True
    checkers = tuple(name for name in QueuePush.checkers if name != "retried-messages")
    """A failed message comes again in place, and is not sent back."""


# ---- failing handlers: the failed messages are sent back, and come again later -----------------
#
# Operations beside those of `QueuePush`: handle-failed (the handler failed at the answer's
# `offset`; that message and those after it were sent back, to come again after the delay of level
# `expected`, 0: the broker's choice, below 0: never; `input` is the maximum number of retries),
# retry (handle, of messages that came again: `attempts` in `extra`), retry-failed (the same as
# handle-failed, for such messages), look (at the end: the contents of a retry or dead-letter
# queue).
#
# Source: RocketMQ's ConsumeConcurrentlyContext.delayLevelWhenNextConsume and maxReconsumeTimes.


RETRY_FAIL_SHARE: Final = 0.4
"""Share of retries that fail: enough of them to use up their attempts."""
DEAD_SHARE: Final = 0.15
"""Share of failures that make messages dead letters at once."""
TIMES_MAX: Final = 2
"""Maximum number of retries, for every other consumer; the others use the broker's maximum."""
FIRST_LEVEL, LEVEL, DEAD_LEVEL = 0, 1, -1
"""A client's first failure leaves the delay to the broker (10 s); later ones use 1 s, since a run's
end waits for the retries."""


class SentBack:
    """Messages that this worker's clients sent back, and that none of them has seen again yet."""

    def __init__(self) -> None:
        self._expected: dict[int, tuple[int, bool]] = {}
        self._handled: dict[int, int] = {}
        self._looked_to: dict[str, int] = {}

    def failed(self, value: int, attempt: int, *, is_last: bool) -> None:
        """Record that a message was sent back at that attempt.

        If it was also handled, by the queue's earlier owner, it need not come again: the group may
        have committed past it because of that. If that one made a dead letter of it, it may be one.
        """
        if self._handled.get(value, -1) < attempt:
            until, was_last = self._expected.get(value, (0, False))
            self._expected[value] = attempt + 1, is_last or (was_last and until == attempt + 1)

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


PLUGINS = (
    QueuePush(),
    QueuePushOrdered(),
)
