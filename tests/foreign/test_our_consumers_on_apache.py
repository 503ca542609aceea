"""Our consumer groups against the real name server and broker of Apache RocketMQ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio

from shaketable.system.client.connection import RefusedError
from shaketable.system.client.group_consumer import ConsumeError, GroupConsumer, Intervals
from shaketable.system.client.producer import Producer
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.client.routes import MessageQueue
from shaketable.system.store.message import Message
from tests.support.apache_servers import Apache
from tests.support.foreign_java import needs_maven

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
OFTEN = Intervals(heartbeat_s=2.0, rebalance_s=2.0, commit_s=0.5, lock_s=2.0, wait_s=2.0)
SECONDS_MAX = 60


class Inbox:
    """What one consumer got, by queue, and when it was which queue's."""

    def __init__(self) -> None:
        self.got: list[tuple[MessageQueue, int, bytes]] = []
        self.assigned: tuple[MessageQueue, ...] = ()
        self.failing: set[bytes] = set()

    async def take(self, queue: MessageQueue, messages: Sequence[Message]) -> None:
        for n, message in enumerate(messages):
            if message.body in self.failing and not message.reconsume_times:
                self.failing.discard(message.body)
                raise ConsumeError(n)
            self.got.append((queue, message.queue_offset, message.body))

    def now_has(self, queues: tuple[MessageQueue, ...]) -> None:
        self.assigned = tuple(queue for queue in queues if not queue.topic.startswith("%RETRY%"))

    @property
    def bodies(self) -> set[bytes]:
        return {body for _, _, body in self.got}


@asynccontextmanager
async def consuming(apache: Apache, topic: str, group: str, name: str, **more: object):
    inbox = Inbox()
    consumer = GroupConsumer(
        apache.name_server,
        group=group,
        client_id=name,
        subscriptions={topic: more.pop("subscription", "*")},
        handler=inbox.take,
        on_assigned=inbox.now_has,
        intervals=OFTEN,
        **more,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(consumer.run)
        try:
            yield inbox
        finally:
            nursery.cancel_scope.cancel()


async def until(holds, what: str) -> None:
    with trio.move_on_after(SECONDS_MAX):
        while not holds():
            await trio.sleep(0.05)
    assert holds(), what


async def send_all(producer: Producer, topic: str, bodies: Sequence[bytes], tags: str = "") -> None:
    with trio.fail_after(SECONDS_MAX):  # the broker may not have registered yet
        for body in bodies:
            while True:
                try:
                    await producer.send(topic, body, tags=tags)
                except RefusedError:
                    await trio.sleep(0.2)
                else:
                    break


def test_queues_are_divided_and_change_hands_without_a_loss(apache: Apache) -> None:
    first, second = [b"%d" % n for n in range(100)], [b"%d" % n for n in range(100, 200)]

    async def main() -> None:
        async with Producer(apache.name_server, timeout_s=10.0, rng=Random(1)) as producer:
            await send_all(producer, "Shared", first)
            async with consuming(apache, "Shared", "pair", "a") as a:
                await until(lambda: len(a.assigned) == 4, "one consumer has all queues")
                async with consuming(apache, "Shared", "pair", "b") as b:
                    await until(lambda: len(a.assigned) == len(b.assigned) == 2, "two divide them")
                    assert not set(a.assigned) & set(b.assigned)
                    await send_all(producer, "Shared", second)
                    await until(lambda: a.bodies | b.bodies == set(first + second), "all came")
                    assert b.got
                await until(lambda: len(a.assigned) == 4, "the other's queues come back")
                await send_all(producer, "Shared", [b"last"])
                await until(lambda: b"last" in a.bodies, "the last one came")
        for inbox in (a, b):  # each queue in its order
            for queue in {queue for queue, _, _ in inbox.got}:
                offsets = [offset for each, offset, _ in inbox.got if each == queue]
                assert offsets == sorted(offsets)
        async with PullConsumer(apache.name_server, group="pair") as looking:
            queues = await looking.queues("Shared")
            committed = [await looking.committed(queue) for queue in queues]
            assert committed == [await looking.max_offset(queue) for queue in queues]

    trio.run(main)


def test_what_was_not_consumed_comes_again(apache: Apache) -> None:
    async def main() -> None:
        async with (
            Producer(apache.name_server, timeout_s=10.0, rng=Random(1)) as producer,
            consuming(apache, "Failing", "again", "a") as inbox,
        ):
            inbox.failing = {b"3"}
            await send_all(producer, "Failing", [b"%d" % n for n in range(10)])
            await until(lambda: len(inbox.bodies) == 10, "all came, one at the second try")
            (again,) = [queue for queue, _, body in inbox.got if body == b"3"]
            assert again.topic == "Failing"

    trio.run(main)


def test_an_ordered_queue_waits_for_what_was_not_consumed(apache: Apache) -> None:
    async def main() -> None:
        async with Producer(apache.name_server, timeout_s=10.0, rng=Random(1)) as producer:
            await send_all(producer, "InOrder", [b"makes the topic"])
            for n in range(10):
                await producer.send("InOrder", b"%d" % n, order_key="x")
            async with consuming(apache, "InOrder", "ordered", "a", is_ordered=True) as inbox:
                inbox.failing = {b"3"}
                await until(lambda: len(inbox.bodies) == 11, "all came")
                bodies = [body for _, _, body in inbox.got if body.isdigit()]
                assert bodies == [b"%d" % n for n in range(10)]

    trio.run(main)


def test_a_consumer_gets_what_it_subscribed_to(apache: Apache) -> None:
    async def main() -> None:
        async with Producer(apache.name_server, timeout_s=10.0, rng=Random(1)) as producer:
            await send_all(producer, "Tagged", [b"1", b"3"], tags="odd")
            await send_all(producer, "Tagged", [b"2", b"4"], tags="even")
            async with consuming(apache, "Tagged", "evens", "a", subscription="even") as inbox:
                await until(lambda: len(inbox.bodies) == 2, "the two came")
                assert inbox.bodies == {b"2", b"4"}

    trio.run(main)
