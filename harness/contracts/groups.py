"""What a workload of consumer groups needs: a client that joins a group, steps that depend on it.

Beside `contracts.plugins`: a target offers such clients if it can
(`contracts.abilities.NamesBrokers`), a workload that needs them says so by being a `GroupWorkload`.

Source: jepsen.tests.kafka (subscribe, assign, poll, commits), RocketMQ's DefaultLitePullConsumer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from shaketable.harness.contracts.plugins import Operation, TargetClient, Workload


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll brought: (offset, value) in the order of delivery, and where to go on.

    `is_outside`: the queue does not reach the offset asked for; `next_offset` is in it again.
    """

    messages: Sequence[tuple[int, int]]
    next_offset: int
    is_outside: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """Messages of queue `key` that a consumer was handed: (offset, value) in their order.

    `attempts`: how often each of them had been sent back before; empty where nobody says.
    """

    key: str
    messages: Sequence[tuple[int, int]]
    attempts: Sequence[int] = ()


RETRY: Final = "%RETRY%"
DEAD: Final = "%DLQ%"


def retry_key(topic: str, number: int) -> str:
    """Return the key of the queue by which messages of a topic come again, on broker name n."""
    return f"{topic}/{RETRY}/{number}"


def dead_key(topic: str) -> str:
    """Return the key of all queues in which a topic's dead letters lie."""
    return f"{topic}/{DEAD}"


@runtime_checkable
class GroupClient(TargetClient, Protocol):
    """A producer, and one consumer of one consumer group. One operation at a time.

    Methods raise as those of `TargetClient`. Queues are named by keys.
    """

    def use(self, topic: str, queues: int) -> None:
        """Say which topic all is about, and how many queues it has; to be called first."""
        ...

    def is_unbalanced(self) -> bool:
        """True if the group may have changed, or `rebalance` is due again."""
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
        """Ask who is in the group; return the queues that are this consumer's now."""
        ...

    async def fetch(self, key: str) -> int | None:
        """Return the offset that the group committed, None if it committed none."""
        ...

    async def commit(self, key: str, offset: int) -> None:
        """Let the group go on at `offset`."""
        ...

    async def begin(self, key: str) -> int:
        """Return the lowest offset that the queue retains."""
        ...

    async def poll(self, key: str, offset: int) -> Polled:
        """Return the messages from `offset` on, as many as come at once, perhaps none."""
        ...


@runtime_checkable
class GroupWorkload(Workload, Protocol):
    """A workload whose next operation depends on where its client stands."""

    def opened(self, client: GroupClient) -> TargetClient:
        """Return that client with the memory of this workload, for one process of a history."""
        ...

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Turn a drawn operation into what this client, as it stands, does; None: nothing now.

        Of a final operation: what is still to be done of it, None when all is.
        """
        ...
