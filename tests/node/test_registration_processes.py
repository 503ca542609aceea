"""Real name servers and a real group: routes follow the leader, whichever name servers live."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shaketable.system.remoting.name_server_requests import TopicRoute
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, Writer, until

pytestmark = pytest.mark.e2e

NAMES = ("n0", "n1", "n2")


class Site:
    """Two name servers and a group of three that registers with both."""

    def __init__(self, folder: Path) -> None:
        self.name_servers = NameServers(folder, 2)
        self.group = NodeGroup(
            folder,
            *NAMES,
            namesrvAddr=self.name_servers.addresses,
            brokerName="RaftNode00",
            brokerClusterName="RaftCluster",
        )

    def close(self) -> None:
        self.group.close()
        self.name_servers.close()

    def addresses(self, leader: str, *followers: str) -> dict[int, str]:
        """What the route of a topic is to show."""
        named = {0: leader, **{int(name[1:]) + 1: name for name in followers}}
        return {
            number: "{}:{}".format(*self.group.client_address(name))
            for number, name in named.items()
        }

    async def route(self, port: int, leader: str, *followers: str, topic: str = "t") -> TopicRoute:
        """Wait until a name server shows a topic with just these brokers."""
        wanted = self.addresses(leader, *followers)

        async def look() -> TopicRoute | None:
            found = await self.name_servers.route(port, topic)
            if found is None:
                return None
            (brokers,) = found.broker_datas
            return found if brokers.broker_addrs == wanted else None

        return await until(look, f"the name server at {port} shows {wanted} for {topic}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def others(*names: str) -> list[str]:
    return [name for name in NAMES if name not in names]


def test_routes_follow_the_leader_and_a_dead_name_server_costs_nothing(site: Site) -> None:
    group, name_servers = site.group, site.name_servers
    kept, lost = name_servers.ports

    async def story() -> None:
        name_servers.start()
        group.start(*NAMES)
        writer = Writer(group.client())
        await writer.send_some("t", 10)
        first = await group.leader()
        for port in name_servers.ports:
            route = await site.route(port, first, *others(first))
            (brokers,), (queues,) = route.broker_datas, route.queue_datas
            assert (brokers.cluster, brokers.broker_name) == ("RaftCluster", "RaftNode00")
            assert queues.broker_name == "RaftNode00"
            assert queues.perm == 6
            assert queues.write_queue_nums > 0

        # The leader dies, and so does one name server, before anybody could tell it.
        name_servers.kill(lost)
        group.kill(first)
        await writer.send_some("t", 10)
        second = await group.leader()
        third = next(name for name in others(first, second))
        await site.route(kept, second, third)

        # A new topic is told of at once, where there is a name server.
        await writer.send_some("u", 1)
        await site.route(kept, second, third, topic="u")

        # The dead ones come back: the name server learns everything anew, the old leader follows.
        name_servers.start(lost)
        group.start(first)
        for port in name_servers.ports:
            for topic in ("t", "u"):
                await site.route(port, second, third, first, topic=topic)

        # Who stops in order is gone from the routes, while the others serve on.
        group.stop(third)
        for port in name_servers.ports:
            await site.route(port, second, first)
        await writer.send_some("t", 10)
        assert "event=name_server_lost" in group.log(second)

    group.tell(story)
    group.stop(*(name for name in NAMES if group.processes[name].poll() is None))
    name_servers.stop()


def test_a_leader_that_slept_through_an_election_takes_nobodys_place(site: Site) -> None:
    """Its connections stay open while it sleeps, and it may wake believing that it leads."""
    group, name_servers = site.group, site.name_servers

    async def story() -> None:
        name_servers.start()
        group.start(*NAMES)
        writer = Writer(group.client())
        await writer.send_some("t", 10)
        first = await group.leader()
        for port in name_servers.ports:
            await site.route(port, first, *others(first))
        group.processes[first].send_signal(signal.SIGSTOP)
        second = await group.leader(*others(first))
        third = next(name for name in others(first, second))
        for port in name_servers.ports:
            await site.route(port, second, third)
        group.processes[first].send_signal(signal.SIGCONT)
        for port in name_servers.ports:
            await site.route(port, second, third, first)

    group.tell(story)
    group.stop(*NAMES)
    name_servers.stop()


def test_only_members_are_in_routes(site: Site) -> None:
    group, name_servers = site.group, site.name_servers

    async def story() -> None:
        name_servers.start()
        group.start(*NAMES)
        writer = Writer(group.client())
        await writer.send_some("t", 10)
        first = await group.leader()
        group.join("n3")
        assert (await group.metadata("n3")).voters == ()
        for port in name_servers.ports:
            await site.route(port, first, *others(first))
        admin = group.admin(*NAMES)
        await admin.add_member("n3", group.peer_address("n3"), group.client_address("n3"))
        for port in name_servers.ports:
            await site.route(port, first, *others(first), "n3")

        await admin.wait_until_voter("n3", 30)
        # A leader knows of its own removal (a follower is not told).
        await admin.remove_member(first)
        second = await group.leader(*others(first), "n3")
        for port in name_servers.ports:
            await site.route(port, second, *(n for n in (*others(first), "n3") if n != second))

    group.tell(story)
    group.stop(*NAMES, "n3")
    name_servers.stop()


def test_all_name_servers_dead_stop_no_message_and_no_shutdown(site: Site) -> None:
    group = site.group

    async def story() -> None:
        group.start(*NAMES)
        writer = Writer(group.client())
        await writer.send_some("t", 10)
        group.kill(await group.leader())
        await writer.send_some("t", 10)

    group.tell(story)
    group.stop(*(name for name in NAMES if group.processes[name].poll() is None))
