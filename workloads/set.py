"""Grow-only sets: elements are added, and the whole set is read now and then.

Source: jepsen.tests.set-full; jepsen.independent for one set after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from shaketable.harness.contracts.clients import PollingClient, SetClient, WrappedClient
from shaketable.harness.contracts.errors import IndefiniteError
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.generators import (
    GeneratedWorkload,
    Generator,
    limit,
    mix,
    operations,
    per_key,
    phases,
    repeat,
    until_ok,
    width_of,
)

TOPIC: Final = "shaketable-set"
QUEUES_A_TOPIC: Final = 16
"""A send creates a topic with this many queues."""
CLIENTS_A_SET: Final = 4
OPERATIONS_A_SET: Final = 250
READ_SHARE: Final = 0.1
LAST_READS_MAX: Final = 20
"""The last read of a set is retried this many times at most."""
FINAL_SETS_MAX: Final = 500
"""After the heal, each worker reads this many of its last sets once more."""
POLLS_MAX: Final = 10_000


class SetWorkload(GeneratedWorkload):
    """Grow-only sets: add an element, read all elements.

    The set "topic/queue" is that queue. An add appends the element as a message. A read gets the
    queue's end by read index and polls from offset 0 to it, each poll from where the one before
    says to go on. Groups of clients work on sets of their own (4 clients, or `clients_per_key`),
    one after another. A set ends after 250 operations, so that reads stay cheap, with a last read.
    After the heal the last sets are read once more.
    """

    name = "set"
    checkers: tuple[str, ...] = ("set-full", "committed-prefix", "vacuity", "stats")

    def __init__(self, width: int = CLIENTS_A_SET) -> None:
        self.width = width

    def configured(self, options: Json) -> Workload:
        """Return this workload with options["clients_per_key"] clients on a set."""
        return SetWorkload(width_of(self.name, options) or CLIENTS_A_SET)

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: groups work on one set after another."""

        def one_set(number: int) -> Generator:
            key = key_of(number)
            adds = operations(Operation("add", key, value=value) for value in count())
            reads = repeat(Operation("read", key))
            shares = (1 - READ_SHARE, READ_SHARE)
            work = mix(adds, reads, seed=f"{seed}/{key}", weights=shares)
            last = until_ok(repeat(Operation("read", key), LAST_READS_MAX))
            return phases(limit(OPERATIONS_A_SET, work), last)

        return per_key(self.width, clients, one_set)

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read the last sets once more."""
        return operations(Operation("read", key) for key in keys[-FINAL_SETS_MAX:])

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read the client's first set."""
        yield Operation("read", key_of(client))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need sets, or a log that they can poll."""
        if issubclass(client, SetClient) or issubclass(client, PollingClient):
            return None
        return "keep no sets, and cannot poll a queue"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return a client with sets: the target's own, or one that builds them on its log."""
        return client if isinstance(client, SetClient) else LogSets(client)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; an add returns its offset, a read the elements."""
        assert isinstance(client, SetClient), "opened by this workload"
        if operation.f == "add":
            assert operation.value is not None, "an add of nothing"
            return Answer(offset=await client.add(operation.key, operation.value))
        assert operation.f == "read", f"a set has no operation {operation.f!r}"
        return Answer(elements=await client.elements(operation.key))


def key_of(number: int) -> str:
    """Return the queue of the set with that number."""
    return f"{TOPIC}-{number // QUEUES_A_TOPIC}/{number % QUEUES_A_TOPIC}"


class LogSets(WrappedClient):
    """Sets on a log: an add appends, a read polls all of the queue."""

    async def add(self, key: str, value: int) -> int:
        """Append the element; return its offset."""
        return await self._client.append(key, value)

    async def elements(self, key: str) -> list[int]:
        """Poll all elements up to the end as it was when the read began."""
        client = self._client
        assert isinstance(client, PollingClient), "looked at when it was opened"
        end, at = await client.end(key), 0
        found: list[int] = []
        for _ in range(POLLS_MAX):
            if at >= end:
                return found
            polled = await client.poll(key, at)
            if not polled.messages:
                return found  # it ends before the end it reported: report the set as read
            found += [value for offset, value in polled.messages if offset < end]
            at = polled.next_offset
        raise IndefiniteError(f"{key} is not read after {POLLS_MAX} polls")


PLUGIN = SetWorkload()
