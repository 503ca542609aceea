"""Real groups hand their leadership over: when asked, on a full disk, when they hear nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.network.proxy import ProxyNetwork
from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from tests.support.node_group import HOST, NodeGroup, Writer, contents, until

pytestmark = pytest.mark.e2e

STORIES_MAX = 5
"""How often a story is told again in which the machine made an election of its own."""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", "n2")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def filling(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", "n2", program="tests.support.filling_disk_node")
    try:
        yield nodes
    finally:
        nodes.close()


def test_a_transfer_moves_the_leadership_and_leaves_no_append_unknown(group: NodeGroup) -> None:
    async def transfers(writer: Writer) -> tuple[int, int, int]:
        """Hand over to each node, one after the other, while four clients send."""
        admin = group.admin()
        first = await group.metadata(await group.leader())
        unknown, moved = len(writer.unknown), 0
        async with trio.open_nursery() as nursery:
            for number in range(4):
                await nursery.start(writer.keep_sending, f"t{number}")
            for target in ("n0", "n1", "n2", "n0"):
                if await group.leader() == target:
                    continue
                try:
                    await admin.transfer_leadership(target)
                except (OutcomeUnknownError, RefusedError):
                    continue
                moved += 1
                last = await group.role(target, "leader")
                acknowledged = sum(map(len, writer.acknowledged.values()))

                async def goes_on(acknowledged: int = acknowledged) -> bool:
                    return sum(map(len, writer.acknowledged.values())) > acknowledged + 20

                await until(goes_on, f"{target} acknowledges")
            nursery.cancel_scope.cancel()
        return moved, last.term - first.term, len(writer.unknown) - unknown

    async def story() -> None:
        group.start("n0", "n1", "n2")
        writer = Writer(group.client())
        await writer.send("t0")
        for _ in range(STORIES_MAX):
            moved, terms, unknown = await transfers(writer)
            assert moved > 0
            if moved >= 3 and terms == moved:  # no other election came between
                assert unknown == 0, writer.unknown
                break
        else:
            pytest.fail(f"in {STORIES_MAX} tries there were more elections than transfers")
        for number in range(4):
            writer.assert_held(f"t{number}", await contents(writer.client, f"t{number}"))

    group.tell(story)


def test_a_preferred_leader_gets_the_leadership_back(group: NodeGroup) -> None:
    async def story() -> None:
        group.settings["preferredLeaderIds"] = "n1;n2"
        group.start("n0", "n1", "n2")
        writer = Writer(group.client())
        await writer.send("t")
        await group.role("n1", "leader")
        group.kill("n1")
        await writer.send_some("t", 10)
        await group.role("n2", "leader")
        group.start("n1")
        await writer.send_some("t", 10)
        await group.role("n1", "leader")
        assert await group.leader() == "n1"
        await writer.send_some("t", 10)
        writer.assert_held("t", await contents(writer.client, "t"))

    group.tell(story)


def test_a_leader_with_a_full_disk_refuses_and_hands_over(filling: NodeGroup) -> None:
    async def story() -> None:
        filling.start("n0", "n1", "n2")
        writer = Writer(filling.client())
        await writer.fill("t", 6)
        leader = await filling.leader()
        full = Path(f"{filling.store(leader)}.full")
        full.touch()

        async def has_handed_over() -> bool:
            await writer.fill("t", 1)  # its next data file cannot be made
            return (await filling.metadata(leader)).role != "leader"

        await until(has_handed_over, f"{leader} hands over")
        assert "event=disk_full is_full=True" in filling.log(leader)
        new = await filling.leader(*(name for name in filling.peers if name != leader))
        await writer.fill("t", 20)
        behind = await filling.metadata(leader)
        ahead = await filling.metadata(new)
        assert behind.end_index < ahead.committed_index

        full.unlink()
        await filling.caught_up(leader)
        assert "event=disk_full is_full=False" in filling.log(leader)
        found = await contents(writer.client, "t", member=leader)
        writer.assert_held("t", found)
        # It votes and stores again: with another member dead nothing goes without it.
        filling.kill(next(name for name in filling.peers if name not in (leader, new)))
        await writer.send_some("t", 5)
        filling.stop(leader, new)

    filling.tell(story)


def test_a_group_of_full_disks_refuses_definitely_and_recovers(filling: NodeGroup) -> None:
    async def story() -> None:
        filling.start("n0", "n1", "n2")
        writer = Writer(filling.client(timeout_s=3.0))
        await writer.fill("t", 6)
        for name in filling.peers:  # one that still starts may end of a full disk
            await filling.caught_up(name)
        for name in filling.peers:
            Path(f"{filling.store(name)}.full").touch()

        async def is_full() -> bool:
            await writer.fill("t", 1)
            logs = [filling.log(name) for name in filling.peers]
            return all("event=disk_full is_full=True" in log for log in logs)

        await until(is_full, "all disks are full")
        unknown, refused = len(writer.unknown), writer.refused
        assert [await writer.try_send("t") for _ in range(4)] == [None] * 4
        assert len(writer.unknown) == unknown
        assert writer.refused == refused + 4
        for name in filling.peers:
            assert filling.processes[name].poll() is None, "a full disk ends no node"
        for name in filling.peers:
            Path(f"{filling.store(name)}.full").unlink()
        await writer.send_some("t", 20)
        for name in filling.peers:
            await filling.caught_up(name)
            writer.assert_held("t", await contents(writer.client, "t", member=name))

    filling.tell(story)


def test_a_leader_that_hears_nobody_steps_down(group: NodeGroup) -> None:
    """It still reaches the others: heartbeats and entries go out, nothing comes back."""
    upstreams = {name: Address(HOST, port) for name, port in group.peer_ports.items()}
    network = ProxyNetwork(upstreams)
    group.reach = lambda a, b: (HOST, network.address(a, b).port)

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            group.start("n0", "n1", "n2")
            writer = Writer(group.client())
            await writer.send_some("t", 20)
            for _ in range(STORIES_MAX):
                old = await group.leader()
                others = [name for name in group.peers if name != old]
                term = (await group.metadata(old)).term
                alone = Writer(group.client(old, timeout_s=5.0))
                cut = network.cut([(name, old) for name in others])
                assert await alone.try_send("lonely") is None
                if alone.unknown:
                    break  # else it had stepped down before it was asked
                network.heal(cut, "deliver")
            assert len(alone.unknown) == 1, "neither done nor undone"
            assert (await group.role(old, "follower", "candidate")).term >= term
            assert await alone.try_send("lonely") is None
            assert len(alone.unknown) == 1, "refused definitely by one that leads no more"

            writer.client = group.client(*others)
            await writer.send_some("t", 20)
            new = await group.leader(*others)
            assert (await group.metadata(new)).term > term
            assert network.held(cut)["bytes"] > 0

            network.heal(cut, "deliver")
            await group.caught_up(old)
            client = group.client()
            for topic, sender in (("t", writer), ("lonely", alone)):
                found = await contents(client, topic)
                sender.assert_held(topic, found)
                assert await contents(client, topic, member=old) == found
            await writer.send_some("t", 20)
            nursery.cancel_scope.cancel()

    try:
        group.tell(story)
    finally:
        network.close()
