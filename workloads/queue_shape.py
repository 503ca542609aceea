"""What a queue's clients do besides sends, polls and commits, as data: one shape for each workload.

A message workload is a `Shape`, what `workloads.message_queue` does with it, and its checkers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Final

from shaketable.harness.contracts.clients import (
    ALL_SPAN,
    BatchingClient,
    DelayingClient,
    HoldingClient,
    InvalidRequestsClient,
    KeyedClient,
    LockingClient,
    OnewayClient,
    OperatingClient,
    TaggingClient,
)
from shaketable.harness.contracts.plugins import Answer, Operation

DELETE: Final = "delete-topic"
INVALID_REQUEST: Final = "misrequest"
FOUND: Final = frozenset(("find", "find-unique", "peek"))
"""Queries by key or by id, of any queue."""
PRODUCED: Final = frozenset(("send", "delay", "batch"))
"""What producers do."""
DELAYS_MS: Final = (1_000, 5_000)
"""The delays in use, in ms: the first two of RocketMQ's default levels."""
TAGS: Final = 3
"""Number of tags."""
BATCH_MAX: Final = 8
"""Most messages in a batch."""
HOLD_S: Final = 3.0
"""How long a poll is held, in s: longer than the delay that `checkers.queues.held_polls` allows."""
SELECT_HOLD_S: Final = 0.5
"""How long a selection by tags is held at the queue's end, in s, where polls are held."""
WAY_SHARE: Final = 0.25
"""Share of a producer's steps, for each way of sending that is not the plain one."""
SELECT_SHARE: Final = 0.3
FIND_SHARE: Final = 0.1
"""Share of a consumer's steps that query messages by key or by id."""
KEY_NUMBERS: Final = 32
"""This many consecutively numbered messages, of all producers, share a key."""
SELECT_ANEW_SHARE: Final = 0.05
"""Share of the selections by tag that start at the queue's first message and so page through it."""
ONEWAY_SHARE: Final = 0.5
"""Share of a consumer's commits."""
RESET_SHARE: Final = 0.02
DELETE_SHARE: Final = 0.01
INVALID_REQUEST_SHARE: Final = 0.1
"""Share of a consumer's steps that send an invalid request."""
DRAIN_HOLD_S: Final = 0.5
"""How long a poll waits at the end of a queue that is being drained, in seconds."""
OVERDUE_S: Final = 20.0
"""How long after its time a delayed message is waited for in a drain, in seconds: longer than
`checkers.queues.delayed_messages` needs to call one overdue after the last fault.
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload's clients do.

    Attributes:
        delays_ms: possible delays of a message.
        batch_max: most messages in a batch.
        tags: number of tags; consumers select one or two of them now and then.
        hold_s: how long polls wait for a message.
        is_ordered: consumers take a queue under its lock, regardless of assignment.
        has_plain: there are other consumers beside ordered ones.
        is_oneway: half of the commits are one-way.
        is_reset: offsets are reset in both directions while consumers run.
        deletes_topics: unused topics are created and deleted.
        has_keys: plain messages have keys, and are queried by key and by id.
        has_invalid_requests: requests that must be refused are sent.
    """

    delays_ms: tuple[int, ...] = ()
    batch_max: int = 1
    tags: int = 0
    hold_s: float = 0.0
    is_ordered: bool = False
    has_plain: bool = True
    is_oneway: bool = False
    is_reset: bool = False
    deletes_topics: bool = False
    has_keys: bool = False
    has_invalid_requests: bool = False

    def why_not(self, client: type) -> str | None:
        """Say what clients of that type lack ("cannot ..."); None if nothing."""
        needed = (
            (bool(self.delays_ms), DelayingClient, "cannot delay messages"),
            (self.batch_max > 1, BatchingClient, "cannot send batches"),
            (self.tags > 0, TaggingClient, "know no tags"),
            (bool(self.hold_s or self.delays_ms), HoldingClient, "cannot wait for messages"),
            (self.is_ordered, LockingClient, "cannot lock queues"),
            (self.is_oneway, OnewayClient, "cannot commit one-way"),
            (self.deletes_topics, OperatingClient, "cannot delete topics"),
            (self.has_keys, KeyedClient, "cannot find messages by key"),
            (
                self.has_invalid_requests,
                InvalidRequestsClient,
                "cannot ask for what must be refused",
            ),
        )
        lacks = (why for is_on, ability, why in needed if is_on and not issubclass(client, ability))
        return next(lacks, None)

    @property
    def checkers(self) -> tuple[str, ...]:
        """The checkers of this shape, beside those of every queue."""
        named = (
            (bool(self.delays_ms), "delayed-messages"),
            (self.tags > 0, "tag-selection"),
            (self.hold_s > 0, "held-polls"),
            (self.is_ordered, "queue-locks"),
            (self.has_keys, "found-by-key"),
            (self.has_invalid_requests, "refusals"),
        )
        return tuple(name for is_on, name in named if is_on)

    def is_ordered_by(self, client: int) -> bool:
        """Return whether that client consumes in order: every second consumer, unless all do."""
        return self.is_ordered and (not self.has_plain or client % 4 == 3)

    def production(self, rng: Random, key: str, number: int) -> Operation:
        """Choose how a producer sends its `number`, which is unique in the run.

        A batch of n has the values from its first one on, so all values are multiples of
        `batch_max`.
        """
        value = number * self.batch_max
        ways = [
            name
            for name, is_on in (
                ("delay", self.delays_ms), ("batch", self.batch_max > 1), ("tagged", self.tags)
            )
            if is_on
        ]  # fmt: skip
        place = int(rng.random() / WAY_SHARE) if ways else 0
        way = ways[place] if place < len(ways) else "send"
        if way == "delay":
            return Operation("delay", key, value=value, expected=rng.choice(self.delays_ms))
        if way == "batch":
            return Operation("batch", key, value=value, expected=rng.randint(2, self.batch_max))
        tag = rng.randrange(self.tags) if way == "tagged" else None
        return Operation("send", key, value=value, expected=tag)

    @property
    def key_span(self) -> int:
        """How many values share a key."""
        return KEY_NUMBERS * self.batch_max

    @property
    def selections(self) -> tuple[int, ...]:
        """The possible selections: one tag or two, tag n as bit n."""
        ones = [1 << tag for tag in range(self.tags)]
        return (*ones, *(one | other for one, other in combinations(ones, 2)))

    def consumption(self, rng: Random) -> str | None:
        """Choose a consumer's step that is not about its own queues; None: none."""
        if self.tags and rng.random() < SELECT_SHARE:
            return "select"
        if self.is_reset and rng.random() < RESET_SHARE:
            return "reset"
        if self.deletes_topics and rng.random() < DELETE_SHARE:
            return DELETE
        if self.has_keys and rng.random() < FIND_SHARE:
            return "find"
        if self.has_invalid_requests and rng.random() < INVALID_REQUEST_SHARE:
            return INVALID_REQUEST
        return None


# Queries of a queue's clients by message key and by message id, and the state that they need.
#
# Source: RocketMQ's MQAdminImpl.queryMessage (by key, within a time) and viewMessage (by id).

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
        self._finals: dict[str, Iterator[Operation]] = {}
        self._final: dict[str, Operation | None] = {}

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
            self._finals[key] = self._of_end(key)
            self._final[key] = next(self._finals[key])
        return self._final[key]

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
        if self._final.get(key) is operation:
            self._final[key] = next(self._finals[key], None)
        return Answer(messages=found)

    def _of_all(self, key: str, offset: int | None = None) -> Operation:
        return Operation("find", key, value=0, offset=offset, expected=ALL_SPAN)

    def _of_range(self, key: str, value: int, offset: int | None = None) -> Operation:
        first = value - value % self._span
        return Operation("find", key, value=first, offset=offset, expected=self._span)

    def _of_end(self, key: str) -> Iterator[Operation]:
        ranges = self._highest.value // self._span + 1
        yield self._of_all(key)
        # What was seen is asked for only now: the query before may be the first that found any.
        if (seen := self._client.seen(key)) is not None and seen[1] >= 0:
            yield self._of_range(key, seen[1], seen[0])
            yield Operation("find-unique", key, value=seen[1])
        for number in sorted({ranges * n // FINAL_RANGES_MAX for n in range(FINAL_RANGES_MAX)}):
            yield self._of_range(key, number * self._span)
        if self._client.seen(key) is not None:
            yield Operation("peek", key, value=0)  # rare before: faults may have failed all
