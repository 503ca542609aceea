"""The three modes without a group, as processes: what each keeps, and what none ever does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from master_slave_nodes import MasterSlaveNodes
from name_servers import NameServers
from node_group import Writer, contents, until

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.pull_consumer import PullConsumer
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[MasterSlaveNodes]:
    nodes = MasterSlaveNodes(tmp_path, "master", "slave", slaveReadEnable="true")
    yield nodes
    nodes.close()


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[NameServers]:
    servers = NameServers(tmp_path, 1)
    servers.start()
    yield servers
    servers.close()


async def refused_send(nodes: MasterSlaveNodes, name: str) -> int:
    client = nodes.client(name, timeout_s=1.0)
    try:
        await client.send("t", 0, b"for a master")
    except RefusedError as error:
        return error.code
    raise AssertionError("a slave took a message")


def test_ports_that_the_system_chose_are_registered(
    nodes: MasterSlaveNodes, name_servers: NameServers
) -> None:
    """With port 0 the slave can only find its master by what that registered."""
    known = {"namesrvAddr": name_servers.addresses}
    (name_server,) = name_servers.ports

    async def story() -> None:
        nodes.start("master", listenPort="0", haListenPort="0", **known)

        async def address() -> str | None:
            route = await name_servers.route(name_server, "TBW102")
            return route and route.broker_datas[0].broker_addrs[0]

        host, _, port = (await until(address, "the master is in a route")).partition(":")
        nodes.start("slave", brokerRole="SLAVE", brokerId="1", **known)
        async with await trio.open_tcp_stream(host, int(port)):
            pass

        async def follows() -> bool:
            return "event=master_found" in nodes.log("slave")

        await until(follows, "the slave has found its master")

    nodes.tell(story)
    nodes.stop("master", "slave")


def test_sync_double_write_keeps_all_it_acknowledged_though_the_master_is_wiped(
    nodes: MasterSlaveNodes, name_servers: NameServers
) -> None:
    """The slave finds its master by the name server, and has topics and offsets from it."""
    known = {"namesrvAddr": name_servers.addresses}

    async def story() -> None:
        nodes.start("master", brokerRole="SYNC_MASTER", flushDiskType="SYNC_FLUSH", **known)
        await nodes.metadata("master")
        with pytest.raises(OutcomeUnknownError, match="code 11"):
            await nodes.client("master").send("t", 0, b"alone")
        nodes.start("slave", brokerRole="SLAVE", brokerId="1", **known)
        await nodes.metadata("slave")
        writer = Writer(nodes.client("master"))
        await writer.send("t")
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(writer.send_some, "t", 25)
        await nodes.commit("master", "g", "t", 7)

        async def synchronized() -> bool:
            return await nodes.committed("slave", "g", "t") == 7

        await until(synchronized, "the slave has the master's offsets")
        await writer.send_some("t", 20)
        nodes.kill("master")
        nodes.wipe("master")
        assert len(writer.acknowledged["t", 0]) >= 221
        slave = nodes.client("slave")
        found = await contents(slave, "t", member="slave")
        assert found.pop(0) == b"alone"
        sent = writer.acknowledged["t", 0]
        assert {offset: found.get(offset) for offset in sent} == sent
        async with PullConsumer(name_servers.addresses, group="g") as consumer:
            (queue,) = [one for one in await consumer.queues("t") if one.queue_id == 0]
            assert await consumer.committed(queue) == 7
            assert await consumer.max_offset(queue) == max(found) + 1
            assert len((await consumer.pull(queue, 7)).messages) > 0
        assert await refused_send(nodes, "slave") == ResponseCode.SERVICE_NOT_AVAILABLE
        nodes.stop("slave")
        nodes.start("slave", brokerRole="SLAVE", brokerId="1", **known)
        again = await nodes.metadata("slave")
        assert (again.role, await nodes.committed("slave", "g", "t")) == ("follower", 7)
        assert await contents(slave, "t", member="slave") == {0: b"alone", **found}
        (topic,) = [one for one in await topics_of(nodes, "slave") if one["topicName"] == "t"]
        assert topic["perm"] == 6
        nodes.stop("slave")  # only an operator makes it a master
        nodes.start("slave", brokerRole="ASYNC_MASTER", **known)
        writer.client = nodes.client("slave")
        assert await writer.send("t") == max(found) + 1

    nodes.tell(story)


def test_async_replication_goes_on_without_its_slave_which_comes_after(
    nodes: MasterSlaveNodes,
) -> None:
    async def story() -> None:
        nodes.start("master", brokerRole="ASYNC_MASTER")
        as_slave = {
            "brokerRole": "SLAVE",
            "brokerId": "1",
            "haMasterAddress": nodes.ha_address("master"),
        }
        nodes.start("slave", **as_slave)
        writer = Writer(nodes.client("master"))
        await writer.send_some("t", 30)
        client = nodes.client("slave")

        async def has_some() -> bool:
            return 0 in await contents(client, "t", member="slave")

        await until(has_some, "the slave copies")
        nodes.kill("slave")
        await writer.fill("t", 12)
        nodes.kill("master")
        nodes.start("master", brokerRole="ASYNC_MASTER")
        nodes.start("slave", **as_slave)
        await writer.send_some("t", 30)
        at_master = await contents(nodes.client("master"), "t")
        writer.assert_held("t", at_master)

        async def has_all() -> bool:
            return await contents(client, "t", member="slave") == at_master

        await until(has_all, "the slave has everything")
        files = sorted(path.name for path in (nodes.store("slave") / "commitlog").iterdir())
        assert len(files) > 3
        for name in files[:-1]:
            of_master = (nodes.store("master") / "commitlog" / name).read_bytes()
            assert (nodes.store("slave") / "commitlog" / name).read_bytes() == of_master
        info = await nodes.ask("master", Command(RequestCode.GET_BROKER_RUNTIME_INFO, 1))
        table = json.loads(bytes(info.body))["table"]
        assert (table["brokerRole"], table["slaveCount"]) == ("ASYNC_MASTER", "1")
        assert table["slavesMaxOffset"] == table["commitLogMaxOffset"]

    nodes.tell(story)


def test_a_full_disk_refuses_messages_until_there_is_room(tmp_path: Path) -> None:
    nodes = MasterSlaveNodes(tmp_path, "master", program="tests.support.filling_disk_node")
    full = Path(f"{nodes.store('master')}.full")

    async def story() -> None:
        nodes.start("master", flushDiskType="SYNC_FLUSH")
        writer = Writer(nodes.client("master", timeout_s=1.0))
        await writer.send("t")
        full.touch()
        refused = writer.refused
        while writer.refused == refused:  # at the end of the first file
            await writer.fill("t", 1)
        assert "event=disk_full is_full=True" in nodes.log("master")
        full.unlink()
        await writer.send_some("t", 5)
        writer.assert_held("t", await contents(nodes.client("master"), "t"))
        nodes.stop("master")

    try:
        nodes.tell(story)
    finally:
        nodes.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_master_alone_keeps_what_is_flushed_when_its_power_fails(
    nodes: MasterSlaveNodes, flush: str
) -> None:
    """With ASYNC_FLUSH the newest messages are gone: the mode's known weakness, really there."""

    async def story() -> None:
        keys = {"flushDiskType": flush, "shaketableDisk": "volatile"}
        nodes.start("master", flushIntervalCommitLog="60000", **keys)
        writer = Writer(nodes.client("master"))
        await writer.send_some("t", 60)
        nodes.kill("master")
        nodes.start("master", **keys)
        client = nodes.client("master")
        assert await until(lambda: boxed(client.max_offset("t", 0)), "it serves") == (
            (60,) if flush == "SYNC_FLUSH" else (0,)
        )
        if flush == "SYNC_FLUSH":
            writer.assert_held("t", await contents(client, "t"))
            await nodes.commit("master", "g", "t", 5)
            nodes.stop("master")
            nodes.start("master", **keys)
            await until(lambda: boxed(client.max_offset("t", 0)), "it serves")
            assert await nodes.committed("master", "g", "t") == 5
            assert "aborted=False" in nodes.log("master")

    nodes.tell(story)


async def boxed(reading) -> tuple[int]:
    return (await reading,)


async def topics_of(nodes: MasterSlaveNodes, name: str) -> list[dict[str, object]]:
    answer = await nodes.ask(name, Command(RequestCode.GET_ALL_TOPIC_CONFIG, 1))
    return list(json.loads(bytes(answer.body))["topicConfigTable"].values())
