"""What clients of a queue do beside sends, polls and commits: one shape for all such workloads.

A workload of messages is a `Shape` (data), what `workloads.message_queue` does with it, and the
checkers that judge it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Final

from shaketable.harness.contracts.clients import (
    BatchingClient,
    DelayingClient,
    ErringClient,
    HoldingClient,
    KeyedClient,
    LockingClient,
    OnewayClient,
    OperatingClient,
    TaggingClient,
)
from shaketable.harness.contracts.plugins import Operation

DELETE: Final = "delete-topic"
MISREQUEST: Final = "misrequest"
FOUND: Final = frozenset(("find", "find-unique", "peek"))
"""What asks for messages by key or by id, of any queue."""
PRODUCED: Final = frozenset(("send", "delay", "batch"))
"""What producers do."""
DELAYS_MS: Final = (1_000, 5_000)
"""Delays that are drawn: the first two of RocketMQ's default levels."""
TAGS: Final = 3
"""How many tags there are."""
BATCH_MAX: Final = 8
"""Messages of one batch."""
HOLD_S: Final = 3.0
"""How long a poll is held, longer than what `checkers.queues.held_polls` allows for."""
WAY_SHARE: Final = 0.25
"""Of a producer's steps, for each way of sending that is not the plain one."""
SELECT_SHARE: Final = 0.3
FIND_SHARE: Final = 0.1
"""Of a consumer's steps: it asks for messages by key, or by id."""
KEY_NUMBERS: Final = 32
"""Messages that are numbered one behind the other, by all producers, and have a key in common."""
SELECT_ANEW_SHARE: Final = 0.05
"""Of those who ask for tags: they begin at the queue's first message, with pages to go through."""
ONEWAY_SHARE: Final = 0.5
"""Of a consumer's commits."""
RESET_SHARE: Final = 0.02
DELETE_SHARE: Final = 0.01
MISREQUEST_SHARE: Final = 0.1
"""Of a consumer's steps: it asks for what must be refused."""
DRAIN_HOLD_S: Final = 0.5
"""How long a poll at the end of a queue that is being drained waits."""
OVERDUE_S: Final = 20.0
"""So long behind its time a delayed message is waited for while a queue is drained: longer than
`checkers.queues.delayed_messages` needs to call one overdue after the last fault."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of these things a workload's clients do.

    Attributes:
        delays_ms: messages may come so much later.
        batch_max: so many messages are sent at once at most.
        tags: so many tags; consumers ask for one or two of them now and then.
        hold_s: polls wait so long for a message.
        is_ordered: consumers take a queue under its lock, whoever it belongs to.
        has_plain: beside ordered consumers there are others.
        is_oneway: half of the commits are one-way.
        is_reset: consumers' offsets are set back and forward while they run.
        deletes_topics: topics that nobody uses are made and deleted.
        has_keys: plain messages bear keys, and are asked for by key and by id.
        has_misrequests: what must be refused is asked for.
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
    has_misrequests: bool = False

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
            (self.has_misrequests, ErringClient, "cannot ask for what must be refused"),
        )
        lacks = (why for is_on, ability, why in needed if is_on and not issubclass(client, ability))
        return next(lacks, None)

    @property
    def checkers(self) -> tuple[str, ...]:
        """What judges these things, beside what judges every queue."""
        named = (
            (bool(self.delays_ms), "delayed-messages"),
            (self.tags > 0, "tag-selection"),
            (self.hold_s > 0, "held-polls"),
            (self.is_ordered, "queue-locks"),
            (self.has_keys, "found-by-key"),
            (self.has_misrequests, "refusals"),
        )
        return tuple(name for is_on, name in named if is_on)

    def is_ordered_by(self, client: int) -> bool:
        """Whether that client consumes in order: every second consumer where there are others."""
        return self.is_ordered and (not self.has_plain or client % 4 == 3)

    def production(self, rng: Random, key: str, number: int) -> Operation:
        """Draw how a producer sends its `number`, which no other send of the run has.

        A batch of n carries the values from its first one on, so all values are multiples.
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
        """How many values have a key in common."""
        return KEY_NUMBERS * self.batch_max

    @property
    def selections(self) -> tuple[int, ...]:
        """What is asked for: one tag or two, tag n as the bit n."""
        ones = [1 << tag for tag in range(self.tags)]
        return (*ones, *(one | other for one, other in combinations(ones, 2)))

    def consumption(self, rng: Random) -> str | None:
        """Draw what a consumer does that has nothing to do with its own queues; None: nothing."""
        if self.tags and rng.random() < SELECT_SHARE:
            return "select"
        if self.is_reset and rng.random() < RESET_SHARE:
            return "reset"
        if self.deletes_topics and rng.random() < DELETE_SHARE:
            return DELETE
        if self.has_keys and rng.random() < FIND_SHARE:
            return "find"
        if self.has_misrequests and rng.random() < MISREQUEST_SHARE:
            return MISREQUEST
        return None
