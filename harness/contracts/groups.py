"""Consumer groups: a client that joins a group, and workloads whose steps depend on its state.

An addition to `contracts.plugins`: a target has such clients if it can
(`contracts.abilities.NamesBrokers`); a workload that needs them is a `GroupWorkload`.

Source: jepsen.tests.kafka (subscribe, assign, poll, commits), RocketMQ's DefaultLitePullConsumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Operation, TargetClient, Workload


@dataclass(frozen=True, slots=True)
class PollResult:
    """The result of a poll.

    Attributes:
        messages: (offset, value) in the order of delivery.
        next_offset: where to poll next.
        is_outside: the requested offset is out of the queue's range; `next_offset` is in it again.
    """

    messages: Sequence[tuple[int, int]]
    next_offset: int
    is_outside: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages of queue `key` delivered to a push consumer: (offset, value) in order.

    `attempts`: how often each was sent back before; empty if that is not known.
    """

    key: str
    messages: Sequence[tuple[int, int]]
    attempts: Sequence[int] = ()


RETRY: Final = "%RETRY%"
DEAD: Final = "%DLQ%"


def retry_key(topic: str, number: int) -> str:
    """Return the key of a topic's retry queue on broker name `number`."""
    return f"{topic}/{RETRY}/{number}"


def dead_key(topic: str) -> str:
    """Return the key of all of a topic's dead-letter queues."""
    return f"{topic}/{DEAD}"


@runtime_checkable
class GroupClient(TargetClient, Protocol):
    """A producer, and one consumer of one consumer group. One operation at a time.

    Methods raise as those of `TargetClient`. Queues are named by keys.
    """

    def use(self, topic: str, queues: int) -> None:
        """Set the topic and its number of queues. Call this first."""
        ...

    def is_unbalanced(self) -> bool:
        """Return whether the group may have changed, or `rebalance` is due."""
        ...

    async def send(self, key: str, value: int) -> int:
        """Produce `value` to queue `key`; return its offset."""
        ...

    async def subscribe(self) -> int:
        """Join the group; return how many brokers know of it."""
        ...

    async def unsubscribe(self) -> None:
        """Leave the group."""
        ...

    async def rebalance(self) -> tuple[str, ...]:
        """Ask for the group's members; return the queues assigned to this consumer."""
        ...

    async def fetch(self, key: str) -> int | None:
        """Return the group's committed offset; None if there is none."""
        ...

    async def commit(self, key: str, offset: int) -> None:
        """Commit `offset` for the group: the next message to consume."""
        ...

    async def min_offset(self, key: str) -> int:
        """Return the lowest offset that the queue retains."""
        ...

    async def poll(self, key: str, offset: int) -> PollResult:
        """Return the messages from `offset` on, as many as one answer brings; may be none."""
        ...


@runtime_checkable
class GroupWorkload(Workload, Protocol):
    """A workload whose next operation depends on the state of its client."""

    def opened(self, client: GroupClient) -> TargetClient:
        """Wrap the client with this workload's state, for one process of a history."""
        ...

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Turn a generated operation into what this client does in its present state; None: no-op.

        For a final operation: what is still to do; None when done.
        """
        ...
