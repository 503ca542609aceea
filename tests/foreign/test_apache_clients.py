"""Apache's Java and C++ clients, unchanged, on our name servers and our DLedger group.

All of them work on one group at a time, each on a topic of its own, while its leader is killed.
`tests.soaks.apache_clients` does it with more messages.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.requests import CreateTopic
from tests.support.foreign_java import NEW, OLD, Java, Program, java_in, needs_maven, programs
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup, until

pytestmark = [
    pytest.mark.e2e,
    needs_maven,
    pytest.mark.skipif(
        find_spec("rocketmq") is None,
        reason="no Apache C++ client: PyPI's rocketmq 0.4.4 (Linux on x86-64)",
    ),
    pytest.mark.timeout(600),
]

MEMBERS = ("n0", "n1", "n2")
COUNT = int(os.environ.get("SHAKETABLE_APACHE_MESSAGES", "1200"))
SECONDS_MAX = 500
CPP = Path(__file__).parent / "cpp" / "probe.py"
MAKE_TOPIC = RequestCode.UPDATE_AND_CREATE_TOPIC
TOPICS = ("Java-4-9-8", "Java-5-3-3", "Cpp")


class Site:
    """Two name servers, a group of three that registers with both, and a place for Java."""

    def __init__(self, folder: Path, java: Java) -> None:
        self.java = java
        self.name_servers = NameServers(folder, 2)
        self.group = NodeGroup(
            folder,
            *MEMBERS,
            namesrvAddr=self.name_servers.addresses,
            brokerName="RaftNode00",
            brokerClusterName="RaftCluster",
        )

    def close(self) -> None:
        self.group.close()
        self.name_servers.close()

    async def make_topics(self) -> None:
        """Send nothing yet: consumers that start with the producers find the topics there."""
        client = self.group.client()
        for topic in TOPICS:
            fields = CreateTopic(topic, read_queue_nums=4, write_queue_nums=4).to_ext()
            await until(
                lambda given=fields: client.ask_leader(MAKE_TOPIC, given), f"{topic} is made"
            )

    def run(self, version: str, program: str, *arguments: object) -> Program:
        """Start one of our Java programs with Apache's client of that version."""
        given = [self.name_servers.addresses, *map(str, arguments)]
        return self.java.start(programs(version), f"shaketable.{program}", *given)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with java_in(tmp_path) as java:
        site = Site(tmp_path, java)
        try:
            yield site
        finally:
            site.close()


def acknowledged(producer: Program) -> list[int]:
    return [int(words[0]) for words in producer.told("ok")]


def assert_exact(consumer: Program, producer: Program, *, is_ordered: bool) -> None:
    """All that was acknowledged came, nothing else, nothing twice; each queue in its order.

    A message whose outcome was unknown to the producer was sent again: it may be there twice.
    """
    got = [(int(body), int(queue), int(offset)) for body, queue, offset, *_ in consumer.told("got")]
    times = Counter(body for body, _, _ in got)
    sent, unsure = set(acknowledged(producer)), {int(w[0]) for w in producer.told("unknown")}
    assert sent <= set(times)
    assert set(times) <= sent | unsure
    assert {body for body, often in times.items() if often > 1} <= unsure
    places = Counter((queue, offset) for _, queue, offset in got)
    assert max(places.values()) == 1
    where = {int(n): (queue, int(offset)) for n, queue, offset, *_ in producer.told("ok")}
    for body, queue, offset in got:
        if times[body] == 1:  # the C++ client does not say which queue
            assert where[body] in ((str(queue), offset), ("?", offset)), body
    if not is_ordered:
        return  # many threads consume
    by_queue: dict[int, list[int]] = defaultdict(list)
    for _, queue, offset in got:
        by_queue[queue].append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


def of_java(site: Site, version: str) -> list[Program]:
    """A producer, a lite pull consumer and a push consumer of Apache's Java client."""
    topic = f"Java-{version.replace('.', '-')}"
    return [
        site.run(version, "Producer", topic, f"{topic}-P", 0, COUNT, SECONDS_MAX),
        site.run(version, "LitePull", topic, f"{topic}-puller", COUNT, SECONDS_MAX, "*"),
        site.run(
            version, "Push", topic, f"{topic}-pusher", COUNT, SECONDS_MAX, "*", "concurrently", "-"
        ),
    ]


def of_cpp(site: Site) -> list[Program]:
    """A producer, an ordered push consumer and a pull consumer of Apache's C++ client."""
    servers = site.name_servers.addresses
    return [
        site.java.start_python(CPP, "produce", servers, "Cpp", "Cpp-P", 0, COUNT, SECONDS_MAX),
        site.java.start_python(CPP, "push", servers, "Cpp", "Cpp-pusher", COUNT, SECONDS_MAX),
        site.java.start_python(CPP, "pull", servers, "Cpp", "Cpp-puller", COUNT, SECONDS_MAX),
    ]


def test_they_send_and_consume_exactly_while_the_leader_dies(site: Site) -> None:
    group = site.group

    async def begin() -> str:
        site.name_servers.start()
        group.start(*MEMBERS)
        await site.make_topics()
        return await group.leader()

    leader = group.tell(begin)
    clients = [of_java(site, OLD), of_java(site, NEW), of_cpp(site)]
    for producer, *_ in clients:
        wait_for(lambda each=producer: len(acknowledged(each)) > COUNT // 3, "it sends", producer)
    group.kill(leader)
    for programs_of_one in clients:
        for program in programs_of_one:
            wait_for(lambda each=program: each.told("done"), "it comes to its end", program)
    for producer, *consumers in clients:
        assert len(acknowledged(producer)) == COUNT
        for consumer in consumers:
            assert_exact(consumer, producer, is_ordered=consumer.name != "Push")
    assert any(producer.told("unknown") for producer, *_ in clients), "nobody saw the leader die"


def wait_for(holds: Callable[[], object], what: str, program: Program) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, f"{program.name}: {what}; it said {program.lines[-5:]}"
        assert not program.told("late"), program.lines[-5:]
        assert not program.process.poll(), program.lines[-5:]
        time.sleep(0.05)
