"""The fault that takes a node's disk: silent first, then dead, then back with nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing
from memory_world import MemoryWorld

from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Address, NodeLayout
from shaketable.harness.faults.disk import Wipe
from shaketable.harness.runtime import availability
from shaketable.harness.targets import dledger, dledger_members
from shaketable.system.node.config import parse

NODES = ("n0", "n1", "n2")
FAULT = Wipe()


def aimed(turn: int = 0, leader: str | None = "n1"):
    plan = json.loads(json.dumps(FAULT.plan(Random(7), NODES, turn)))
    return FAULT.aim(plan, NODES, leader)


def play(scenario, world: MemoryWorld) -> None:
    trio.run(scenario, world, clock=trio.testing.MockClock(autojump_threshold=0))


def test_the_victim_is_silent_then_dead_and_what_it_had_sent_is_lost_with_it():
    async def scenario(world: MemoryWorld) -> None:
        plan = aimed()
        assert FAULT.describe(plan) == "wipe leader n1"
        undo = json.loads(json.dumps(await FAULT.apply(plan, world)))
        assert world.log == ["cut-0", "kill n1", "wipe n1", "heal cut-0"]
        assert set(world.cuts["cut-0"]) == {("n1", "n0"), ("n1", "n2")}
        assert world.healed == {"cut-0": "reset"}
        evidence = await FAULT.probe(plan, undo, world)
        assert evidence.took_effect
        assert evidence.what == "n1 lost its disk: 7 messages, 4,096 bytes in 2 files"
        assert evidence.measures == {"files": 2, "bytes": 4096, "messages": 7}
        await FAULT.undo(undo, world)
        assert world.is_whole
        done = list(world.log)
        await FAULT.undo(undo, world)
        assert world.log == done, "the second undo did something"

    play(scenario, MemoryWorld(NODES, "n1"))


def test_no_disk_goes_while_another_node_is_not_back():
    async def scenario(world: MemoryWorld) -> None:
        await world.kill("n2")
        plan = aimed()
        undo = await FAULT.apply(plan, world)
        evidence = await FAULT.probe(plan, undo, world)
        assert not evidence.took_effect
        assert evidence.what == "n1 kept its disk: n2 is not back yet"
        await FAULT.undo(undo, world)
        assert world.log == ["kill n2"]

    play(scenario, MemoryWorld(NODES, "n1"))


def test_whoever_ends_the_wait_mends_the_cut():
    async def scenario(world: MemoryWorld) -> None:
        with trio.move_on_after(0.01):
            await FAULT.apply(aimed(), world)
        assert world.log == ["cut-0", "heal cut-0"]
        assert world.is_whole

    play(scenario, MemoryWorld(NODES, "n1"))


def test_it_is_there_in_every_world_and_not_for_groups_that_keep_no_quorum():
    for world in ("process", "netns", "sim"):
        assert list(availability.choose(Campaign(world=world, faults=("wipe",))).faults) == ["wipe"]
    with pytest.raises(UsageError, match="a group of 2 keeps no quorum without one of them"):
        availability.choose(Campaign(nodes=2, faults=("wipe",)))
    assert set(availability.choose(Campaign(faults=("kill", "wipe"))).faults) == {"kill", "wipe"}


def test_ids_of_members_say_which_node_they_are():
    seen = set()
    for node in NODES:
        for generation in range(4):
            member = dledger_members.member_of(node, generation, 3)
            assert dledger_members.node_of(member, 3) == node
            seen.add(member)
    assert len(seen) == 12
    assert dledger_members.member_of("n1", 0, 3) == "n1"


def test_a_node_without_its_disk_comes_back_as_a_member_that_joins(tmp_path: Path):
    at = Address("127.0.0.1", 2000)
    layouts = {
        node: NodeLayout(
            node,
            tmp_path / node,
            Address("127.0.0.1", 1000 + number),
            Address("127.0.0.1", 1100 + number),
            {other: Address("127.0.0.1", 1200 + 10 * number + n) for n, other in enumerate(NODES)
             if other != node},
            {"spares": True},
            (at,),
        )
        for number, node in enumerate(NODES)
    }  # fmt: skip
    target = dledger.DLedgerTarget()
    launches = {node: target.prepare(layout) for node, layout in layouts.items()}
    first = parse(launches["n0"].files["broker.conf"])
    assert not first.is_joining
    assert first.reach["n4"] == first.peers["n1"] == ("127.0.0.1", 1201)
    assert first.name_servers == (("127.0.0.1", 2000),)
    renewed = trio.run(target.renew, layouts, "n1", {"n1": 1})
    assert list(renewed) == ["n1"]
    again = parse(renewed["n1"].files["broker.conf"])
    assert again.is_joining
    assert (again.self_id, again.broker_id) == ("n4", 5)
    assert again.peers["n4"] == ("127.0.0.1", 1101)
    assert again.peers["n0"] == ("127.0.0.1", 1210)
