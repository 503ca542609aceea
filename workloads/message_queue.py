"""A message queue: producers send; consumers of one group share the queues and commit offsets.

Consumers join and leave, so queues are reassigned, and the new owner continues at the group's
committed offset. After the heal every queue is drained, so that loss is judged against everything.

Source: jepsen.tests.kafka (send, poll, assign, subscribe, commits in between, final polls).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final, Self

from shaketable.harness.contracts.clients import GroupClient
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators.clients import KeySpread
from shaketable.workloads.queue_consumer import ORDERED, ORDERED_END, TOPIC, Consumer, Untried
from shaketable.workloads.queue_shape import (
    BATCH_MAX,
    DELAYS_MS,
    DELETE,
    FOUND,
    HOLD_S,
    PRODUCED,
    TAGS,
    HighestSent,
    Shape,
)

__all__ = ["TOPIC", "QueueWorkload"]

QUEUES_DEFAULT: Final = 4
COMMIT_SHARE: Final = 0.2
FETCH_SHARE: Final = 0.05
LEAVE_SHARE: Final = 0.01
"""Shares of a consumer's steps; the rest polls."""
AWAIT: Final = "await"
"""A step of the first consumer: wait in an empty queue, before the queue is used otherwise."""
AWAIT_STEPS: Final = 6
"""The number of these steps; once a message has come, the remaining ones are skipped."""
DELETED_LAST: Final = 10**9
"""The number of the topic deleted at the end; those of random deletions are lower."""
MARKER_FIRST: Final = -2
"""Values of the messages that end a drain, from here downwards; -1 means a foreign message."""


class QueueWorkload:
    """Producers and one consumer group on several queues of one topic.

    Queues are "shaketable/0" to "shaketable/n-1". Clients with even numbers produce; client c of n
    sends the values c, n + c, 2n + c, .... The others consume (a single client does both).
    Operations: send; subscribe, rebalance, unsubscribe (the group); fetch and commit (the group's
    offset), assign (start there), poll, seek (after a poll out of the queue's range).
    """

    name = "queue"
    shape = Shape()

    def __init__(
        self,
        queues: int = QUEUES_DEFAULT,
        spread: KeySpread | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.spread = spread or KeySpread(queues)
        self.queues = self.spread.keys
        self.topic = topic
        self._markers = count()
        self._highest = HighestSent()
        self._untried = Untried()

    @property
    def checkers(self) -> tuple[str, ...]:
        """The checkers of every queue, and those of this shape."""
        return (
            "group-delivery",
            "consumer-offsets",
            *self.shape.checkers,
            "durability",
            "committed-prefix",
            "vacuity",
            "stats",
        )

    def configured(self, options: Json) -> Self:
        """Return this workload on options["queues"] queues, spread over producers as they say."""
        spread = KeySpread.of_options(self.name, options, self.queues)
        return type(self)(spread=spread, topic=options.get("topic", self.topic))

    def why_not(self, client: type) -> str | None:
        """Return what clients of that type lack for the shape; None if nothing."""
        return self.shape.why_not(client)

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Generate a producer's sends, or a consumer's steps, endlessly."""
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        if self.shape.hold_s and client == min(1, clients - 1):
            # In a short run, no other held poll may fall into a time without faults.
            yield from [Operation(AWAIT, self._key(0))] * AWAIT_STEPS
        while True:
            if client % 2 == 0 and (clients > 1 or rng.random() < 0.5):
                yield self.shape.production(rng, self._key(keys.choose(rng)), value)
                value += clients
                continue
            if (other := self.shape.consumption(rng)) is not None:
                yield Operation(other, self.topic, aim=rng.random())
                continue
            kind, aim = rng.random(), rng.random()
            if self.shape.is_ordered_by(client):
                is_end = kind < COMMIT_SHARE
                yield Operation(ORDERED_END if is_end else ORDERED, self.topic, aim=aim)
                continue
            if kind < COMMIT_SHARE:
                yield Operation("commit", self.topic, aim=aim)
            elif kind < COMMIT_SHARE + FETCH_SHARE:
                yield Operation("fetch", self.topic, aim=aim)
            elif kind < COMMIT_SHARE + FETCH_SHARE + LEAVE_SHARE:
                yield Operation("unsubscribe", self.topic, aim=aim)
            else:
                yield Operation("poll", self.topic, aim=aim)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Drain each of the client's queues: from the group's committed offset to the end."""
        for queue in range(client, self.queues, clients):
            yield Operation("drain", self._key(queue))
        if self.shape.deletes_topics and client == 0:
            # In a short run all other deletions may have failed, and none would have been checked.
            yield Operation(DELETE, self.topic, value=DELETED_LAST)

    def opened(self, client: GroupClient) -> TargetClient:
        """Wrap the client with a consumer's state: its queues, and its position in each."""
        if (why := self.why_not(type(client))) is not None:
            raise HarnessError(f"workload {self.name}: this target's clients {why}")
        client.use(self.topic, self.queues)
        keys = [self._key(queue) for queue in range(self.queues)]
        return Consumer(client, self.shape, self.topic, keys, self._highest, self._untried)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Return this client's next operation: a send, or the next step of its consumer."""
        assert isinstance(client, Consumer), "opened by this workload"
        if operation.f in PRODUCED:
            return client.next_of_producer(operation)
        if operation.f == "drain":
            return client.next_of_drain(operation.key, self._marker)
        if operation.f == AWAIT:
            return client.next_of_await(operation.key)
        if operation.value == DELETED_LAST:
            return client.next_of_delete(operation)
        assert operation.aim is not None, "a step that was not drawn"
        return client.next_step(operation.f, operation.aim)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation. A poll returns messages; an assign and a fetch return the offset."""
        assert isinstance(client, Consumer), "opened by this workload"
        if operation.f == "view":
            return await client.view(operation)
        if operation.f in FOUND:
            return await client.ask(operation)
        if operation.f in PRODUCED:
            return await client.produce(operation)
        return await client.step(operation)

    @property
    def hold_s(self) -> float:
        """The longest intended wait of an operation, in seconds."""
        return self.shape.hold_s

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Return the offset that the consumer's state has set."""
        return operation.offset

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Return 0: no operation uses a queue's end as this worker knows it."""
        return 0

    def _key(self, queue: int) -> str:
        return f"{self.topic}/{queue}"

    def _marker(self, key: str) -> int:
        """Return a value that no other message has; each queue is drained by one client alone."""
        queue = int(key.rpartition("/")[2])
        return MARKER_FIRST - queue - self.queues * next(self._markers)


# Batches and tags: a batch is stored whole; a selection by tag returns just that tag's messages.
#
# Source: RocketMQ's SEND_BATCH_MESSAGE, and subscriptions by TAG (FilterAPI).


class QueueBatches(QueueWorkload):
    """Workload `queue` with batches of up to eight messages, and consumers that filter by tag."""

    name = "queue-batches"
    shape = Shape(batch_max=BATCH_MAX, tags=TAGS)


# Delayed messages: each is delivered once, not early, and none is lost.
#
# Source: RocketMQ's delay levels (ScheduleMessageService).


class QueueDelays(QueueWorkload):
    """Workload `queue` with messages delivered at once, after one second or after five.

    A drain ends with a message of each delay: all messages sent before it have been delivered by
    then.
    """

    name = "queue-delays"
    shape = Shape(delays_ms=DELAYS_MS)


# Long polling: a message is delivered to a waiting poll within a bound.
#
# Source: RocketMQ's long polling (PullRequestHoldService).


class QueueHeld(QueueWorkload):
    """Workload `queue` with long polls, which wait up to three seconds for a message."""

    name = "queue-held"
    shape = Shape(hold_s=HOLD_S)


# Queries by message key and by message id.
#
# Source: RocketMQ's QUERY_MESSAGE and VIEW_MESSAGE_BY_ID, MQAdmin.queryMessage and viewMessage.


class QueueKeys(QueueWorkload):
    """Workload `queue` with message keys, and queries by key and by message id."""

    name = "queue-keys"
    shape = Shape(has_keys=True)


# One-way commits, and offset resets in both directions.
#
# Source: RocketMQ's UPDATE_CONSUMER_OFFSET (one-way by default), mqadmin resetOffsetByTime.


class QueueOffsets(QueueWorkload):
    """Workload `queue` with one-way commits and offset resets; topics are created and deleted."""

    name = "queue-offsets"
    shape = Shape(is_oneway=True, is_reset=True, deletes_topics=True)


# Operators whose requests must be refused.
#
# Source: RocketMQ's mqadmin; jepsen.nemesis.membership, whose operations may be refused.


class QueueOperators(QueueWorkload):
    """Workload `queue` beside operators whose invalid requests must be refused."""

    name = "queue-operators"
    shape = Shape(deletes_topics=True, has_invalid_requests=True)


# Ordered consumption: one consumer at a time, under the queue's lock.
#
# Source: RocketMQ's ConsumeMessageOrderlyService and RebalanceLockManager.


class QueueOrdered(QueueWorkload):
    """Queues that the consumers of one group lock, consume, commit and unlock."""

    name = "queue-ordered"
    shape = Shape(is_ordered=True, has_plain=False)


# Everything that a queue's clients can do, at once.
#
# Source: the other workloads queue-*.


class EverythingClients(QueueWorkload):
    """All queue operations at once: delays, batches, tags, long polls, locks, resets, keys."""

    name = "everything-clients"
    shape = Shape(
        delays_ms=DELAYS_MS,
        batch_max=BATCH_MAX,
        tags=TAGS,
        hold_s=HOLD_S,
        is_ordered=True,
        is_oneway=True,
        is_reset=True,
        deletes_topics=True,
        has_keys=True,
        has_invalid_requests=True,
    )


PLUGINS = (
    QueueWorkload(),
    QueueBatches(),
    QueueDelays(),
    QueueHeld(),
    QueueKeys(),
    QueueOffsets(),
    QueueOperators(),
    QueueOrdered(),
    EverythingClients(),
)
