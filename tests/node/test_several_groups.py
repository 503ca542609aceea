"""Two groups share a topic's queues, three name servers say where: what one loses, others keep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.system.client import (
    GroupConsumer,
    Intervals,
    MessageQueue,
    OutcomeUnknownError,
    Producer,
    RefusedError,
    brokers,
)
from shaketable.system.store.message import Message
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup

pytestmark = pytest.mark.e2e

MEMBERS = ("n0", "n1", "n2")
SECONDS_MAX = 60
OFTEN = Intervals(heartbeat_s=1.0, rebalance_s=1.0, commit_s=0.5, wait_s=1.0)


class Site:
    """Three name servers, and two groups that register with all of them."""

    def __init__(self, folder: Path) -> None:
        self.name_servers = NameServers(folder, 3)
        self.groups = {}
        for name in ("broker-a", "broker-b"):
            place = folder / name
            place.mkdir()
            self.groups[name] = NodeGroup(
                place, *MEMBERS, namesrvAddr=self.name_servers.addresses, brokerName=name
            )

    def start(self) -> None:
        self.name_servers.start()
        for group in self.groups.values():
            group.start(*MEMBERS)

    def close(self) -> None:
        for group in self.groups.values():
            group.close()
        self.name_servers.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


class Sender:
    """Sends to one queue, one message after the other, and notes what became of each."""

    def __init__(self, producer: Producer, queue: MessageQueue) -> None:
        self.queue = queue
        self.sent: list[bytes] = []
        self.unknown: list[bytes] = []
        self.refused = 0
        self._producer = producer

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            body = b"%s %d" % (self.queue.broker_name.encode(), number)
            try:
                await self._producer.send(self.queue.topic, body, queue=self.queue)
            except RefusedError:
                self.refused += 1
            except OutcomeUnknownError:
                self.unknown.append(body)
            else:
                self.sent.append(body)

    async def sends_on(self, count: int = 20) -> None:
        wanted = len(self.sent) + count
        await until(lambda: len(self.sent) >= wanted, f"{self.queue.broker_name} takes messages")


async def until(holds, what: str) -> None:
    with trio.move_on_after(SECONDS_MAX):
        while not holds():
            await trio.sleep(0.05)
    assert holds(), what


async def queues_of(producer: Producer, topic: str) -> dict[str, MessageQueue]:
    """Make the topic on both groups; return a queue of each."""
    found: dict[str, MessageQueue] = {}
    with trio.fail_after(SECONDS_MAX):
        while set(found) != {"broker-a", "broker-b"}:
            at = (await producer.send(topic, b"first")).queue
            found[at.broker_name] = at
    return found


async def both_lead(addresses: str) -> None:
    """Wait until each group has a leader that has registered."""
    with trio.fail_after(SECONDS_MAX):
        while True:
            try:
                known = await brokers(addresses)
            except RefusedError:
                known = {}
            if sum(0 in ids for ids in known.values()) == 2:
                return
            await trio.sleep(0.1)


def test_one_groups_dead_leader_and_two_dead_name_servers_stop_nobody_else(site: Site) -> None:
    got: list[bytes] = []

    async def take(_queue: MessageQueue, messages: Sequence[Message]) -> None:
        got.extend(message.body for message in messages)

    async def main() -> None:
        site.start()
        addresses = site.name_servers.addresses
        consumer = GroupConsumer(
            addresses,
            group="g",
            client_id="c",
            subscriptions={"Shared": "*"},
            handler=take,
            intervals=OFTEN,
        )
        async with (
            Producer(addresses, timeout_s=10.0, rng=Random(1)) as producer,
            trio.open_nursery() as nursery,
        ):
            await both_lead(addresses)
            queues = await queues_of(producer, "Shared")
            nursery.start_soon(consumer.run)
            a, b = (Sender(producer, queues[name]) for name in ("broker-a", "broker-b"))
            nursery.start_soon(a.run)
            nursery.start_soon(b.run)
            await a.sends_on()
            await b.sends_on()
            for port in site.name_servers.ports[:2]:
                site.name_servers.kill(port)
            await a.sends_on()
            await b.sends_on()
            leader = await site.groups["broker-a"].leader()
            site.groups["broker-a"].kill(leader)
            await b.sends_on()
            await a.sends_on()  # behind its new leader
            await b.sends_on()
            assert (b.refused, b.unknown) == (0, []), "the other group was not touched"
            sent = {*a.sent, *b.sent}
            await until(lambda: sent <= set(got), "all came")
            assert set(got) <= sent | {*a.unknown, *b.unknown, *a.sent, *b.sent, b"first"}
            nursery.cancel_scope.cancel()
        for client in site.groups["broker-a"].clients:
            client.close()

    trio.run(main)
    for group in site.groups.values():
        group.stop(*(name for name in MEMBERS if group.processes[name].poll() is None))
