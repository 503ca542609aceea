"""Apache's Java clients, unchanged, on our name servers and our DLedger group."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.foreign_java import NEW, OLD, Java, Program, java_in, needs_maven, programs
from tests.support.name_servers import NameServers
from tests.support.node_group import NodeGroup

pytestmark = [pytest.mark.e2e, needs_maven, pytest.mark.timeout(600)]

MEMBERS = ("n0", "n1", "n2")
COUNT = 10_000
SECONDS_MAX = 80
TOPIC = "Numbers"


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
    where = {int(n): (int(queue), int(offset)) for n, queue, offset, *_ in producer.told("ok")}
    assert all(where[body] == (queue, offset) for body, queue, offset in got if times[body] == 1)
    if not is_ordered:
        return  # many threads consume
    by_queue: dict[int, list[int]] = defaultdict(list)
    for _, queue, offset in got:
        by_queue[queue].append(offset)
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


@pytest.mark.parametrize("version", [OLD, NEW])
def test_it_sends_and_consumes_exactly_while_the_leader_dies(site: Site, version: str) -> None:
    group = site.group

    async def begin() -> str:
        site.name_servers.start()
        group.start(*MEMBERS)
        return await group.leader()

    leader = group.tell(begin)
    producer = site.run(version, "Producer", TOPIC, "P", 0, COUNT, SECONDS_MAX)
    wait_for(lambda: len(acknowledged(producer)) > COUNT // 10, "the producer sends", producer)
    puller = site.run(version, "LitePull", TOPIC, "puller", COUNT, SECONDS_MAX, "*")
    pusher = site.run(
        version, "Push", TOPIC, "pusher", COUNT, SECONDS_MAX, "*", "concurrently", "-"
    )
    wait_for(lambda: len(acknowledged(producer)) > COUNT // 3, "it sends on", producer)
    group.kill(leader)
    for program in (producer, puller, pusher):
        wait_for(lambda each=program: each.told("done"), "it comes to its end", program)
    assert len(acknowledged(producer)) == COUNT
    assert producer.told("unknown"), "the leader's death was seen by nobody"
    assert_exact(puller, producer, is_ordered=True)
    assert_exact(pusher, producer, is_ordered=False)


def wait_for(holds: Callable[[], object], what: str, program: Program) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not holds():
        assert time.monotonic() < end, f"{program.name}: {what}; it said {program.lines[-5:]}"
        assert not program.told("late"), program.lines[-5:]
        assert not program.process.poll(), program.lines[-5:]
        time.sleep(0.05)
