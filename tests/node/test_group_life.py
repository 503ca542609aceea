"""The life of a group of real processes: members wiped, replaced, behind the retained log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from shaketable.system.client.connection import OutcomeUnknownError, RefusedError
from shaketable.system.client.group import Metadata
from tests.support.node_group import NodeGroup, Writer, contents, queue_range, repeat_read, until

pytestmark = pytest.mark.e2e

SOON_EXPIRED = {"shaketableReservedMs": "300"}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", "n2")
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[NodeGroup]:
    nodes = NodeGroup(tmp_path, "n0", "n1", shaketableDisk="volatile")
    try:
        yield nodes
    finally:
        nodes.close()


async def assert_serves_what_the_leader_has(group: NodeGroup, name: str, *topics: str) -> None:
    """A member's committed reads are those of the leader, over all that the leader retains."""
    await group.caught_up(name)
    leader = await group.leader()
    client = group.client()
    for topic in topics:
        there = await contents(client, topic, member=leader)
        assert there == await contents(client, topic), f"the leader's committed reads of {topic}"
        assert await contents(client, topic, member=name) == there
        assert await queue_range(client, name, topic) == await queue_range(client, leader, topic)


def test_a_wiped_node_comes_back_under_a_new_id_and_votes(group: NodeGroup) -> None:
    async def story() -> None:
        group.start("n0", "n1", "n2")
        writer = Writer(group.client())
        await writer.send_some("t", 30)
        group.kill("n2")
        group.wipe("n2")
        await writer.send_some("t", 30)

        group.join("n3")
        assert (await group.metadata("n3")).voters == ()
        admin = group.admin("n0", "n1")
        await admin.add_member("n3", group.peer_address("n3"), group.client_address("n3"))
        await admin.wait_until_voter("n3", 30)
        await admin.remove_member("n2")

        await assert_serves_what_the_leader_has(group, "n3", "t")
        seen = await group.metadata("n3")
        assert (seen.voters, seen.learners) == (("n0", "n1", "n3"), ())
        # Two of n0, n1, n3 are a majority only with the vote and the disk of n3.
        dead = "n1" if await group.leader() == "n0" else "n0"
        group.kill(dead)
        writer.client = group.client("n0", "n1", "n3")
        await writer.send_some("t", 30)
        writer.assert_held("t", await contents(writer.client, "t"))
        await assert_serves_what_the_leader_has(group, "n3", "t")
        # Who is a member, and where, stands in the log now: n0 and n1 are not configured so.
        group.kill("n0" if dead == "n1" else "n1", "n3")
        group.start("n0", "n1")
        group.join("n3")
        await writer.send_some("t", 10)
        await group.caught_up("n3")
        assert (await group.metadata("n3")).voters == ("n0", "n1", "n3")
        writer.assert_held("t", await contents(group.client(), "t", member="n3"))

    group.tell(story)


@pytest.mark.parametrize("whom", ["follower", "leader"])
def test_a_member_is_replaced_while_writes_go_on(group: NodeGroup, whom: str) -> None:
    async def story() -> None:
        group.start("n0", "n1", "n2")
        admin = group.admin("n0", "n1", "n2")
        writer = Writer(admin.client)  # which learns where the new member is
        leader = await group.leader()
        old = leader if whom == "leader" else next(n for n in group.peers if n != leader)
        group.join("n3")
        async with trio.open_nursery() as nursery:
            await nursery.start(writer.keep_sending, "t")
            before = len(writer.acknowledged["t", 0])
            await admin.replace_member(
                old, "n3", group.peer_address("n3"), group.client_address("n3"), timeout_s=30
            )
            while_replacing = len(writer.acknowledged["t", 0]) - before
            group.stop(old)
            enough = len(writer.acknowledged["t", 0]) + 20

            async def has_gone_on() -> bool:
                return len(writer.acknowledged["t", 0]) >= enough

            await until(has_gone_on, "writes go on without the old member")
            nursery.cancel_scope.cancel()

        assert while_replacing > 0
        voters = (await admin.membership()).voters
        assert voters == tuple(sorted({"n0", "n1", "n2", "n3"} - {old}))
        writer.assert_held("t", await contents(admin.client, "t"))
        for name in voters:
            await assert_serves_what_the_leader_has(group, name, "t")

    group.tell(story)


async def _expire_past(group: NodeGroup, writer: Writer, index: int, *names: str) -> None:
    """Write until these nodes have forgotten entry `index`, and all begin at the same entry."""

    async def begins_behind() -> bool:
        states = [await group.metadata(name) for name in names]
        return min(state.first_index for state in states) > index + 1

    async def begin_together() -> bool:
        states = [await group.metadata(name) for name in names]
        return len({state.first_index for state in states}) == 1

    async def written_and_begins_behind() -> bool:
        await writer.fill("busy", 4)
        return await begins_behind()

    await until(written_and_begins_behind, f"entry {index} expires on {names}")
    await until(begin_together, f"{names} have expired the same")


async def _snapshot_is_installed(group: NodeGroup, name: str) -> Metadata:
    """Wait until a node stands on the leader's snapshot and has all that is behind it."""
    leader = await group.metadata(await group.leader())
    client = group.client(name)

    async def state() -> Metadata | None:
        found = await client.metadata(name)
        return found if found.snapshot_index == leader.snapshot_index else None

    found = await until(state, f"{name} has snapshot {leader.snapshot_index}")
    assert found.first_index == leader.first_index
    return found


def _fall_behind(group: NodeGroup) -> tuple[Writer, str]:
    """Leave one node dead and the others with a log that begins behind what it has.

    The topic "idle" is expired whole, "busy" but for a few of its last messages; nothing
    expires any more, and several files are retained behind the begin.
    """

    async def story() -> tuple[Writer, str]:
        group.start("n0", "n1", "n2", **SOON_EXPIRED)
        writer = Writer(group.client())
        await writer.send("idle")
        leader = await group.leader()
        lagging = next(name for name in group.peers if name != leader)
        await group.metadata(lagging)  # it may still be starting
        group.kill(lagging)
        others = [name for name in group.peers if name != lagging]
        await writer.send_some("idle", 4)
        index = (await group.metadata(await group.leader())).end_index
        await _expire_past(group, writer, index, *others)
        group.stop(*others)
        group.start(*others)
        await writer.fill("busy", 20)
        return writer, lagging

    return group.tell(story)


def test_a_node_behind_the_retained_log_gets_the_snapshot_and_what_follows(
    group: NodeGroup,
) -> None:
    writer, lagging = _fall_behind(group)

    async def story() -> None:
        group.start(lagging)
        await _snapshot_is_installed(group, lagging)
        await assert_serves_what_the_leader_has(group, lagging, "busy", "idle")
        client = group.client()
        idle = await queue_range(client, lagging, "idle")
        assert idle[0] == idle[1] > 0
        begin, end = await queue_range(client, lagging, "busy")
        assert 0 < begin < end
        files = sorted((group.store(lagging) / f"dledger-{lagging}" / "data").iterdir())
        assert len(files) > 3, "entries behind the snapshot were sent, not only the snapshot"
        writer.assert_held("busy", await contents(client, "busy", member=lagging))
        # It is a whole member again: with another one dead, writes need it.
        leader = await group.leader()
        group.kill(next(name for name in group.peers if name not in (leader, lagging)))
        writer.client = group.client(leader, lagging)
        await writer.send_some("busy", 10)
        # What it installed is there after a restart, too.
        group.kill(lagging)
        group.start(lagging)
        await assert_serves_what_the_leader_has(group, lagging, "busy", "idle")
        assert await queue_range(client, lagging, "idle") == idle

    group.tell(story)


def test_a_wiped_node_far_behind_joins_by_snapshot_and_the_snapshot_keeps_it(
    group: NodeGroup,
) -> None:
    writer, lost = _fall_behind(group)
    members = tuple(sorted({"n0", "n1", "n2", "n3"} - {lost}))

    async def story() -> None:
        group.wipe(lost)
        group.join("n3")
        admin = group.admin(*(name for name in members if name != "n3"))
        await admin.add_member("n3", group.peer_address("n3"), group.client_address("n3"))
        await admin.wait_until_voter("n3", 30)
        await admin.remove_member(lost)
        assert (await _snapshot_is_installed(group, "n3")).voters == members
        await assert_serves_what_the_leader_has(group, "n3", "busy", "idle")

        # The entries that made n3 a member expire: the snapshot alone says who belongs.
        changed_at = (await admin.membership()).membership_index
        group.stop(*members)
        group.start("n3", shaketableJoin="true", **SOON_EXPIRED)
        group.start(*(name for name in members if name != "n3"), **SOON_EXPIRED)
        writer.client = group.client(*members)
        await _expire_past(group, writer, changed_at, *members)
        group.kill(*members)
        group.join("n3")
        group.start(*(name for name in members if name != "n3"))
        await writer.send("idle")
        for name in members:
            await group.caught_up(name)
            seen = await group.metadata(name)
            assert (seen.voters, seen.membership_index) == (members, changed_at)
            assert seen.first_index > changed_at
        leader = await group.leader()
        group.kill(next(name for name in members if name not in ("n3", leader)))
        await writer.send("idle")
        writer.assert_held("idle", await contents(writer.client, "idle"))

    group.tell(story)


def test_an_expired_queue_goes_on_at_its_next_offset_after_a_snapshot(group: NodeGroup) -> None:
    writer, lagging = _fall_behind(group)

    async def story() -> None:
        group.start(lagging)
        await _snapshot_is_installed(group, lagging)
        client = writer.client = group.client()
        end = await repeat_read(lambda: client.max_offset("idle", 0))
        last = max(writer.acknowledged["idle", 0])
        assert last >= 4
        assert last < end <= last + 1 + len(writer.unknown)
        assert await repeat_read(lambda: client.min_offset("idle", 0)) == end
        # First on the node that knows the queue from the snapshot alone.
        await _lead(group, lagging)
        await writer.send("idle")
        assert client.answered_by == lagging
        assert min(await contents(client, "idle")) == end
        await _lead(group, next(name for name in group.peers if name != lagging))
        await writer.send("idle")
        found = await contents(client, "idle")
        assert min(found) == end
        writer.assert_held("idle", found)

    group.tell(story)


async def _lead(group: NodeGroup, name: str) -> None:
    """Have a node lead, by transfer."""
    admin = group.admin()

    async def leads() -> bool:
        await admin.transfer_leadership(name)
        return await group.leader() == name

    await until(leads, f"{name} leads")


def test_two_nodes_acknowledge_together_and_cannot_fail_over(pair: NodeGroup) -> None:
    async def story() -> None:
        pair.start("n0", "n1")
        writer = Writer(pair.client())
        await writer.send_some("t", 20)
        both = [await pair.metadata(name) for name in pair.peers]
        assert both[0].end_index == both[1].end_index, "an acknowledgement stands for two copies"

        for round_ in ("follower", "leader"):
            leader = await pair.leader()
            follower = next(name for name in pair.peers if name != leader)
            dead, alone = (follower, leader) if round_ == "follower" else (leader, follower)
            pair.kill(dead)
            survivor = pair.client(alone, timeout_s=1.0)
            writer.client = survivor
            outcomes = [await writer.try_send("t") for _ in range(3)]
            assert outcomes == [None] * 3, "nothing is acknowledged by one node"
            await pair.role(alone, "follower", "candidate")
            with pytest.raises((RefusedError, OutcomeUnknownError)):
                await survivor.max_offset("t", 0)
            pair.start(dead)
            writer.client = pair.client()
            await writer.send_some("t", 20)
        assert writer.refused > 0

        found = await contents(writer.client, "t")
        writer.assert_held("t", found)
        for name in pair.peers:
            await assert_serves_what_the_leader_has(pair, name, "t")

    pair.tell(story)


def test_a_leader_that_is_told_to_end_hands_over_first(group: NodeGroup) -> None:
    """Rolling restarts: its clients learn every outcome, and nobody waits for an election."""

    async def story() -> None:
        group.start("n0", "n1", "n2")
        writer = Writer(group.client())
        await writer.send_some("t", 10)
        for _ in range(2):
            leader = await group.leader()
            await trio.to_thread.run_sync(group.stop, leader)
            said = group.log(leader)
            stopping, follower = said.rindex("event=stopping"), said.rindex("role=follower")
            assert stopping < follower, "it led until it was gone"
            group.start(leader)
            await writer.send_some("t", 10)
            await group.caught_up(leader)
        writer.assert_held("t", await contents(group.client(), "t"))

    group.tell(story)
