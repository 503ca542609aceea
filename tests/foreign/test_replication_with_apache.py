"""Replication across the border: our slave of Apache's master, Apache's slave of ours."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.system.client.connection import Connection
from shaketable.system.client.producer import Producer
from tests.support.apache_servers import Apache, start_broker
from tests.support.foreign_java import Java, java_in, needs_maven
from tests.support.group_requests import create_topic
from tests.support.master_slave_nodes import MasterSlaveNodes
from tests.support.node_group import contents, until

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
MESSAGES = 200
QUEUES = 4
FILE_BYTES = 16 << 20
SECONDS_MAX = 120


@pytest.fixture
def nodes(tmp_path: Path, apache: Apache) -> Iterator[MasterSlaveNodes]:
    nodes = MasterSlaveNodes(
        tmp_path,
        "master",
        "slave",
        namesrvAddr=apache.name_server,
        mappedFileSizeCommitLog=str(FILE_BYTES),
        mappedFileSizeConsumeQueue="600000",
        slaveReadEnable="true",
    )
    yield nodes
    nodes.close()


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Java]:
    with java_in(tmp_path) as java:
        yield java


async def send_some(name_server: str, topic: str, broker: str, count: int) -> list[bytes]:
    """Send to one broker's queues until so many are acknowledged; return their bodies."""
    sent: list[bytes] = []
    with trio.fail_after(SECONDS_MAX):
        async with Producer(name_server, timeout_s=20.0, rng=Random(1)) as producer:
            while len(sent) < count:
                body = b"%s-%d" % (topic.encode(), len(sent))
                result = await producer.send(topic, body)
                assert result.queue.broker_name == broker
                if result.status == "SEND_OK":  # else there is no slave yet
                    sent.append(body)
    return sent


async def make_topic(broker: tuple[str, int], topic: str) -> None:
    """Have a topic at one broker alone."""
    connection = await Connection.open(*broker, 10.0)
    try:
        request = create_topic(topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        request.ext.setdefault("defaultTopic", "TBW102")
        assert (await connection.call(request, 10.0)).code == 0
    finally:
        connection.close()


async def held(nodes: MasterSlaveNodes, name: str, topic: str) -> list[bytes]:
    client = nodes.client(name)
    found: list[bytes] = []
    for queue_id in range(QUEUES):
        found += (await contents(client, topic, queue_id, member=name)).values()
    return sorted(found)


def log_of(folder: Path) -> bytes:
    """The log's first file, without the zeros behind its end; the next one may be allotted."""
    file = min(path for path in folder.iterdir() if path.name.isdigit())
    return file.read_bytes().rstrip(b"\0")


def test_ours_copies_apaches_master(nodes: MasterSlaveNodes, apache: Apache) -> None:
    """It finds the master by Apache's name server, and has its log byte for byte."""
    assert apache.broker is not None

    async def story() -> None:
        nodes.start("slave", brokerName="apache", brokerRole="SLAVE", brokerId="1")
        host, _, port = apache.broker_address.rpartition(":")
        await make_topic((host, int(port)), "CopiedByOurs")
        sent = await send_some(apache.name_server, "CopiedByOurs", "apache", MESSAGES)

        async def has_all() -> bool:
            return await held(nodes, "slave", "CopiedByOurs") == sorted(sent)

        await until(has_all, "our slave has all that Apache's master acknowledged")
        assert "event=not_synchronized" not in nodes.log("slave")

    nodes.tell(story)
    ours = log_of(nodes.store("slave") / "commitlog")
    assert log_of(apache.store / "commitlog").startswith(ours)


def test_apaches_slave_copies_ours(nodes: MasterSlaveNodes, apache: Apache, java: Java) -> None:
    """Our SYNC_MASTER acknowledges what Apache's slave reports; ours goes on with its files."""

    async def story() -> None:
        nodes.start("master", brokerName="ours", brokerRole="SYNC_MASTER")
        await nodes.metadata("master")
        await make_topic(nodes.client_address("master"), "CopiedByApache")
        as_slave = "brokerRole=SLAVE\nbrokerId=1\n"  # it asks name servers every 10 s
        slave = await trio.to_thread.run_sync(
            lambda: start_broker(java, apache.name_server, name="ours", more=as_slave)
        )
        sent = await send_some(apache.name_server, "CopiedByApache", "ours", MESSAGES)
        folder = slave.store / "commitlog"
        ours = log_of(nodes.store("master") / "commitlog")

        async def has_all() -> bool:
            return log_of(folder) == ours

        await until(has_all, "Apache's slave has our log byte for byte")
        nodes.kill("master")
        assert slave.broker is not None
        slave.broker.process.terminate()
        slave.broker.wait(SECONDS_MAX)
        shutil.copytree(slave.store, nodes.store("heir"))
        nodes.start("heir", brokerName="ours", brokerRole="ASYNC_MASTER")
        await nodes.metadata("heir")
        assert set(sent) <= set(await held(nodes, "heir", "CopiedByApache"))
        await nodes.client("heir").send("CopiedByApache", 0, b"one more")
        assert b"one more" in await held(nodes, "heir", "CopiedByApache")

    nodes.tell(story)
