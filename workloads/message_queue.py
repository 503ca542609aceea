"""A message queue: producers send, consumers of one group share the queues and commit offsets.

Consumers join and leave, so that queues move from one to another; each goes on where the group
committed. After the heal every queue is drained, so that loss is judged against everything.

Source: jepsen.tests.kafka (send, poll, assign, subscribe, commits in between, final polls).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

import trio

from harness.draw import draw
from harness.generators.keys import KeySpread
from harness.groups import GroupClient
from harness.plugins import Answer, Json, Operation, TargetClient, Workload

TOPIC: Final = "shaketable"
"""Also the key of what a consumer does about no queue: subscribe, rebalance, unsubscribe."""
QUEUES_DEFAULT: Final = 4

COMMIT_SHARE: Final = 0.2
FETCH_SHARE: Final = 0.05
LEAVE_SHARE: Final = 0.01
"""Of a consumer's steps; the others poll."""
LEAVE_TIDY_SHARE: Final = 0.5
"""Of the consumers that leave: they commit before, the others' messages come again."""


class QueueWorkload:
    """Producers and consumers of one consumer group, over several queues of one topic.

    Queues are "shaketable/0" to "shaketable/n-1". Clients with even numbers produce, the values
    of client c of n are c, n + c, 2n + c, ...; the others consume (one client does both).
    Operations: send; subscribe, rebalance, unsubscribe (of the group); fetch and commit (of the
    group's offset), assign (begin there), poll, seek (after a poll outside the queue).
    """

    name = "queue"
    checkers: tuple[str, ...] = (
        "group-delivery",
        "consumer-offsets",
        "durability",
        "committed-prefix",
        "vacuity",
        "stats",
    )

    def __init__(self, queues: int = QUEUES_DEFAULT, spread: KeySpread | None = None) -> None:
        self.spread = spread or KeySpread(queues)
        self.queues = self.spread.keys

    def configured(self, options: Json) -> Workload:
        """Return this workload on options["queues"] queues; producers choose as the options say."""
        return QueueWorkload(spread=KeySpread.of_options(self.name, options, self.queues))

    def operations(self, seed: str, client: int, clients: int) -> Iterator[Operation]:
        """Draw sends of a producer, or steps of a consumer, without end."""
        rng, keys = draw(seed, "client", client), self.spread.of_client(client, clients)
        value = client
        while True:
            if client % 2 == 0 and (clients > 1 or rng.random() < 0.5):
                yield Operation("send", self._key(keys.choose(rng)), value=value)
                value += clients
                continue
            kind, aim = rng.random(), rng.random()
            if kind < COMMIT_SHARE:
                yield Operation("commit", TOPIC, aim=aim)
            elif kind < COMMIT_SHARE + FETCH_SHARE:
                yield Operation("fetch", TOPIC, aim=aim)
            elif kind < COMMIT_SHARE + FETCH_SHARE + LEAVE_SHARE:
                yield Operation("unsubscribe", TOPIC, aim=aim)
            else:
                yield Operation("poll", TOPIC, aim=aim)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Drain each of the client's queues: go on where the group stands, to the end."""
        for queue in range(client, self.queues, clients):
            yield Operation("drain", self._key(queue))

    def opened(self, client: GroupClient) -> TargetClient:
        """Return the client with a consumer's memory: what it owns, and where it stands."""
        client.use(TOPIC, self.queues)
        return Consumer(client)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Say what comes next for this client, a send or the next step of its consumer."""
        assert isinstance(client, Consumer), "opened by this workload"
        if operation.f == "send":
            return operation
        if operation.f == "drain":
            return client.next_of_drain(operation.key)
        assert operation.aim is not None, "a step that was not drawn"
        return client.next_step(operation.f, operation.aim)

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Do it. A poll answers with messages, an assign with its offset, a fetch with it."""
        assert isinstance(client, Consumer), "opened by this workload"
        if operation.f == "send":
            assert operation.value is not None, "a send of nothing"
            return Answer(offset=await client.client.send(operation.key, operation.value))
        return await client.step(operation)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """The offset that the consumer's memory gave it."""
        return operation.offset

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Nothing: no operation looks for a queue's end as this worker knows it."""
        return 0

    def _key(self, queue: int) -> str:
        return f"{TOPIC}/{queue}"


class Consumer:
    """One process's consumer: which queues are its own, where it stands in each.

    After an operation of unknown outcome the process is another, and so is this.
    """

    def __init__(self, client: GroupClient) -> None:
        self.client = client
        self._is_in_group = False
        self._owned: tuple[str, ...] = ()
        self._fetched: dict[str, int | None] = {}  # asked for, not begun there yet
        self._position: dict[str, int] = {}
        self._committed: dict[str, int] = {}  # what it knows to be committed
        self._due: deque[Operation] = deque()
        self._turn = 0
        self._drained: str | None = None  # the queue being drained
        self._is_at_end = False

    @property
    def node(self) -> str | None:
        """Who answered last."""
        return self.client.node

    async def aclose(self) -> None:
        """Close connections."""
        await self.client.aclose()

    # The operations of other workloads are the client's.

    async def append(self, key: str, value: int) -> int:
        """Append as the client does."""
        return await self.client.append(key, value)

    async def read(self, key: str, offset: int) -> int | None:
        """Read as the client does."""
        return await self.client.read(key, offset)

    async def end(self, key: str) -> int:
        """Ask for the end as the client does."""
        return await self.client.end(key)

    # ---- what comes next ---------------------------------------------------------------

    def next_step(self, f: str, aim: float) -> Operation | None:
        """Return the next operation; None where there is nothing for it to do."""
        if not self._is_in_group:
            return Operation("subscribe", TOPIC)
        if self._due:
            return self._due.popleft()
        if self.client.is_unbalanced():
            return Operation("rebalance", TOPIC)
        if f == "unsubscribe":
            if aim < LEAVE_TIDY_SHARE:
                self._due.extend(map(self._commit, filter(self._has_news, self._owned)))
            self._due.append(Operation("unsubscribe", TOPIC))
            return self._due.popleft()
        return self._next_of_queue(f, aim) if self._owned else None

    def _next_of_queue(self, f: str, aim: float) -> Operation:
        for key in self._owned:
            if key not in self._position:
                return self._start(key)
        if f == "fetch":
            return Operation("fetch", self._owned[int(aim * len(self._owned))])
        news = [key for key in self._owned if self._has_news(key)]
        if f == "commit" and news:
            return self._commit(news[int(aim * len(news))])
        self._turn += 1
        return self._poll(self._owned[self._turn % len(self._owned)])

    def next_of_drain(self, key: str) -> Operation | None:
        """Return what is next to drain a queue as the group; None when nothing is left of it."""
        if self._drained != key:
            self._drained, self._is_at_end = key, False
            self._due.clear()
            self._position.pop(key, None)
            self._fetched.pop(key, None)
        if self._due:
            return self._due.popleft()
        if key not in self._position:
            return self._start(key)
        if not self._is_at_end:
            return self._poll(key)
        return self._commit(key) if self._has_news(key) else None

    def _start(self, key: str) -> Operation:
        if key not in self._fetched:
            return Operation("fetch", key)
        return Operation("assign", key, offset=self._fetched[key])

    def _poll(self, key: str) -> Operation:
        return Operation("poll", key, offset=self._position[key])

    def _commit(self, key: str) -> Operation:
        return Operation("commit", key, value=self._position[key])

    def _has_news(self, key: str) -> bool:
        return key in self._position and self._position[key] != self._committed.get(key)

    # ---- doing it ----------------------------------------------------------------------

    async def step(self, operation: Operation) -> Answer:
        """Do a consumer's operation, and keep in mind what came of it."""
        key, f = operation.key, operation.f
        match f:
            case "subscribe":
                brokers = await self.client.subscribe()
                self._is_in_group = True
                return Answer(output=brokers)
            case "unsubscribe":
                await self.client.unsubscribe()
                self._is_in_group = False
                self._let_go(())
                return Answer()
            case "rebalance":
                self._let_go(await self.client.rebalance())
                return Answer(output=len(self._owned))
            case "fetch":
                fetched = await self.client.fetch(key)
                if key not in self._position:
                    self._fetched[key] = fetched
                return Answer(output=fetched)
            case "assign" | "seek":
                return await self._begin(operation)
            case "commit":
                assert operation.value is not None, "a commit of nothing"
                await self.client.commit(key, operation.value)
                self._committed[key] = operation.value
                return Answer()
        assert f == "poll", f"the queue has no operation {f!r}"
        return await self._take(key)

    async def _begin(self, operation: Operation) -> Answer:
        await trio.lowlevel.checkpoint()
        key, offset = operation.key, operation.offset
        if offset is None:
            offset = await self.client.begin(key)
        self._fetched.pop(key, None)
        self._position[key] = offset
        self._committed[key] = offset
        return Answer(offset=offset)

    async def _take(self, key: str) -> Answer:
        """Poll; a consumer outside the queue (it lost its end) is to go back into it."""
        polled = await self.client.poll(key, self._position[key])
        self._is_at_end = not polled.messages and not polled.is_outside
        if polled.is_outside:
            self._due.append(Operation("seek", key, offset=polled.next_offset))
        else:
            self._position[key] = polled.next_offset
        return Answer(messages=polled.messages)

    def _let_go(self, owned: tuple[str, ...]) -> None:
        """Own these queues and no others; what was consumed of the others is committed first."""
        if self._is_in_group:
            gone = [key for key in self._owned if key not in owned and self._has_news(key)]
            self._due.extend(map(self._commit, gone))
        for key in self._owned:
            if key not in owned:
                self._position.pop(key, None)
                self._fetched.pop(key, None)
        self._owned = owned


PLUGIN = QueueWorkload()
