"""A group of real processes on the plain commit log of a broker from before DLedger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shaketable.system.client.group import BrokerGroupClient
from tests.support.node_group import NodeGroup, Writer, contents, until
from tests.support.plain_log_encoder import PlainLogWriter

pytestmark = pytest.mark.e2e

FILE_BYTES = 65_536
QUEUES = (("orders", 0), ("orders", 3), ("quiet", 1))
FIRST_OFFSET = 40
"""Of orders/0: what stood in front of it expired before the upgrade."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", "n2", mappedFileSizeCommitLog=str(FILE_BYTES))
    try:
        yield nodes
    finally:
        nodes.close()


def plain_log(begin: int) -> PlainLogWriter:
    """Three files, the last one not full, with sizes that leave blanks of several lengths."""
    log = PlainLogWriter(FILE_BYTES, begin, {("orders", 0): FIRST_OFFSET} if begin else {})
    for number in range(150):
        topic, queue_id = QUEUES[number % 2 if number >= 5 else 2]
        body = b"%s/%d old %d " % (topic.encode(), queue_id, number) + bytes(number * 11 % 2000)
        log.append(topic, queue_id, body, b"TAGS\x01old\x02" if number % 3 else b"")
    assert len(log.files) == 3
    assert 0 < len(log.files[-1]) < FILE_BYTES - 1000
    return log


def start(group: NodeGroup, *names: str) -> None:
    for name in names:
        group.start(name, storePathCommitLog=str(group.store(name) / "commitlog"))


async def assert_all_there(client: BrokerGroupClient, member: str, log: PlainLogWriter) -> None:
    """Every old message stands at its old offset, as this member reads it."""
    for (topic, queue_id), written in log.written.items():
        found = await contents(client, topic, queue_id, member=member)
        assert {offset: found.get(offset) for offset in written} == written
        assert min(found) == min(written)


@pytest.mark.parametrize("begin", [0, 5 * FILE_BYTES], ids=["whole", "partly_expired"])
def test_old_messages_stay_and_new_ones_go_on_behind_them(group: NodeGroup, begin: int) -> None:
    log = plain_log(begin)
    for name in group.peers:
        log.write(group.store(name) / "commitlog")
    ends = dict(log.offsets)

    async def assert_goes_on(writer: Writer) -> None:
        """New messages follow the old ones at once, on every member."""
        for name in group.peers:
            await group.caught_up(name)
            await assert_all_there(writer.client, name, log)
            for topic, queue_id in QUEUES:
                found = await contents(writer.client, topic, queue_id, member=name)
                end = ends[topic, queue_id]
                new = {offset: body for offset, body in found.items() if offset >= end}
                assert min(new) == end
                assert b"old" not in b"".join(new.values())
                writer.assert_held(topic, new, queue_id)

    async def send_to_all(writer: Writer, count: int) -> None:
        for topic, queue_id in QUEUES:
            await writer.send_some(topic, count, queue_id)

    async def story() -> None:
        start(group, *group.peers)
        client = group.client()
        leader = await group.leader()
        for name in group.peers:
            await group.caught_up(name)
            await assert_all_there(client, name, log)
        for (topic, queue_id), end in ends.items():
            assert await client.max_offset(topic, queue_id) == end
            assert await client.min_offset(topic, queue_id) == min(log.written[topic, queue_id])
        first = group.store("n0") / "dledger-n0" / "data"
        assert [int(path.name) for path in first.iterdir()] == [log.end]

        writer = Writer(client)
        await send_to_all(writer, 10)
        await assert_goes_on(writer)
        group.kill(leader)
        await send_to_all(writer, 10)
        start(group, leader)
        await assert_goes_on(writer)
        group.kill(*group.peers)
        start(group, *group.peers)
        await send_to_all(writer, 10)
        await assert_goes_on(writer)
        group.stop(*group.peers)
        start(group, *group.peers)
        await send_to_all(writer, 10)
        await assert_goes_on(writer)

    group.tell(story)


def test_old_messages_expire_and_their_queues_go_on(group: NodeGroup) -> None:
    """The file of the plain logs go with the first data file behind them."""
    log = plain_log(0)
    for name in group.peers:
        log.write(group.store(name) / "commitlog")

    async def story() -> None:
        group.settings["shaketableReservedMs"] = "300"
        start(group, *group.peers)
        writer = Writer(group.client())

        async def is_gone() -> bool:
            await writer.fill("orders", 4, 3)
            folders = [group.store(name) / "commitlog" for name in group.peers]
            return not any(list(folder.iterdir()) for folder in folders)

        await until(is_gone, "the file of the plain logs are gone on every node")
        end = log.offsets["quiet", 1]
        await writer.send("quiet", 1)
        assert min(await contents(writer.client, "quiet", 1)) == end
        group.kill(*group.peers)
        start(group, *group.peers)
        await writer.send("quiet", 1)
        for name in group.peers:
            await group.caught_up(name)
            found = await contents(writer.client, "quiet", 1, member=name)
            assert min(found, default=end) == end
            writer.assert_held("quiet", found, 1)

    group.tell(story)


def test_a_new_member_without_the_old_files_goes_on_behind_them(group: NodeGroup) -> None:
    """What is from before the group is not replicated: it is copied by hand, or left behind."""
    log = plain_log(0)
    for name in group.peers:
        log.write(group.store(name) / "commitlog")

    async def story() -> None:
        start(group, *group.peers)
        writer = Writer(group.client())
        await writer.send_some("orders", 10, 3)
        group.join("n3")
        admin = group.admin(*group.peers)
        await admin.replace_member(
            "n2", "n3", group.peer_address("n3"), group.client_address("n3"), timeout_s=30
        )
        group.stop("n2")
        await group.caught_up("n3")
        found = await contents(group.client(), "orders", 3, member="n3")
        assert min(found) == log.offsets["orders", 3]
        writer.assert_held("orders", found, 3)
        dead = "n1" if await group.leader() == "n0" else "n0"
        group.kill(dead)
        writer.client = group.client("n0", "n1", "n3")
        await writer.send_some("quiet", 5, 1)
        await group.caught_up("n3")
        found = await contents(writer.client, "quiet", 1, member="n3")
        assert min(found) == log.offsets["quiet", 1]

    group.tell(story)
