"""Apache's mqadmin at our name server and group: what it reads, makes, changes and deletes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.support.apache_admin import Admin
from tests.support.foreign_java import NEW, OLD, java_in, needs_maven
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]
NAMES = ("n0", "n1", "n2")


class Site:
    """A name server and a group of three, of which all are registered."""

    def __init__(self, name_servers: NameServers, group: NodeGroup) -> None:
        self.name_servers = name_servers
        self.group = group
        (self.port,) = name_servers.ports
        self.leader = ""

    def address(self, name: str) -> str:
        return "{}:{}".format(*self.group.client_address(name))

    async def settle(self) -> None:
        self.group.start(*NAMES)
        await Writer(self.group.client()).send_some("t", 5)

        async def everybody() -> bool:
            route = await self.name_servers.route(self.port, "t")
            return route is not None and len(route.broker_datas[0].broker_addrs) == 3

        await until(everybody, "all three are registered")
        self.leader = self.address(await self.group.leader())

    async def shown(self, topic: str, perm: int | None, queues: int = 0) -> None:
        """Wait until routes show a topic like that, or not at all (None)."""

        async def is_shown() -> bool:
            route = await self.name_servers.route(self.port, topic)
            if route is None or perm is None:
                return route is None and perm is None
            (data,) = route.queue_datas
            return (data.perm, data.write_queue_nums) == (perm, queues)

        await until(is_shown, f"{topic} is shown with perm {perm}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("tools")
    servers = NameServers(folder, 1, "--order-message-enable")
    group = NodeGroup(folder, *NAMES, namesrvAddr=servers.addresses, brokerName="ours")
    try:
        servers.start()
        site = Site(servers, group)
        group.tell(site.settle)
        yield site
    finally:
        group.close()
        servers.close()


@pytest.fixture(params=[OLD, NEW])
def admin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, site: Site
) -> Iterator[Admin]:
    with java_in(tmp_path_factory.mktemp("mqadmin")) as java:
        yield Admin(java, request.param, site.name_servers.addresses)


def test_apaches_tools_read_and_change_what_we_show(site: Site, admin: Admin) -> None:
    they_see_the_group(site, admin)
    they_take_the_right_to_write(site, admin)
    they_make_change_and_delete_a_topic(site, admin)
    they_order_a_topic(site, admin)


def they_see_the_group(site: Site, admin: Admin) -> None:
    route = admin.call("topicRoute", "-t", "t")
    assert site.leader in route
    assert '"brokerName":"ours"' in route.replace(" ", "")
    listed = admin.call("clusterList")
    for name in NAMES:
        assert site.address(name) in listed
    listed = admin.call("topicList", "-c")
    assert ["DefaultCluster", "t"] in [line.split() for line in listed.splitlines()]
    assert "V4_9_8" in admin.call("brokerStatus", "-b", site.leader)
    assert "dLegerPeers" in admin.call("getBrokerConfig", "-b", site.leader)


def they_take_the_right_to_write(site: Site, admin: Admin) -> None:
    for command, perm in (("wipeWritePerm", 4), ("addWritePerm", 6)):
        assert "OK" in admin.call(command, "-b", "ours")
        route = trio.run(site.name_servers.route, site.port, "t")
        assert route is not None
        assert route.queue_datas[0].perm == perm


def they_make_change_and_delete_a_topic(site: Site, admin: Admin) -> None:
    async def made_and_sent() -> None:
        await site.shown("made", 6, 5)
        await Writer(site.group.client()).send_some("made", 5)

    topic = ("-b", site.leader, "-t", "made")
    assert "success" in admin.call("updateTopic", *topic, "-r", "5", "-w", "5")
    site.group.tell(made_and_sent)
    assert "success" in admin.call("updateTopicPerm", *topic, "-p", "4")
    site.group.tell(lambda: site.shown("made", 4, 5))
    assert "success" in admin.call("deleteTopic", "-c", "DefaultCluster", "-t", "made")
    site.group.tell(lambda: site.shown("made", None))


def they_order_a_topic(site: Site, admin: Admin) -> None:
    topic = ("-b", site.leader, "-t", "ordered", "-r", "3", "-w", "3")
    # The tool tells of it as an error that there was no order before.
    assert "ours:3" in admin.call("updateTopic", *topic, "-o", "true", is_checked=False)
    site.group.tell(lambda: site.shown("ordered", 6, 3))
    route = trio.run(site.name_servers.route, site.port, "ordered")
    assert route is not None
    assert route.order_topic_conf == "ours:3"
    assert "success" in admin.call("deleteTopic", "-c", "DefaultCluster", "-t", "ordered")
    site.group.tell(lambda: site.shown("ordered", None))
