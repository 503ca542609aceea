"""Transactions of appends and reads of lists, from which the order of all versions is known.

Source: jepsen.tests.cycle.append; Elle (Kingsbury & Alvaro, VLDB 2020), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from shaketable.harness.contracts.clients import TransactionClient
from shaketable.harness.contracts.plugins import (
    Answer,
    Json,
    Operation,
    Step,
    TargetClient,
    Workload,
)
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    Completion,
    Context,
    Due,
    GeneratedWorkload,
    Generator,
    NextOp,
    each_client,
    number_of_keys,
    operations,
)
from shaketable.harness.generators.generator import PENDING
from shaketable.harness.history.schema import TRANSACTION

LISTS: Final = "lists"
"""The key that transactions are recorded under: each is about several."""
APPEND, READ = "append", "r"
LISTS_DEFAULT: Final = 8
"""Lists that are worked on at a time."""
STEPS_MAX: Final = 4
"""Of a transaction; it has one at least."""
ELEMENTS_MAX: Final = 32
"""A list that a client has seen with so many elements is replaced by a new one."""
FINAL_BLOCKS_MAX: Final = 5_000
"""Transactions of one client at most that read all lists in the end."""


class ListAppendWorkload(GeneratedWorkload):
    """Transactions of one to four steps: append to a list, or read one.

    All clients work on the same lists, as many as a campaign has `queues`. The elements of a list
    say who appended first, so the checker knows the order of all versions. Of the lists, the first
    is used twice as often as the second, and so on, so that transactions meet. A list is replaced
    once it has 32 elements. After the heal all lists are read.
    """

    name = "list-append"
    checkers: tuple[str, ...] = ("isolation", "durability", "vacuity", "stats")

    def __init__(self, lists: int = LISTS_DEFAULT) -> None:
        self.lists = lists

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] lists at a time.

        Raises:
            UsageError: that is no such number.
        """
        return ListAppendWorkload(number_of_keys(self.name, options, self.lists))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: random transactions, on lists that are not full yet."""
        drawn = each_client(lambda client: operations(self._draw(seed, client, clients)))
        return _NewLists(drawn, self.lists)

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read all lists: each client its share of them, as many at a time as were in use."""
        return each_client(lambda client: _ReadAll(self.lists, client, clients))

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read the first lists."""
        yield _reads(self.lists, client)

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need transactions."""
        return None if issubclass(client, TransactionClient) else "have no transactions"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client: transactions are the target's own."""
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run a transaction; return its steps, with the lists that were read."""
        assert isinstance(client, TransactionClient), "looked at when it was opened"
        assert operation.steps is not None, "a transaction of nothing"
        return Answer(steps=await client.transact(operation.steps))

    def _draw(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Draw transactions; a key is one of the places 0, 1, ... until `_NewLists` has its list.

        Appended values are c, n + c, 2n + c, ...: no two appends have the same one.
        """
        rng, value = rng_for(seed, "client", client), client
        while True:
            steps: list[Step] = []
            for _ in range(rng.randint(1, STEPS_MAX)):
                place = str(_place(rng, self.lists))
                if rng.random() < 0.5:
                    steps.append((READ, place, None))
                else:
                    steps.append((APPEND, place, value))
                    value += clients
            yield _transaction(steps)


def _place(rng: Random, lists: int) -> int:
    """Draw one of the lists in use: each half as often as the one before."""
    return min(int(rng.expovariate(1.0) / 0.7), lists - 1)


def _transaction(steps: Sequence[Step]) -> Operation:
    return Operation(TRANSACTION, LISTS, steps=tuple(steps))


def key_of(number: int) -> str:
    """Return the key of a list."""
    return f"list-{number}"


def _reads(lists: int, block: int) -> Operation:
    """Return a transaction that reads all lists that take turns `block` times later."""
    first = lists * block
    return _transaction([(READ, key_of(first + place), None) for place in range(lists)])


@dataclass(frozen=True, slots=True)
class _NewLists:
    """Gives each place its list, and a new one once a client of this worker saw it full.

    All workers see the same lists, so they go on to new ones at about the same time.
    """

    inner: Generator
    lists: int
    number: Mapping[int, int] = field(default_factory=dict)
    """By place, the number of its list; at first that of the place."""

    def next_op(self, context: Context) -> NextOp:
        given = self.inner.next_op(context)
        if given is None:
            return None
        step, inner = given
        if isinstance(step, Due):
            steps = tuple(
                (f, self._key(int(at)), value) for f, at, value in step.operation.steps or ()
            )
            step = step._replace(operation=replace(step.operation, steps=steps))
        return step, replace(self, inner=inner)

    def update(self, completion: Completion) -> Generator:
        number = dict(self.number)
        for f, key, found in completion.answer.steps or ():
            if f == READ and len(found) >= ELEMENTS_MAX:
                full = int(key.rpartition("-")[2])
                place = full % self.lists
                number[place] = max(number.get(place, place), full + self.lists)
        return replace(self, inner=self.inner.update(completion), number=number)

    def _key(self, place: int) -> str:
        return key_of(self.number.get(place, place))


@dataclass(frozen=True, slots=True)
class _ReadAll:
    """Reads every `clients`-th block of lists, until one in which all are empty."""

    lists: int
    block: int
    clients: int
    blocks: int = 0
    is_asked: bool = False
    is_over: bool = False

    def next_op(self, context: Context) -> NextOp:
        if self.is_over or self.blocks >= FINAL_BLOCKS_MAX:
            return None
        if self.is_asked:
            return PENDING, self
        due = Due(_reads(self.lists, self.block), context.free[0], context.now_ns)
        return due, replace(self, is_asked=True)

    def update(self, completion: Completion) -> Generator:
        found = completion.answer.steps or ()  # nothing, where it was given up
        is_over = not any(elements for _, _, elements in found)
        block, blocks = self.block + self.clients, self.blocks + 1
        return replace(self, block=block, blocks=blocks, is_asked=False, is_over=is_over)


PLUGIN = ListAppendWorkload()
