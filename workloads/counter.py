"""Grow-only counters: each add sends one message to a queue, a read counts them.

Source: jepsen.tests.counter (its client adds 1 and reads).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from shaketable.harness.contracts.clients import CounterClient, LogClient, WrappedClient
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    GeneratedWorkload,
    Generator,
    KeySpread,
    each_client,
    operations,
)

TOPIC: Final = "shaketable"
QUEUES_DEFAULT: Final = 4
ADD_SHARE: Final = 0.6  # the rest reads
AMOUNT: Final = 1
FINAL_READS: Final = 2


class CounterWorkload(GeneratedWorkload):
    """Grow-only counters: add 1, read the sum.

    The counter "topic/queue" is the number of messages in that queue. An add appends one message
    (its body is the amount, 1). A read is the queue's end offset, by read index: every message
    counts 1, and offsets have no gaps. So a lost message makes the count too low, a message stored
    twice makes it too high, and a stale end is a stale count.
    """

    name = "counter"
    checkers: tuple[str, ...] = ("counter", "committed-prefix", "vacuity", "stats")

    def __init__(self, spread: KeySpread | None = None) -> None:
        self.spread = spread or KeySpread(QUEUES_DEFAULT)

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] counters, spread as the options say."""
        return CounterWorkload(KeySpread.of_options(self.name, options, self.spread.keys))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: each adds and reads at random."""
        return each_client(lambda client: operations(self._generate(seed, client, clients)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read each counter, twice."""
        return operations(Operation("read", key) for _ in range(FINAL_READS) for key in keys)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read each of the client's counters once more."""
        for number in range(client, self.spread.keys, clients):
            yield Operation("read", self._key(number))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need counters, or a log."""
        if issubclass(client, CounterClient) or issubclass(client, LogClient):
            return None
        return "keep no counters, and no log"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return a client with counters: the target's own, or one that builds them on its log."""
        return client if isinstance(client, CounterClient) else LogCounters(client)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; a read returns the sum."""
        assert isinstance(client, CounterClient), "opened by this workload"
        if operation.f == "add":
            return Answer(offset=await client.increment(operation.key, AMOUNT))
        assert operation.f == "read", f"a counter has no operation {operation.f!r}"
        return Answer(await client.count(operation.key))

    def _generate(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        while True:
            key = self._key(keys.choose(rng))
            is_add = rng.random() < ADD_SHARE
            yield Operation("add", key, value=AMOUNT) if is_add else Operation("read", key)

    def _key(self, number: int) -> str:
        return f"{TOPIC}/{number}"


class LogCounters(WrappedClient):
    """Counters on a log: the number of messages in a queue."""

    async def increment(self, key: str, amount: int) -> int:
        """Append the amount; return its offset."""
        return await self._client.append(key, amount)

    async def count(self, key: str) -> int:
        """Return the queue's end: each message counts 1."""
        return await self._client.end(key)


PLUGIN = CounterWorkload()
