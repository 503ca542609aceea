"""Our client against the real name server and broker of Apache RocketMQ."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from shaketable.system.client.connection import RefusedError
from shaketable.system.client.producer import Producer
from shaketable.system.client.pull_consumer import PullConsumer
from tests.support.apache_servers import Apache
from tests.support.foreign_java import needs_maven

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
READY_SECONDS_MAX = 60


def run(story: Callable[[Producer, PullConsumer], Awaitable[None]], apache: Apache) -> None:
    async def main() -> None:
        async with (
            Producer(apache.name_server, timeout_s=10.0, rng=Random(1)) as producer,
            PullConsumer(apache.name_server, group="ours", timeout_s=10.0) as consumer,
        ):
            with trio.fail_after(READY_SECONDS_MAX):  # until the broker has registered
                while not await is_there(producer):
                    await trio.sleep(0.2)
            await story(producer, consumer)

    trio.run(main)


async def is_there(producer: Producer) -> bool:
    try:
        return bool(await producer.queues("TBW102"))
    except RefusedError:
        return False


async def everything(consumer: PullConsumer, topic: str) -> dict[int, list[bytes]]:
    """Read all queues of a topic from the begin to the end."""
    found: dict[int, list[bytes]] = {}
    for queue in await consumer.queues(topic):
        bodies, offset = found.setdefault(queue.queue_id, []), 0
        end = await consumer.max_offset(queue)
        while offset < end:
            pulled = await consumer.pull(queue, offset)
            assert pulled.status == "FOUND"
            assert [m.queue_offset for m in pulled.messages] == list(
                range(offset, pulled.next_offset)
            )
            bodies += [message.body for message in pulled.messages]
            offset = pulled.next_offset
    return found


def test_what_is_sent_is_read_exactly(apache: Apache) -> None:
    async def story(producer: Producer, consumer: PullConsumer) -> None:
        sent: dict[int, list[bytes]] = {}
        for n in range(200):
            receipt = await producer.send("Plain", b"%d" % n, tags="a", keys=("k1", f"k{n}"))
            assert receipt.status == "SEND_OK"
            assert receipt.offset == len(sent.setdefault(receipt.queue.queue_id, []))
            sent[receipt.queue.queue_id].append(b"%d" % n)
        assert len(sent) == 4  # each message went to the next queue
        assert await everything(consumer, "Plain") == sent

    run(story, apache)


def test_batches_and_keys_keep_their_order(apache: Apache) -> None:
    async def story(producer: Producer, consumer: PullConsumer) -> None:
        await producer.send("Ordered", b"makes the topic")
        first = await producer.send_batch("Ordered", [b"a", b"b", b"c"], order_key="x")
        assert len(first.message_ids) == 3
        second = await producer.send("Ordered", b"d", order_key="x")
        assert second.queue == first.queue
        assert second.offset == first.offset + 3
        held = (await everything(consumer, "Ordered"))[first.queue.queue_id]
        assert held[first.offset :] == [b"a", b"b", b"c", b"d"]

    run(story, apache)


def test_a_group_goes_on_where_it_committed(apache: Apache) -> None:
    async def story(producer: Producer, consumer: PullConsumer) -> None:
        receipt = await producer.send("Offsets", b"1", order_key="x")
        await producer.send("Offsets", b"2", queue=receipt.queue)
        queue = receipt.queue
        assert (await consumer.pull(queue, 0)).next_offset == 2  # the broker knows the group now
        assert await consumer.min_offset(queue) == 0
        assert await consumer.max_offset(queue) == 2
        assert await consumer.committed(queue) is None
        await consumer.commit(queue, 1)
        assert await consumer.committed(queue) == 1

    run(story, apache)


def test_tags_are_filtered_and_waiting_ends_with_the_message(apache: Apache) -> None:
    async def story(producer: Producer, consumer: PullConsumer) -> None:
        receipt = await producer.send("Tags", b"odd", tags="odd", order_key="x")
        await producer.send("Tags", b"even", tags="even", queue=receipt.queue)
        pulled = await consumer.pull(receipt.queue, 0, subscription="even || other")
        assert [message.body for message in pulled.messages] == [b"even"]
        assert pulled.next_offset == 2

        async def send_later() -> None:
            await trio.sleep(0.5)
            await producer.send("Tags", b"late", queue=receipt.queue)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_later)
            with trio.fail_after(10):
                pulled = await consumer.pull(receipt.queue, 2, wait_s=15.0)
        assert [message.body for message in pulled.messages] == [b"late"]
        assert (await consumer.pull(receipt.queue, 99)).status == "OFFSET_ILLEGAL"

    run(story, apache)


def test_a_topic_that_nobody_has_is_refused(apache: Apache) -> None:
    async def story(producer: Producer, consumer: PullConsumer) -> None:
        with pytest.raises(RefusedError, match="No topic route info"):
            await consumer.queues("Nowhere")
        with pytest.raises(RefusedError, match="control character"):
            await producer.send("Plain", b"", properties={"a": "b\x01"})

    run(story, apache)
