"""A message queue: producers send, consumers of one group share the queues and commit offsets.

Consumers join and leave, so that queues move from one to another; each goes on where the group
committed. After the heal every queue is drained, so that loss is judged against everything.

Source: jepsen.tests.kafka (send, poll, assign, subscribe, commits in between, final polls).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Final, Self

from shaketable.harness.contracts.draw import draw
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.groups import GroupClient
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient
from shaketable.harness.generators.clients import KeySpread
from shaketable.workloads.key_questions import Greatest
from shaketable.workloads.misrequests import Unasked
from shaketable.workloads.queue_consumer import ORDERED, ORDERED_END, TOPIC, Consumer
from shaketable.workloads.queue_shape import (
    BATCH_MAX,
    DELAYS_MS,
    DELETE,
    FOUND,
    HOLD_S,
    PRODUCED,
    TAGS,
    Shape,
)

__all__ = ["TOPIC", "QueueWorkload"]

QUEUES_DEFAULT: Final = 4
COMMIT_SHARE: Final = 0.2
FETCH_SHARE: Final = 0.05
LEAVE_SHARE: Final = 0.01
"""Of a consumer's steps; the others poll."""
AWAIT: Final = "await"
"""A step of the first consumer: it waits in an empty queue, before anything else is done to it."""
AWAIT_STEPS: Final = 6
"""So many of these it has; those that are left when a message has come are none."""
DELETED_LAST: Final = 10**9
"""The number of the topic that is deleted in the end: those that are drawn are lower."""
MARKER_FIRST: Final = -2
"""From here down are the values of messages that end a drain; -1 is nobody's."""


class QueueWorkload:
    """Producers and consumers of one consumer group, over several queues of one topic.

    Queues are "shaketable/0" to "shaketable/n-1". Clients with even numbers produce, the values
    of client c of n are c, n + c, 2n + c, ...; the others consume (one client does both).
    Operations: send; subscribe, rebalance, unsubscribe (of the group); fetch and commit (of the
    group's offset), assign (begin there), poll, seek (after a poll outside the queue).
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
        self._greatest = Greatest()
        self._unasked = Unasked()

    @property
    def checkers(self) -> tuple[str, ...]:
        """Those of every queue, and of what else is done here."""
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
        """Return this workload on options["queues"] queues; producers choose as the options say."""
        spread = KeySpread.of_options(self.name, options, self.queues)
        return type(self)(spread=spread, topic=options.get("topic", self.topic))

    def why_not(self, client: type) -> str | None:
        """Say what clients of that type lack for the shape."""
        return self.shape.why_not(client)

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Draw sends of a producer, or steps of a consumer, without end."""
        rng, keys = draw(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        if self.shape.hold_s and client == min(1, clients - 1):
            # A short run may have no other poll that is held while no fault is in force.
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
        """Drain each of the client's queues: go on where the group stands, to the end."""
        for queue in range(client, self.queues, clients):
            yield Operation("drain", self._key(queue))
        if self.shape.deletes_topics and client == 0:
            # Of a short run all others may have failed: nobody would know whether it works.
            yield Operation(DELETE, self.topic, value=DELETED_LAST)

    def opened(self, client: GroupClient) -> TargetClient:
        """Return the client with a consumer's memory: what it owns, and where it stands."""
        if (why := self.why_not(type(client))) is not None:
            raise HarnessError(f"workload {self.name}: this target's clients {why}")
        client.use(self.topic, self.queues)
        keys = [self._key(queue) for queue in range(self.queues)]
        return Consumer(client, self.shape, self.topic, keys, self._greatest, self._unasked)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Say what comes next for this client, a send or the next step of its consumer."""
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
        """Do it. A poll answers with messages, an assign with its offset, a fetch with it."""
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
        """How long an operation may wait on purpose."""
        return self.shape.hold_s

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """The offset that the consumer's memory gave it."""
        return operation.offset

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Nothing: no operation looks for a queue's end as this worker knows it."""
        return 0

    def _key(self, queue: int) -> str:
        return f"{self.topic}/{queue}"

    def _marker(self, key: str) -> int:
        """Return a value that no other message has: each queue is drained by one client alone."""
        queue = int(key.rpartition("/")[2])
        return MARKER_FIRST - queue - self.queues * next(self._markers)


# A message queue with batches and tags: all of a batch, and of a tag just what bears it.
#
# Source: RocketMQ's SEND_BATCH_MESSAGE, and subscriptions by TAG (FilterAPI).


class QueueBatches(QueueWorkload):
    """A consumer group's queues, with batches of up to eight messages, and tags asked for."""

    name = "queue-batches"
    shape = Shape(batch_max=BATCH_MAX, tags=TAGS)


# A message queue with delayed messages: each comes once, none early, none is lost.
#
# Source: RocketMQ's delay levels (ScheduleMessageService).


class QueueDelays(QueueWorkload):
    """A consumer group's queues, to which messages come at once, or after a second, or five.

    A drain ends with a message of each delay: all that were sent before it have come by then.
    """

    name = "queue-delays"
    shape = Shape(delays_ms=DELAYS_MS)


# A message queue whose polls wait at its end: a message that is there comes within a bound.
#
# Source: RocketMQ's long polling (PullRequestHoldService).


class QueueHeld(QueueWorkload):
    """A consumer group's queues, whose polls wait for a message, for three seconds at most."""

    name = "queue-held"
    shape = Shape(hold_s=HOLD_S)


# A message queue whose messages are found by key and by id as well.
#
# Source: RocketMQ's QUERY_MESSAGE and VIEW_MESSAGE_BY_ID, MQAdmin.queryMessage and viewMessage.


class QueueKeys(QueueWorkload):
    """A consumer group's queues, whose messages bear keys, and are asked for by key and by id."""

    name = "queue-keys"
    shape = Shape(has_keys=True)


# A message queue whose offsets are committed one-way as well, and set back and forward.
#
# Source: RocketMQ's UPDATE_CONSUMER_OFFSET (one-way by default), mqadmin resetOffsetByTime.


class QueueOffsets(QueueWorkload):
    """A consumer group's queues, whose offsets are committed one-way too, and reset."""

    name = "queue-offsets"
    shape = Shape(is_oneway=True, is_reset=True, deletes_topics=True)


# A message queue whose operators ask for what must be refused.
#
# Source: RocketMQ's mqadmin; jepsen.nemesis.membership, whose operations may be refused.


class QueueOperators(QueueWorkload):
    """A consumer group's queues, beside operators who ask for what must be refused."""

    name = "queue-operators"
    shape = Shape(deletes_topics=True, has_misrequests=True)


# A message queue that is consumed in order: one consumer at a time, under the queue's lock.
#
# Source: RocketMQ's ConsumeMessageOrderlyService and RebalanceLockManager.


class QueueOrdered(QueueWorkload):
    """Queues that consumers of one group lock, consume, commit and unlock, whoever comes first."""

    name = "queue-ordered"
    shape = Shape(is_ordered=True, has_plain=False)


# Everything that clients of a queue can do, at once.
#
# Source: the workloads queue-* beside it.


class EverythingClients(QueueWorkload):
    """Delays, batches, tags, held polls, locks, resets, keys, misrequests: all at once."""

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
        has_misrequests=True,
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
