"""A consumer group's committed offsets: they only increase, and never go back.

Source: RocketMQ's ConsumerOffsetManager; jepsen.tests.kafka's commits, without the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from shaketable.harness.contracts.clients import GroupClient, OffsetsClient
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
COMMIT_SHARE: Final = 0.7
"""Share of commits, for clients with queues to commit for; other clients only fetch."""
FINAL_FETCHES: Final = 2


class OffsetsWorkload(GeneratedWorkload):
    """Offsets of a consumer group: commit them, fetch the committed ones.

    One client commits for each queue, as its assigned consumer would: 1, 2, 3, ...; all fetch. So
    an acknowledged commit must never be seen to go back. A commit of unknown outcome may take
    effect late, after a later one; the checker allows for that. No message is sent or polled
    (workload `queue` does both).
    """

    name = "offsets"
    checkers: tuple[str, ...] = ("consumer-offsets", "committed-prefix", "vacuity", "stats")

    def __init__(self, spread: KeySpread | None = None) -> None:
        self.spread = spread or KeySpread(QUEUES_DEFAULT)

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] queues, spread as the options say."""
        return OffsetsWorkload(KeySpread.of_options(self.name, options, self.spread.keys))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: each commits for its own queues, and fetches from any."""
        return each_client(lambda client: operations(self._generate(seed, client, clients)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Fetch each offset, twice."""
        return operations(Operation("fetch", key) for _ in range(FINAL_FETCHES) for key in keys)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Fetch the offset of each of the client's queues once more."""
        for number in range(client, self.spread.keys, clients):
            yield Operation("fetch", self._key(number))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they must store a group's offsets."""
        is_able = issubclass(client, OffsetsClient)
        return None if is_able else "cannot commit and fetch a group's offsets"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client, with the topic set."""
        if isinstance(client, GroupClient):
            client.use(TOPIC, self.spread.keys)
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; a fetch returns the offset, None for none."""
        assert isinstance(client, OffsetsClient), "looked at when it was opened"
        if operation.f == "fetch":
            return Answer(await client.fetch(operation.key))
        assert operation.f == "commit", f"offsets have no operation {operation.f!r}"
        assert operation.value is not None, "a commit of nothing"
        await client.commit(operation.key, operation.value)
        return Answer()

    def _generate(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        own = [key for key in range(self.spread.keys) if key % clients == client]
        next_offset = {key: count(1) for key in own}
        while True:
            roll, which = rng.random(), rng.random()
            if own and roll < COMMIT_SHARE:
                key = own[int(which * len(own))]
                yield Operation("commit", self._key(key), value=next(next_offset[key]))
            else:
                yield Operation("fetch", self._key(keys.choose(rng)))

    def _key(self, number: int) -> str:
        return f"{TOPIC}/{number}"


PLUGIN = OffsetsWorkload()
