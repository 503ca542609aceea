"""What an Apache broker wrote becomes a DLedger group of ours: messages, topics and offsets.

A master's commit log by the tutorials' upgrade procedure: compare the copies by md5, copy them with
config/ to every node, start in DLedger mode. A DLedger broker's log by an import on every node.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.client.connection import Connection, OutcomeUnknownError, RefusedError
from shaketable.system.client.producer import Producer
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.client.routes import MessageQueue
from shaketable.system.node.import_log import main as import_log
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.requests import CreateTopic
from tests.support.apache_servers import HOST, start_broker
from tests.support.foreign_java import java_in, needs_maven
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, contents, until
from tests.support.volume import whole

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]

MEMBERS = ("n0", "n1", "n2")
NAME = "RaftNode00"
FILE_BYTES = 16 << 20
COUNT = 40
READERS = "readers"
STORY_SECONDS_MAX = 90
Contents = dict[tuple[str, int], dict[int, bytes]]
Offsets = dict[tuple[str, int], int | None]


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[NameServers]:
    servers = NameServers(tmp_path, 1)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


@pytest.fixture
def group(tmp_path: Path, name_servers: NameServers) -> Iterator[NodeGroup]:
    nodes = NodeGroup(
        tmp_path,
        *MEMBERS,
        namesrvAddr=name_servers.addresses,
        brokerName=NAME,
        mappedFileSizeCommitLog=str(FILE_BYTES),
    )
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.mark.parametrize(
    "is_dledger", [pytest.param(False, marks=whole), True], ids=["master", "dledger"]
)
def test_its_messages_topics_and_offsets_are_there_on_every_member(
    tmp_path: Path, name_servers: NameServers, group: NodeGroup, is_dledger: bool
) -> None:
    servers = name_servers.addresses
    with java_in(tmp_path) as java:
        more = "messageDelayLevel=1s 2h\n"
        if is_dledger:
            (port,) = find_free(1)
            more += f"enableDLegerCommitLog=true\ndLegerGroup={NAME}\ndLegerSelfId=n0\n"
            more += f"dLegerPeers=n0-{HOST}:{port}\n"
        apache = start_broker(java, servers, name=NAME, more=more)
        before, committed = trio.run(fill, servers, apache.broker_address)
        assert apache.broker is not None
        apache.broker.end()
    old = tmp_path / f"store-{NAME}"
    group.settings["messageDelayLevel"] = "1s 2h"
    if is_dledger:
        imported_by_all(old, group)
    else:
        copied_to_all(old, group)

    async def story() -> None:
        for name in MEMBERS:
            start(group, name)
        leader = await group.leader()
        await assert_there(group, servers, before, committed)
        await send_more(servers, before)
        group.kill(leader)
        await group.leader()
        await send_more(servers, before)
        start(group, leader)
        await assert_there(group, servers, before, committed)

    group.tell(story)
    assert "event=config_to_take_over" in group.log("n0")


def start(group: NodeGroup, name: str) -> None:
    group.start(name, storePathCommitLog=str(group.store(name) / "commitlog"))


async def fill(servers: str, broker: str) -> tuple[Contents, Offsets]:
    """Have Apache's broker hold topics, messages, one that was delayed, and offsets."""
    with trio.fail_after(STORY_SECONDS_MAX):
        async with Producer(servers, timeout_s=10.0, rng=Random(1)) as producer:
            await until(lambda: producer.queues("TBW102"), "Apache's broker has registered")
            await make_topic(broker, "wide", 7)
            await until(lambda: producer.queues("wide"), "the topic is known")
            for number in range(COUNT):
                for topic in ("orders", "wide"):
                    await producer.send(topic, b"%d" % number, tags="x", keys=f"k{number}")
            await producer.send_batch("orders", [b"a", b"b", b"c"])
            await producer.send("late", b"makes the topic", order_key="x")
            await producer.send("late", b"delayed", properties={"DELAY": "1"}, order_key="x")
            await producer.send("late", b"in two hours", properties={"DELAY": "2"}, order_key="x")
        async with PullConsumer(servers, group=READERS, timeout_s=10.0) as consumer:

            async def is_delivered() -> bool:
                return b"delayed" in bodies_of(await everything(consumer, "late"))

            await until(is_delivered, "the delayed message is delivered")
            held: Contents = {}
            for topic in ("orders", "wide", "late"):
                held |= await everything(consumer, topic)
            committed: Offsets = {}
            for topic in ("orders", "wide"):
                for queue in await consumer.queues(topic):
                    place = (topic, queue.queue_id)
                    committed[place] = len(held[place]) // 2
                    await consumer.commit(queue, len(held[place]) // 2)
    return held, committed


async def make_topic(broker: str, topic: str, queues: int) -> None:
    connection = await Connection.open(HOST, int(broker.rpartition(":")[2]), 10.0)
    try:
        fields = CreateTopic(topic, read_queue_nums=queues, write_queue_nums=queues)
        request = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=fields.to_ext())
        assert (await connection.call(request, 10.0)).code == 0
    finally:
        connection.close()


async def everything(consumer: PullConsumer, topic: str) -> Contents:
    """Return the bodies of a topic's queues by offset."""
    found: Contents = {}
    for queue in await consumer.queues(topic):
        bodies = found.setdefault((topic, queue.queue_id), {})
        offset, end = 0, await consumer.max_offset(queue)
        while offset < end:
            pulled = await consumer.pull(queue, offset)
            bodies.update({m.queue_offset: m.body for m in pulled.messages})
            assert pulled.next_offset > offset
            offset = pulled.next_offset
    return found


def bodies_of(held: Contents) -> list[bytes]:
    return [body for bodies in held.values() for body in bodies.values()]


def copied_to_all(old: Path, group: NodeGroup) -> None:
    """Copy commit log and configuration to every node; compare the copies as the tutorials do."""
    sums = set()
    for name in MEMBERS:
        for folder in ("commitlog", "config"):
            shutil.copytree(old / folder, group.store(name) / folder)
        files = sorted((group.store(name) / "commitlog").iterdir())[-2:]
        sums.add(tuple(hashlib.md5(file.read_bytes()).hexdigest() for file in files))
    assert len(sums) == 1


def imported_by_all(old: Path, group: NodeGroup) -> None:
    """Import what DLedger wrote into every node's store, and copy its configuration."""
    for name in MEMBERS:
        shutil.copytree(old / "config", group.store(name) / "config")
        conf = str(group._write_conf(name, {}))
        assert import_log(["-c", conf, "--from", str(old / "dledger-n0")]) == 0


async def assert_there(group: NodeGroup, servers: str, held: Contents, committed: Offsets) -> None:
    client = group.client()
    for name in MEMBERS:
        await group.caught_up(name)
        for (topic, queue_id), bodies in held.items():
            assert await contents(client, topic, queue_id, member=name) == bodies, (name, topic)
    async with PullConsumer(servers, group=READERS, timeout_s=10.0) as consumer:

        async def queues_of(topic: str) -> tuple[MessageQueue, ...] | None:
            queues = await consumer.queues(topic)
            return queues if {queue.broker_name for queue in queues} == {NAME} else None

        assert len(await until(lambda: queues_of("wide"), "the group is registered")) == 7
        for topic in ("orders", "wide"):
            for queue in await consumer.queues(topic):

                async def offset(asked: MessageQueue = queue) -> tuple[int | None]:
                    return (await consumer.committed(asked),)

                (found,) = await until(offset, "the leader tells the offset")
                assert found == committed[topic, queue.queue_id]


async def send_more(servers: str, held: Contents) -> None:
    """Send behind what is there; each queue goes on at its next offset."""
    async with Producer(servers, timeout_s=10.0, rng=Random(2)) as producer:
        sent = 0
        while sent < COUNT:
            body = b"new %d %d" % (sum(map(len, held.values())), sent)
            try:
                receipt = await producer.send("orders", body)
            except RefusedError:
                await trio.sleep(0.1)
                continue
            except OutcomeUnknownError as error:
                raise AssertionError("nobody dies while this sends") from error
            bodies = held["orders", receipt.queue.queue_id]
            assert receipt.offset == len(bodies)
            bodies[receipt.offset] = body
            sent += 1
