"""Registration across the border: our group at Apache's name server, Apache's broker at ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from shaketable.system.client.producer import Producer
from tests.support.apache_admin import Admin
from tests.support.apache_servers import Apache, start_broker, start_name_server
from tests.support.foreign_java import NEW, Java, java_in, needs_maven, programs
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
TOOL_SECONDS_MAX = 60
STORY_SECONDS_MAX = 120
MESSAGES = 200
NAMES = ("n0", "n1", "n2")


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Java]:
    with java_in(tmp_path) as java:
        yield java


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[NameServers]:
    servers = NameServers(tmp_path, 1)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


def group_at(folder: Path, addresses: str) -> NodeGroup:
    return NodeGroup(folder, *NAMES, namesrvAddr=addresses, brokerName="ours")


async def routes_agree(
    name_servers: NameServers, apaches: int, leader: str, group: NodeGroup, *gone: str
) -> None:
    """Wait until both name servers show the same: this leader, and the others but `gone`."""
    address = "{}:{}".format(*group.client_address(leader))
    (ours,) = name_servers.ports

    async def look() -> bool:
        mine, theirs = [await name_servers.route(port, "t") for port in (ours, apaches)]
        if mine is None or mine != theirs:
            return False
        (brokers,) = mine.broker_datas
        return brokers.broker_addrs.get(0) == address and len(brokers.broker_addrs) == 3 - len(gone)

    await until(look, f"both name servers show {leader} as master")


def test_apaches_name_server_shows_the_same_as_ours(
    tmp_path: Path, apache: Apache, name_servers: NameServers
) -> None:
    port = int(apache.name_server.rpartition(":")[2])
    group = group_at(tmp_path, f"{apache.name_server};{name_servers.addresses}")

    async def story() -> None:
        group.start(*NAMES)
        writer = Writer(group.client())
        await writer.send_some("t", 5)
        first = await group.leader()
        await routes_agree(name_servers, port, first, group)
        group.kill(first)
        await writer.send_some("t", 5)
        await routes_agree(name_servers, port, await group.leader(), group, first)
        group.start(first)
        await routes_agree(name_servers, port, await group.leader(), group)
        second = await group.leader()
        stopped = next(name for name in NAMES if name != second)
        group.stop(stopped)
        await routes_agree(name_servers, port, second, group, stopped)

    try:
        group.tell(story)
    finally:
        group.close()


def test_apaches_client_finds_our_group_at_apaches_name_server(tmp_path: Path, java: Java) -> None:
    """And its tool shows a message by the id that it was given."""
    apache = start_name_server(java)
    group = group_at(tmp_path, apache)

    async def settled() -> None:
        group.start(*NAMES)
        await group.leader()

    try:
        group.tell(settled)
        limits = [str(MESSAGES), str(TOOL_SECONDS_MAX)]
        producer = java.start(
            programs(NEW), "shaketable.Producer", apache, "Found", "P", "0", *limits
        )
        assert producer.wait(2 * TOOL_SECONDS_MAX) == 0, producer.lines[-5:]
        sent = producer.told("ok")
        assert len(sent) == MESSAGES
        consumer = java.start(
            programs(NEW), "shaketable.LitePull", apache, "Found", "G", *limits, "*"
        )
        assert consumer.wait(2 * TOOL_SECONDS_MAX) == 0, consumer.lines[-5:]
        assert sorted(int(words[0]) for words in consumer.told("got")) == list(range(MESSAGES))
        number, queue, offset, message_id = sent[MESSAGES // 2]
        shown = Admin(java, NEW, apache).call(
            "queryMsgById", "-t", "Found", "-i", message_id, is_checked=False
        )
        said = dict(
            map(str.strip, line.split(":", 1)) for line in shown.splitlines() if ":" in line
        )
        wanted = {"Topic": "Found", "Queue ID": queue, "Queue Offset": offset}
        assert {name: said[name] for name in wanted} == wanted
        assert said["Keys"] == f"[key{number}]"
    finally:
        group.close()


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(STORY_SECONDS_MAX):
            await story()

    trio.run(bounded)


def test_apaches_broker_registers_with_our_name_server(
    java: Java, name_servers: NameServers
) -> None:
    broker = start_broker(java, name_servers.addresses)
    (port,) = name_servers.ports

    async def story() -> None:
        async def is_there() -> bool:
            return await name_servers.route(port, "TBW102") is not None

        await until(is_there, "Apache's broker has registered")
        async with Producer(name_servers.addresses, timeout_s=10.0, rng=Random(1)) as producer:
            for number in range(20):
                sent = await producer.send("made-by-sending", b"%d" % number)
                assert sent.status == "SEND_OK"
        await until(topic_is_told_of, "the new topic is told of")
        assert broker.broker is not None
        broker.broker.end()
        await until(lambda: is_gone("made-by-sending"), "its topics are gone with it")
        await until(lambda: is_gone("TBW102"), "its topics are gone with it")

    async def topic_is_told_of() -> bool:
        route = await name_servers.route(port, "made-by-sending")
        return route is not None and route.broker_datas[0].broker_addrs == {
            0: broker.broker_address
        }

    async def is_gone(topic: str) -> bool:
        return await name_servers.route(port, topic) is None

    run(story)
