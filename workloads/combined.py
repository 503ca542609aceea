"""Several workloads at once, each with a share of the clients and a topic of its own.

A run of one workload cannot find what only another workload's clients would see. This one tests a
group with all kinds of clients, for campaigns that name no workload.

Source: jepsen.generator/reserve (some threads to each generator), jepsen.checker/compose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

from shaketable.harness.contracts.clients import (
    GroupClient,
    GroupWorkload,
    OpeningWorkload,
    WrappedClient,
    finals_s_of,
    hold_of,
)
from shaketable.harness.contracts.plugins import Answer, Json, Operation, TargetClient, Workload
from shaketable.harness.generators import GeneratedWorkload, Generator, alone, side_by_side
from shaketable.harness.generators.clients import final_generator_of, generator_of
from shaketable.workloads.log import LogWorkload
from shaketable.workloads.message_queue import EverythingClients
from shaketable.workloads.queue_push import QueuePush, QueuePushOrdered
from shaketable.workloads.register import RegisterWorkload
from shaketable.workloads.work_queue import OrderKeys

GENERAL_CHECKERS: Final = ("durability", "committed-prefix", "vacuity", "stats")
"""Checkers that judge the topics of all parts."""


@dataclass(frozen=True, slots=True)
class Part:
    """One of the workloads; it gets `share` of the sum of all shares of the clients."""

    topic: str
    workload: Workload
    share: int


class Combined(GeneratedWorkload):
    """The parts' clients run at once; the checkers of each part judge its topic alone."""

    def __init__(self, name: str, parts: Sequence[Part], clients: int = 0) -> None:
        self.name = name
        self._parts = tuple(parts)
        self._clients = clients
        self._by_topic = {part.topic: part.workload for part in parts}
        # Computed once: isinstance() with a protocol at each operation took 7 % of a simulated run.
        self._group_parts = {
            topic: part for topic, part in self._by_topic.items() if isinstance(part, GroupWorkload)
        }

    @property
    def checkers(self) -> tuple[str, ...]:
        """The checkers of each part, and the general ones once."""
        return (*self.topics, *GENERAL_CHECKERS)

    @property
    def topics(self) -> Mapping[str, frozenset[str]]:
        """The topics of each checker that does not judge all of them."""
        found: dict[str, frozenset[str]] = {}
        for part in self._parts:
            for checker in part.workload.checkers:
                if checker not in GENERAL_CHECKERS:
                    found[checker] = found.get(checker, frozenset()) | {part.topic}
        return found

    def configured(self, options: Json) -> Self:
        """Return this workload with each part on its own topic, with the same options."""
        clients = int(options.get("clients", 0))
        parts = [
            Part(
                part.topic,
                part.workload.configured({**options, "clients": len(mine), "topic": part.topic}),
                part.share,
            )
            for part, mine in self._assigned(clients)
        ]
        return type(self)(self.name, parts, clients)

    def why_not(self, client: type) -> str | None:
        """Return what clients of that type lack for one of the parts; None if nothing."""
        openers = (p.workload for p in self._parts if isinstance(p.workload, OpeningWorkload))
        return next((why for each in openers if (why := each.why_not(client))), None)

    def generator(self, seed: str, clients: int) -> Generator:
        """Return the parts' generators, each on its share of the clients."""
        return side_by_side(
            (mine, generator_of(part.workload, f"{seed}/{part.topic}", len(mine)))
            for part, mine in self._assigned(clients)
            if mine
        )

    def final_generator(self, seed: str, clients: int, keys: Sequence[str]) -> Generator:
        """Return the parts' final generators, each on its share of the clients."""
        parts = []
        for part, mine in self._assigned(clients):
            of_part = [key for key in keys if topic_of(key) == part.topic]
            work = final_generator_of(part.workload, f"{seed}/{part.topic}", len(mine), of_part)
            parts.append((mine, work))
        return side_by_side((mine, work) for mine, work in parts if mine)

    def final_operations(self, client: int, clients: int) -> Iterator[Operation]:
        """Generate the final operations of a single client."""
        return alone(self.final_generator("", clients, ()), client)

    def opened(self, client: GroupClient) -> TargetClient:
        """Return a client that is wrapped by the part whose operations it gets first."""
        return _PartClient(client, self._by_topic)

    def choose(self, operation: Operation, client: TargetClient) -> Operation | None:
        """Choose as the part does; a final operation of most parts is done once."""
        assert isinstance(client, _PartClient), "opened by this workload"
        part = self._group_parts.get(topic_of(operation.key))
        if part is not None:
            return part.choose(operation, client.of(operation))
        return None if operation is client.done else operation

    async def invoke(
        self, operation: Operation, offset: int | None, client: TargetClient
    ) -> Answer:
        """Run the operation as its part does."""
        assert isinstance(client, _PartClient), "opened by this workload"
        part = self._by_topic[topic_of(operation.key)]
        answer = await part.invoke(operation, offset, client.of(operation))
        client.done = operation
        return answer

    @property
    def hold_s(self) -> float:
        """The longest intended wait of any part's operation, in seconds."""
        return max(hold_of(part.workload) for part in self._parts)

    @property
    def finals_s(self) -> float:
        """The longest time that any part's final operations may take, in seconds."""
        return max(finals_s_of(part.workload) for part in self._parts)

    def choose_offset(self, operation: Operation, end_seen: int) -> int | None:
        """Choose as the part does."""
        return self._by_topic[topic_of(operation.key)].choose_offset(operation, end_seen)

    def end_shown(self, operation: Operation, output: int | None, offset: int | None) -> int:
        """Answer as the part does."""
        return self._by_topic[topic_of(operation.key)].end_shown(operation, output, offset)

    def _assigned(self, clients: int) -> list[tuple[Part, range]]:
        """Return each part's clients: consecutive ranges in proportion to the shares."""
        whole = sum(part.share for part in self._parts)
        ends = [
            (clients * up_to + whole // 2) // whole
            for up_to in accumulate(part.share for part in self._parts)
        ]
        begins = [0, *ends[:-1]]
        return [
            (part, range(begin, end))
            for part, begin, end in zip(self._parts, begins, ends, strict=True)
        ]


def topic_of(key: str) -> str:
    """Return the topic of a key "topic/queue", or of a key that is a topic."""
    return key.partition("/")[0]


class _PartClient(WrappedClient):
    """One process of the history: a client wrapped by the part whose operations it runs."""

    def __init__(self, client: GroupClient, workloads: Mapping[str, Workload]) -> None:
        super().__init__(client)
        self.done: Operation | None = None
        self._raw = client
        self._workloads = workloads
        self._topic: str | None = None

    def of(self, operation: Operation) -> TargetClient:
        """Return the client as that operation's part wraps it; a client belongs to one part."""
        topic = topic_of(operation.key)
        if self._topic is None:
            part = self._workloads[topic]
            self._topic = topic
            if isinstance(part, GroupWorkload | OpeningWorkload):
                self._client = part.opened(self._raw)
        assert self._topic == topic, "a client does what one part generates"
        return self._client


class EveryClient(Combined):
    """A log, registers, a message queue, push and ordered consumers, each on its own topic."""


class CombinedQueues(Combined):
    """A message queue, push and ordered consumers, and order keys, each on its own topic."""


PLUGINS = (
    EveryClient(
        "combined",
        (
            Part("log", LogWorkload(), 5),
            Part("register", RegisterWorkload(), 2),
            # With 27 clients: five consumers, two of them ordered, so that they contend for locks.
            Part("queue", EverythingClients(), 10),
            Part("push", QueuePush(), 6),
            Part("ordered", QueuePushOrdered(), 4),
        ),
    ),
    # For brokers whose logs cannot serve as registers.
    CombinedQueues(
        "combined-queues",
        (
            Part("queue", EverythingClients(), 10),
            Part("push", QueuePush(), 6),
            Part("ordered", QueuePushOrdered(), 4),
            Part("order-keys", OrderKeys(), 4),
        ),
    ),
)
