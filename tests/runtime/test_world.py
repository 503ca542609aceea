"""The world of processes keeps the contract of World: exact, idempotent, by incarnation."""

from __future__ import annotations

import json
import socket
from contextlib import asynccontextmanager

import pytest
import trio
from fake_target import FakeTarget
from process_group import NODES, process_group, ready

from shaketable.harness.contracts.errors import HarnessError, IndefiniteError
from shaketable.harness.contracts.plugins import UNTOUCHED
from shaketable.harness.runtime.processes import ports

pytestmark = pytest.mark.e2e


@asynccontextmanager
async def group(tmp_path):
    async with process_group(tmp_path, FakeTarget(), {}) as (world, members):
        clients = {node: member.layout.client_address for node, member in members.items()}
        yield world, clients, members


def test_kill_and_restart_by_incarnation(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, members):
            assert await world.leader() == "n0"
            assert await world.kill("n0") == {"incarnation": 1}
            assert await world.kill("n0") == {"incarnation": UNTOUCHED}
            assert await world.pause("n0") == {"incarnation": UNTOUCHED}
            assert not world.is_alive("n0", 1)
            await world.restart("n0", UNTOUCHED)
            await world.restart("n0", 2)
            assert not world.is_running("n0")
            await world.restart("n0", 1)
            await world.restart("n0", 1)
            assert members["n0"].process.incarnation == 2
            assert world.is_alive("n0", 2)
            assert not world.is_alive("n0", 1)
            await ready(world)
            assert world.exits == []

    trio.run(main)


def test_pause_is_not_ended_by_another_and_survives_nothing(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            assert await world.pause("n1") == {"incarnation": 1}
            assert await world.pause("n1") == {"incarnation": UNTOUCHED}
            await world.resume("n1", UNTOUCHED)
            assert world.is_paused("n1")
            assert await world.kill("n1") == {"incarnation": 1}
            await world.restart("n1", 1)
            await world.resume("n1", 1)
            assert world.is_alive("n1", 2)
            assert await world.pause("n2") == {"incarnation": 1}
            await world.resume("n2", 1)
            await world.resume("n2", 1)
            await ready(world)

    trio.run(main)


def test_a_cut_moves_the_leader_and_restore_finds_what_was_left(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            others = [node for node in NODES if node != "n0"]
            cut = await world.cut([link for n in others for link in ((n, "n0"), ("n0", n))])
            while await world.leader() != "n1":
                await trio.sleep(0.02)
            assert world.held(cut)["bytes"] > 0
            await world.pause("n2")
            await world.kill("n1")
            assert world.restore() == (
                f"{cut} was not healed",
                "node n2 was still paused",
                "node n1 was down: started again",
            )
            await ready(world)
            assert world.restore() == ()

    trio.run(main)
    rows = [json.loads(line) for line in (tmp_path / "status.jsonl").read_text().splitlines()]
    assert {"n0", "n1"} <= {row["node"] for row in rows if row["role"] == "leader"}


def test_leadership_goes_to_whom_it_is_transferred(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            answer = await world.transfer("n2")
            assert answer["took_ms"] > 0
            assert (answer["from"], answer["error"]) == ("n0", None)
            while await world.leader() != "n2":
                await trio.sleep(0.02)
            assert await world.transfer("n2") == {"from": "n2", "took_ms": None, "error": None}
            await world.kill("n1")
            await trio.sleep(1)  # until n2 no longer counts n1 among the living
            refused = await world.transfer("n1")
            assert (refused["took_ms"], refused["error"]) == (None, "n1 cannot be reached")

    trio.run(main)


def test_a_group_without_a_leader_transfers_nothing(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            for node in NODES:
                await world.kill(node)
            assert await world.transfer("n1") == {"from": None, "took_ms": None, "error": None}

    trio.run(main)


def test_a_port_taken_while_its_node_was_down_is_named(tmp_path):
    async def main():
        async with group(tmp_path) as (world, clients, _members):
            await world.kill("n1")
            with socket.socket() as thief:
                thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                thief.bind((ports.HOST, clients["n1"].port))
                thief.listen()
                await world.restart("n1", 1)
                await trio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        trio.run(main)
    assert caught.group_contains(
        HarnessError, match=r"port \d+ for the clients of node n1 is in use by another process"
    )


class Disks:
    """Two nodes wait for their disks; one of them has caught up meanwhile."""

    def __init__(self):
        self.awaited = {"n1", "n2"}

    def why_not_wiped(self, _node):
        return None

    async def readmit(self, node):
        await trio.lowlevel.checkpoint()
        if node == "n1":
            raise IndefiniteError("not in time")
        self.awaited.discard(node)


def test_no_disk_is_lost_while_what_reads_logs_is_compiled(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            kept, world._disks = world._disks, Disks()
            world._logs.is_warming_up = True
            assert world.why_not_wiped("n1") == "what reads its log is still being compiled"
            world._logs.is_warming_up = False
            assert world.why_not_wiped("n1") is None
            world._disks = kept

    trio.run(main)


def test_a_node_that_lost_its_disk_is_not_started_as_it_was(tmp_path):
    """A power loss may kill it in the same moment, and starts later what it struck."""

    async def main():
        async with group(tmp_path) as (world, _, _members):
            killed = await world.kill("n1")
            world._disks.lost.add("n1")
            await world.restart("n1", killed["incarnation"])
            assert not world.is_alive("n1", killed["incarnation"] + 1)
            world._disks.lost.discard("n1")
            await world.restart("n1", killed["incarnation"])
            assert world.is_alive("n1", killed["incarnation"] + 1)
            await ready(world)

    trio.run(main)


class LosesDisksAndMembers(FakeTarget):
    """Nodes may lose their disks while no other is missing; members may go."""

    def why_no_disk_may_go(self, nodes): ...

    def why_not_now(self, node, missing):
        return ", ".join(missing) or None

    def store(self, layout): ...

    async def renew(self, layouts, node, lost): ...

    async def readmit(self, layouts, node, lost, timeout_s): ...

    def why_no_member_may_go(self, nodes): ...

    async def remove_member(self, layouts, node, timeout_s):
        raise AssertionError("it is asked")

    async def add_member(self, layouts, node, timeout_s): ...


def test_while_a_node_is_killed_for_its_disk_no_other_loses_its_own_or_leaves(tmp_path):
    """Or a group of three is left with one: such a healthy run was UNKNOWN."""

    async def main():
        async with process_group(tmp_path, LosesDisksAndMembers(), {}) as (world, _):
            assert world.why_not_wiped("n0") is None
            world._disks.lost.add("n1")
            assert world.why_not_wiped("n0") == "n1"
            assert world.why_not_wiped("n1") == "it does not run"
            answer = await world.remove_member("n0")
            assert answer["error"] == "n1 is not back yet"
            world._disks.lost.discard("n1")

    trio.run(main)


def test_a_node_that_caught_up_late_has_its_disk_back(tmp_path):
    async def main():
        async with group(tmp_path) as (world, _, _members):
            kept, world._disks = world._disks, Disks()
            assert world.restore() == ()
            assert await world.restore_disks(5) == ("node n1 never got its disk back",)
            world._disks = kept
            assert await world.restore_disks(5) == ()

    trio.run(main)
