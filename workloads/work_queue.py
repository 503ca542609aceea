"""What goes in comes out again, in any order: a work queue, and messages with order keys.

Source: jepsen.tests of queues (enqueue, dequeue, a final drain); RabbitMQ's tutorial "Work Queues";
RocketMQ's MessageQueueSelector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Final

from shaketable.harness.contracts.clients import OrderKeysClient, QueueClient, WrappedClient
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.generators import (
    PENDING,
    Completion,
    Context,
    Due,
    GeneratedWorkload,
    Generator,
    KeySpread,
    NextOp,
    Wait,
    concat,
    each_client,
    operations,
)

TOPIC: Final = "shaketable-work"
QUEUES_DEFAULT: Final = 4
ENQUEUE_SHARE: Final = 0.55
"""The rest dequeues: a little less than what comes in, so that faults find elements in queues."""
EMPTY_FOR_S: Final = 5.0
"""A queue is drained once it was empty for so long: what was delivered to a client that is gone
comes back to it."""
EMPTY_PAUSE_S: Final = 0.25
"""Between two dequeues of a queue that was empty."""
NS: Final = 1e9


class WorkQueue(GeneratedWorkload):
    """Queues whose elements are each taken by one client: enqueue, dequeue.

    Queues are "shaketable-work/0" to "shaketable-work/n-1"; values are unique: client c of n
    enqueues c, n + c, 2n + c, .... A dequeue returns an element, which is then taken, or nothing if
    the queue is empty. After the heal all queues are drained, each by the clients that share it:
    they dequeue until nothing has come for five seconds.
    """

    name = "work-queue"
    checkers: tuple[str, ...] = ("total-queue", "committed-prefix", "vacuity", "stats")

    def __init__(self, spread: KeySpread | None = None) -> None:
        self.spread = spread or KeySpread(QUEUES_DEFAULT)

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] queues, spread as the options say."""
        return WorkQueue(KeySpread.of_options(self.name, options, self.spread.keys))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: each enqueues and dequeues at random."""
        return each_client(lambda client: operations(self._generate(seed, client, clients)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Drain all queues, also those that this worker knows nothing of; all clients help."""
        return each_client(partial(self._drain, clients))

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Dequeue once from each of the client's queues."""
        for number in range(client, self.spread.keys, clients):
            yield Operation("dequeue", self._key(number))

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need queues."""
        return None if issubclass(client, QueueClient) else "have no enqueue and dequeue"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client as it is."""
        return client

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; a dequeue returns the element."""
        assert isinstance(client, QueueClient), "opened by this workload"
        if operation.f == "enqueue":
            assert operation.value is not None, "an enqueue of nothing"
            await client.enqueue(operation.key, operation.value)
            return Answer()
        assert operation.f == "dequeue", f"a work queue has no operation {operation.f!r}"
        return Answer(await client.dequeue(operation.key))

    def _generate(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        while True:
            key = self._key(keys.choose(rng))
            if rng.random() < ENQUEUE_SHARE:
                yield Operation("enqueue", key, value=value)
                value += clients
            else:
                yield Operation("dequeue", key)

    def _drain(self, clients: int, client: int) -> Generator:
        queues = self.spread.keys
        numbers = range(client, queues, clients) if clients < queues else [client % queues]
        return concat(*(Drained(self._key(number)) for number in numbers))

    def _key(self, number: int) -> str:
        return f"{TOPIC}/{number}"


@dataclass(frozen=True, slots=True)
class Drained:
    """The generator of one client's dequeues until a queue has been empty for a while.

    Attributes:
        key: the queue.
        empty_from_ns: when the first of the last dequeues ended that found nothing; None if the
            last one found something, or there was none.
        last_ns: when the last dequeue ended.
        is_asked: a dequeue was given and has not ended.
    """

    key: str
    empty_from_ns: int | None = None
    last_ns: int = 0
    is_asked: bool = False

    def next_op(self, context: Context) -> NextOp:
        """Dequeue at once, or after a pause if nothing was found."""
        if self.is_asked:
            return PENDING, self
        if self.empty_from_ns is not None:
            if self.last_ns - self.empty_from_ns >= EMPTY_FOR_S * NS:
                return None
            if context.now_ns < (again_ns := self.last_ns + int(EMPTY_PAUSE_S * NS)):
                return Wait(again_ns), self
        due = Due(Operation("dequeue", self.key), context.free[0], context.now_ns)
        return due, replace(self, is_asked=True)

    def update(self, completion: Completion) -> Generator:
        """Note whether the queue was empty."""
        if completion.operation.key != self.key:
            return self
        at_ns, empty_ns = completion.at_ns, self.empty_from_ns
        if completion.answer.output is not None:
            empty_ns = None
        elif empty_ns is None:
            empty_ns = at_ns
        return Drained(self.key, empty_ns, at_ns)


# Messages with an order key: a producer sends those of one key to one queue.
#
# Source: RocketMQ's SelectMessageQueueByHash (messages of one order go to one queue).

ORDER_KEYS_TOPIC: Final = "shaketable-order-keys"
ORDER_KEYS: Final = 8
ORDER_KEY_QUEUES: Final = 6


class OrderKeys(GeneratedWorkload):
    """Producers whose clients choose a message's queue by its order key: enqueue; drain at the end.

    Keys are "shaketable-order-keys/0" and so on: the number is the order key. Client c of n sends
    the values c, n + c, 2n + c, .... After the heal the messages of each key are read from every
    queue of the topic: each that was acknowledged must be there, once. To which queues they go is
    checked in the client, which knows its routes (rule `order-keys-keep-their-queue`).
    """

    name = "queue-order-keys"
    checkers: tuple[str, ...] = ("total-queue", "committed-prefix", "vacuity", "stats")

    def __init__(self, spread: KeySpread | None = None, topic: str = ORDER_KEYS_TOPIC) -> None:
        self.spread = spread or KeySpread(ORDER_KEYS)
        self.topic = topic

    def configured(self, options: Json) -> Workload:
        """Return this workload with options["queues"] order keys, spread as the options say."""
        spread = KeySpread.of_options(self.name, options, self.spread.keys)
        return OrderKeys(spread, options.get("topic", self.topic))

    def generator(self, seed: str, clients: int) -> Generator:
        """Return what clients do: all of them send."""
        return each_client(lambda client: operations(self._generate(seed, client, clients)))

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Read the messages of each order key, also of those that this worker knows nothing of."""
        return each_client(lambda client: operations(self.final_operations(client, clients)))

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Read the client's share of the order keys, from a share of the queues after the other."""
        for number in range(client, self.spread.keys, clients):
            for place in range(ORDER_KEY_QUEUES):
                yield Operation("drain", self._key(number), value=place)

    def why_not(self, client: type) -> str | None:
        """Return what such clients lack: they need order keys."""
        return None if issubclass(client, OrderKeysClient) else "know no order keys"

    def opened(self, client: TargetClient) -> TargetClient:
        """Return the client, which is given the topic, with what it has read at the end."""
        return _OrderKeysReader(client, self.topic)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Return the operation, unless it has been done."""
        assert isinstance(client, _OrderKeysReader), "opened by this workload"
        return None if operation is client.done else operation

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation; a drain returns the elements of its key that are in some queues."""
        assert isinstance(client, _OrderKeysReader), "opened by this workload"
        assert operation.value is not None, "an operation without a value"
        if operation.f == "enqueue":
            await client.messages.send_with_order_key(operation.key, operation.value)
            return Answer()
        assert operation.f == "drain", f"order keys have no operation {operation.f!r}"
        place = operation.value
        found = await client.messages.read_order_key(operation.key, place, ORDER_KEY_QUEUES)
        client.done = operation
        return Answer(elements=found)

    def _generate(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        rng, keys = rng_for(seed, "client", client), self.spread.of_client(client, clients)
        for number in count():
            yield Operation("enqueue", self._key(keys.choose(rng)), value=number * clients + client)

    def _key(self, number: int) -> str:
        return f"{self.topic}/{number}"


class _OrderKeysReader(WrappedClient):
    """One process of the history: its client, and the last of its final reads."""

    def __init__(self, client: TargetClient, topic: str) -> None:
        assert isinstance(client, OrderKeysClient), "looked at before"
        client.use(topic, ORDER_KEY_QUEUES)
        super().__init__(client)
        self.messages: OrderKeysClient = client
        self.done: Operation | None = None


PLUGINS = (
    WorkQueue(),
    OrderKeys(),
)
