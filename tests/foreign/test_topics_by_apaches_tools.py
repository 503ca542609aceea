"""Apache's mqadmin makes, changes and deletes topics of our group, and reads what it shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.foreign_java import NEW, OLD, Java, java_in, needs_maven, programs
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
TOOL_SECONDS_MAX = 60
NAMES = ("n0", "n1", "n2")


@pytest.fixture
def java(tmp_path: Path) -> Iterator[Java]:
    with java_in(tmp_path) as java:
        quiet = java.folder / "conf" / "logback_tools.xml"  # without it, 4.9 does not start
        quiet.parent.mkdir(exist_ok=True)
        quiet.write_text("<configuration/>")
        yield java


@pytest.fixture
def name_servers(tmp_path: Path) -> Iterator[NameServers]:
    servers = NameServers(tmp_path, 1)
    try:
        servers.start()
        yield servers
    finally:
        servers.close()


def tool(java: Java, version: str, *words: str) -> str:
    """Run Apache's mqadmin; return what it prints."""
    main = "org.apache.rocketmq.tools.command.MQAdminStartup"
    program = java.start(programs(version), main, *words)
    code = program.wait(TOOL_SECONDS_MAX)
    text = "\n".join(program.lines)
    assert code == 0, text
    assert "Exception" not in text, text
    return text


@pytest.mark.parametrize("version", [OLD, NEW])
def test_apaches_tools_make_change_and_delete_topics(
    tmp_path: Path, java: Java, name_servers: NameServers, version: str
) -> None:
    servers = name_servers.addresses
    group = NodeGroup(tmp_path, *NAMES, namesrvAddr=servers, brokerName="ours")
    (port,) = name_servers.ports

    async def start() -> str:
        group.start(*NAMES)
        leader = await group.leader()

        async def is_known() -> bool:
            route = await name_servers.route(port, "TBW102")
            return route is not None and 0 in route.broker_datas[0].broker_addrs

        await until(is_known, "the leader is registered")
        return leader

    async def shown(topic: str, perm: int | None, queues: int = 0) -> None:
        async def is_shown() -> bool:
            route = await name_servers.route(port, topic)
            if route is None or perm is None:
                return route is None and perm is None
            (data,) = route.queue_datas
            return (data.perm, data.write_queue_nums) == (perm, queues)

        await until(is_shown, f"{topic} is shown with perm {perm}")

    async def made_and_sent() -> None:
        await shown("made", 6, 5)
        await Writer(group.client()).send_some("made", 5)

    try:
        broker = "{}:{}".format(*group.client_address(group.tell(start)))
        made = tool(
            java, version, "updateTopic", "-n", servers, "-b", broker, "-t", "made", "-r", "5",
            "-w", "5",
        )  # fmt: skip
        assert "success" in made
        group.tell(made_and_sent)
        perm = ("updateTopicPerm", "-n", servers, "-b", broker, "-t", "made", "-p", "4")
        assert "success" in tool(java, version, *perm)
        group.tell(lambda: shown("made", 4, 5))
        status = tool(java, version, "brokerStatus", "-n", servers, "-b", broker)
        assert "V4_9_8" in status
        config = tool(java, version, "getBrokerConfig", "-n", servers, "-b", broker)
        assert "dLegerPeers" in config
        gone = tool(
            java, version, "deleteTopic", "-n", servers, "-c", "DefaultCluster", "-t", "made"
        )
        assert "success" in gone
        group.tell(lambda: shown("made", None))
    finally:
        group.close()
