"""The load client of the benchmarks against a real group: what it counts, the group has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.benchmarks.load.producer import QUEUES, TOPIC, Producer
from tests.support.node_group import NodeGroup

pytestmark = pytest.mark.e2e


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", "n2", mappedFileSizeCommitLog=str(8 << 20))
    try:
        yield nodes
    finally:
        nodes.close()


def test_what_the_load_client_counts_is_there(group: NodeGroup) -> None:
    """In a closed loop and paced; a place that was given twice ends it with an error."""

    async def start() -> str:
        group.start("n0", "n1", "n2")
        leader = await group.leader()
        await group.client(leader).send(TOPIC, 0, b"first")
        return leader

    leader = group.tell(start)
    places: set[int] = set()
    for is_paced in (False, True):
        producer = Producer(group.client_address(leader), 4, 200, "g")
        if is_paced:
            load = trio.run(producer.run_paced, 500, 0.1, 0.5)
        else:
            load = trio.run(producer.run, 8, 0.1, 0.5)
        assert 0 < load.acknowledged <= len(load.places)
        assert 0 < load.quantile_ms(0.5) <= load.quantile_ms(0.99)
        assert places.isdisjoint(load.places)
        places.update(load.places)

    async def ends() -> list[int]:
        client = group.client(leader)
        return [await client.max_offset(TOPIC, queue) for queue in range(QUEUES)]

    end_of = group.tell(ends)
    for place in places:
        offset, queue = divmod(place, QUEUES)
        assert offset < end_of[queue]
