"""A message queue whose consumers are handed messages, as RocketMQ's push consumers are.

Source: RocketMQ's DefaultMQPushConsumer with a concurrent or an orderly message listener.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Self

import trio

from shaketable.harness.contracts.clients import FailingClient, HandlingClient, RetryingClient
from shaketable.harness.contracts.draw import draw
from shaketable.harness.contracts.errors import DefiniteError, HarnessError
from shaketable.harness.contracts.groups import GroupClient, Handed
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient
from shaketable.harness.generators.clients import KeySpread
from shaketable.workloads.queue_consumer import TOPIC
from shaketable.workloads.queue_retries import Retries, Returning

QUEUES_DEFAULT: Final = 5
"""So many that few numbers of consumers divide them evenly."""
LEAVE_SHARE: Final = 0.065
"""Of a consumer's steps, while they leave; at the others it handles what waits longest."""
LEAVING_S: Final = 3.0
LEAVING_EVERY_S: Final = 10.0
"""Consumers leave for so long, and then stay: what must not happen to a group to which nothing
happens is seen in between (`checkers.queues.queue_owners`)."""
TIDY_FIRST_S: Final = 0.5
"""Those that leave first then do so in good order: what they had handled must not come again."""
TIDY_SHARE: Final = 0.5
"""Of the consumers that leave; the others are gone as a process that is killed."""
FAIL_SHARE: Final = 0.1
"""Of what consumers handle: the handler fails at one of the messages. It and those behind it come
again, under the queue's lock in their place, else by the retry topic."""
PATIENCE_S: Final = 25.0
"""So long consumers go on in the end until the group has committed all: longer than
`checkers.queues.push_delivery` needs to call a message overdue after the last fault."""
SHORT_S: Final = 2.5
"""So long a queue that ends before what was acknowledged is asked for its end after the heal:
longer than `checkers.queues.push_delivery` gives it to show that."""
LOOK_AFTER_S: Final = 0.2
"""How often it is asked in the end how far the group is."""


class QueuePush:
    """Producers, and consumers that pull, handle and commit by themselves.

    Queues are "shaketable/0" to "shaketable/n-1". Clients with even numbers produce, the values
    of client c of n are c, n + c, 2n + c, ...; the others consume (one client does both).
    Operations: send; subscribe (a consumer begins to run), handle (messages that it was handed:
    its handler returns when this is ok, or fails at the next one), unsubscribe (it ends;
    `expected` 1: having committed what was handled, 0: as a process that is killed), fetch (the
    group's offset, in the end; answered with the queue's end too, as `offset`). Without locks what
    fails is sent back: `workloads.queue_retries`.
    """

    name = "queue-push"
    is_ordered = False
    checkers: tuple[str, ...] = (
        "push-delivery",
        "retried-messages",
        "queue-owners",
        "durability",
        "committed-prefix",
        "vacuity",
        "stats",
    )

    def __init__(
        self,
        queues: int = QUEUES_DEFAULT,
        spread: KeySpread | None = None,
        topic: str = TOPIC,
    ) -> None:
        self.spread = spread or KeySpread(queues)
        self.queues = self.spread.keys
        self.topic = topic
        self._reached: dict[str, int] = {}
        """How far the queues reach at least, by what clients of this worker sent."""
        self._returning = Returning()
        self._began_s: float | None = None

    def configured(self, options: Json) -> Self:
        """Return this workload on options["queues"] queues; producers choose as the options say."""
        spread = KeySpread.of_options(self.name, options, self.queues)
        return type(self)(spread=spread, topic=options.get("topic", self.topic))

    def why_not(self, client: type) -> str | None:
        """Say what clients of that type lack."""
        return None if issubclass(client, HandlingClient) else "are handed no messages"

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Draw sends of a producer, or steps of a consumer, without end."""
        rng, keys = draw(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        while True:
            if not _consumes(client, clients) or (clients == 1 and rng.random() < 0.5):
                yield Operation("send", self._key(keys.choose(rng)), value=value)
                value += clients
            else:
                leaves = rng.random() < LEAVE_SHARE
                yield Operation("unsubscribe" if leaves else "handle", self.topic, aim=rng.random())

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Go on until the group has committed every queue to its end."""
        if _consumes(client, clients):
            yield Operation("drain", self.topic)

    def opened(self, client: GroupClient) -> TargetClient:
        """Return the client with a consumer's memory."""
        if not isinstance(client, HandlingClient):
            raise HarnessError(
                f"workload {self.name}: this target's clients are handed no messages"
            )
        client.use(self.topic, self.queues)
        keys = [self._key(queue) for queue in range(self.queues)]
        return _Consumer(client, self.topic, keys, self.is_ordered, self._reached, self._returning)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Say what comes next for this client, a send or the next step of its consumer."""
        assert isinstance(client, _Consumer), "opened by this workload"
        if self._began_s is None:
            self._began_s = trio.current_time()
        if operation.f == "send":
            return operation
        if operation.f == "unsubscribe":
            operation = self._leaving(operation)
        return client.next_of_drain() if operation.f == "drain" else client.next_step(operation)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Do it. `handle` answers with messages, a fetch with the group's offset, and the end."""
        assert isinstance(client, _Consumer), "opened by this workload"
        return await client.do(operation)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """None is chosen: brokers say where a message is, groups where they are."""
        return None

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Nothing: no operation looks for a queue's end as this worker knows it."""
        return 0

    def _leaving(self, operation: Operation) -> Operation:
        """Turn a step that leaves into one that stays, or leaves in good order, where it is time.

        The clients of a worker begin together.
        """
        assert self._began_s is not None, "set with the first choice"
        turn, since_s = divmod(trio.current_time() - self._began_s, LEAVING_EVERY_S)
        if since_s >= LEAVING_S:
            return replace(operation, f="handle")
        return replace(operation, aim=0.0) if turn and since_s < TIDY_FIRST_S else operation

    def _key(self, queue: int) -> str:
        return f"{self.topic}/{queue}"


def _consumes(client: int, clients: int) -> bool:
    return client % 2 == 1 or clients == 1


class _Consumer:
    """One process of the history: whether its consumer runs, and how far the group was seen."""

    def __init__(
        self,
        client: GroupClient,
        topic: str,
        keys: list[str],
        is_ordered: bool,
        reached: dict[str, int],
        returning: Returning,
    ) -> None:
        assert isinstance(client, HandlingClient), "looked at when it was opened"
        self._client = client
        self._handling: HandlingClient = client
        self._topic = topic
        self._keys = keys
        self._reached = reached
        self._is_ordered = is_ordered
        self._ordered = int(is_ordered)
        self._may_fail = is_ordered and isinstance(client, FailingClient)
        self._retries: Retries | None = None
        if not is_ordered and isinstance(client, RetryingClient):
            self._retries = Retries(client, topic, returning)
            self._keys += client.retry_keys()
        self._runs = False
        self._begin_aim: float | None = None
        self._is_done = False
        self._at_hand: Handed | None = None
        self._fails_at: float | None = None
        self._drain_until_s: float | None = None

    @property
    def node(self) -> str | None:
        """Who answered last."""
        return self._client.node

    async def aclose(self) -> None:
        """End the consumer, and close connections."""
        await self._client.aclose()

    # The operations of other workloads are the client's.

    async def append(self, key: str, value: int) -> int:
        """Append as the client does."""
        return await self._client.append(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        """Read as the client does."""
        return await self._client.read(key, offset)

    async def end(self, key: str) -> int:
        """Ask for the end as the client does."""
        return await self._client.end(key)

    def next_step(self, operation: Operation) -> Operation | None:
        """Begin to run, end, or handle what waits longest; None where nothing does."""
        if not self._runs:
            self._begin_aim = operation.aim
            return Operation("subscribe", self._topic, expected=self._ordered)
        if operation.f == "unsubscribe":
            assert operation.aim is not None, "a step that was not drawn"
            # A lock that nobody gives back keeps everybody from its queue for a minute.
            is_tidy = self._is_ordered or operation.aim < TIDY_SHARE
            return Operation("unsubscribe", self._topic, expected=int(is_tidy))
        aim = 1.0 if operation.aim is None else operation.aim
        return self._handle(aim)

    def next_of_drain(self) -> Operation | None:
        """Handle what comes until the group has committed all; None then, or when time is over."""
        now_s = trio.current_time()
        if self._drain_until_s is None:
            self._drain_until_s = now_s + PATIENCE_S
        look = None if self._retries is None else self._retries.next_look()
        self._is_done |= now_s > self._drain_until_s or not (self._keys or look)
        if self._is_done:
            # What is sent back to others may come yet: it must come to who still handles.
            is_late = self._retries is not None and self._runs
            return Operation("unsubscribe", self._topic, expected=1) if is_late else None
        if not self._runs:
            return Operation("subscribe", self._topic, expected=self._ordered)
        if (handle := self._handle(1.0)) is not None:
            return handle
        if self._keys:
            return Operation("fetch", self._keys[0], expected=self._ordered)
        return look

    def _handle(self, aim: float) -> Operation | None:
        """Choose what comes of the messages that wait longest; a small aim lets them fail."""
        self._at_hand = self._handling.handed()
        if self._at_hand is None:
            return None
        if self._retries is not None:
            return self._retries.choose(self._at_hand, aim)
        self._fails_at = aim / FAIL_SHARE if self._may_fail and aim < FAIL_SHARE else None
        return Operation("handle", self._at_hand.key, expected=self._ordered)

    async def do(self, operation: Operation) -> Answer:
        """Do an operation, and keep in mind what came of it."""
        match operation.f:
            case "send":
                assert operation.value is not None, "a send of nothing"
                offset = await self._client.send(operation.key, operation.value)
                self._reached[operation.key] = max(offset + 1, self._reached.get(operation.key, 0))
                return Answer(offset=offset)
            case "subscribe":
                if self._retries is not None:
                    self._retries.begin(self._begin_aim)
                await self._handling.start_handling(is_ordered=self._is_ordered)
                self._runs = True
                return Answer()
            case "unsubscribe":
                self._runs = False
                await self._handling.stop_handling(is_tidy=bool(operation.expected))
                return Answer()
            case "handle" | "retry" | "handle-failed" | "retry-failed":
                return await self._handled(operation)
            case "look":
                return await self._looked(operation.key)
        assert operation.f == "fetch", f"the queue has no operation {operation.f!r}"
        return await self._look(operation.key)

    async def _handled(self, operation: Operation) -> Answer:
        handed = self._at_hand
        assert handed is not None, "chosen because something waited"
        if self._retries is not None:
            return await self._retries.do(operation, handed)
        if self._fails_at is not None:
            return await self._failed(handed, int(self._fails_at * len(handed.messages)))
        if not await self._handling.handle(handed):
            raise DefiniteError("the consumer took it away before it was handled")
        return Answer(messages=handed.messages)

    async def _failed(self, handed: Handed, consumed: int) -> Answer:
        """Handle the first messages, and have the others come again."""
        assert isinstance(self._handling, FailingClient), "looked at when it was opened"
        if not await self._handling.fail(handed, consumed):
            raise DefiniteError("the consumer took it away before it was handled")
        if not consumed:
            raise DefiniteError("the handler failed")
        return Answer(messages=handed.messages[:consumed])

    async def _looked(self, key: str) -> Answer:
        """Look for what was sent back; where more has come the group has to go on."""
        assert self._retries is not None, "chosen by it"
        answer = await self._retries.look(key)
        if answer.messages and key in self._retries.keys and key not in self._keys:
            self._keys.append(key)
        return answer

    async def _look(self, key: str) -> Answer:
        """See how far the group is in the first queue that it is not known to have consumed."""
        await trio.sleep(LOOK_AFTER_S)
        committed, end = await self._handling.fetch_with_end(key)
        self._keys.remove(key)
        if (committed or 0) < end or self._is_short(key, end):
            self._keys.append(key)
        return Answer(output=committed, offset=end)

    def _is_short(self, key: str, end: int) -> bool:
        """Whether the queue ends before what was acknowledged, and may yet show that."""
        assert self._drain_until_s is not None, "asked in the end"
        asked_s = trio.current_time() - (self._drain_until_s - PATIENCE_S)
        return end < self._reached.get(key, 0) and asked_s < SHORT_S


# A message queue whose consumers are handed messages in order, each queue under its lock.
#
# Source: RocketMQ's ConsumeMessageOrderlyService.


class QueuePushOrdered(QueuePush):
    """Consumers that are handed messages, one at a time for each queue, in the queue's order."""

    name = "queue-push-ordered"
    is_ordered = True
    checkers = tuple(name for name in QueuePush.checkers if name != "retried-messages")
    """What a handler failed at comes again in its place, and is not sent back."""


PLUGINS = (
    QueuePush(),
    QueuePushOrdered(),
)
