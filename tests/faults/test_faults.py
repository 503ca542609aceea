"""The faults against a world in memory: each undoes itself exactly, and no other."""

from __future__ import annotations

import json
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_world import MemoryWorld

from shaketable.harness import discovery
from shaketable.harness.contracts.plugins import Fault
from shaketable.harness.faults import grudges, network, process

FAULTS: dict[str, Fault] = {
    "kill": process.KILL,
    "pause": process.PAUSE,
    "partition": network.PARTITION,
}
NAMES = st.sampled_from(sorted(FAULTS))


def group(size: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(size))


def aimed(name: str, seed: int, nodes: tuple[str, ...], turn: int, leader: str | None):
    plan = json.loads(json.dumps(FAULTS[name].plan(Random(seed), nodes, turn)))
    return FAULTS[name].aim(plan, nodes, leader)


def test_the_faults_are_found_as_plug_ins():
    assert FAULTS.items() <= discovery.find("faults").items()


@given(name=NAMES, seed=st.integers(), size=st.integers(2, 9), turn=st.integers(0, 5))
def test_plans_are_json_and_repeatable_and_aimed_without_side_effects(name, seed, size, turn):
    nodes = group(size)
    fault = FAULTS[name]
    plan = fault.plan(Random(seed), nodes, turn)
    assert plan == json.loads(json.dumps(plan)) == fault.plan(Random(seed), nodes, turn)
    before = json.dumps(plan)
    for leader in (None, *nodes):
        target = fault.aim(plan, nodes, leader)
        assert target == json.loads(json.dumps(target))
        assert fault.describe(target)
        if turn == 0 and leader is not None:
            assert f"leader {leader}" in fault.describe(target)
    assert json.dumps(plan) == before
    assert fault.describe(plan)


@given(
    name=NAMES, seed=st.integers(), size=st.integers(2, 9), turn=st.integers(0, 3), data=st.data()
)
def test_a_fault_bites_and_undoes_itself_exactly_once(name, seed, size, turn, data):
    nodes = group(size)
    world = MemoryWorld(nodes, data.draw(st.sampled_from([None, *nodes])))
    fault = FAULTS[name]

    async def scenario() -> None:
        plan = aimed(name, seed, nodes, turn, world.leads)
        undo = json.loads(json.dumps(await fault.apply(plan, world)))
        assert not world.is_whole
        evidence = await fault.probe(plan, undo, world)
        assert evidence.took_effect
        assert evidence.what
        await fault.undo(undo, world)
        assert world.is_whole
        done = list(world.log)
        await fault.undo(undo, world)
        assert world.log == done, "the second undo did something"

    trio.run(scenario)


async def overlap(first: Fault, second: Fault, plans, world: MemoryWorld) -> None:
    """Apply both; undo the first: what the second did must stand until its own undo."""
    undos = [
        await fault.apply(plan, world) for fault, plan in zip((first, second), plans, strict=True)
    ]
    seconds_own = await state_held_by(second, undos[1], world)
    await first.undo(undos[0], world)
    assert await state_held_by(second, undos[1], world) == seconds_own, "healed by another's undo"
    await second.undo(undos[1], world)
    await first.undo(undos[0], world)
    assert world.is_whole


async def state_held_by(fault: Fault, undo, world: MemoryWorld):
    if fault.name == "partition":
        return frozenset(world.cuts[undo["cut"]]) <= world.closed_links
    struck = {node: number for node, number in undo["incarnations"].items() if number != -1}
    if fault.name == "kill":
        return struck.keys() & world.dead
    return {node for node, number in struck.items() if world.is_paused(node)}


@given(
    names=st.tuples(NAMES, NAMES),
    seeds=st.tuples(st.integers(), st.integers()),
    turns=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    size=st.integers(2, 5),
)
def test_no_fault_heals_another(names, seeds, turns, size):
    nodes = group(size)
    world = MemoryWorld(nodes, "n0")
    plans = [aimed(n, s, nodes, t, "n0") for n, s, t in zip(names, seeds, turns, strict=True)]
    trio.run(overlap, FAULTS[names[0]], FAULTS[names[1]], plans, world)


def test_planted_bug_a_kill_that_claims_a_dead_node_is_caught():
    nodes = group(3)
    plan = aimed("kill", 1, nodes, 0, "n0")
    with pytest.raises(AssertionError, match="healed by another's undo"):
        trio.run(overlap, process.KILL, process.KILL, [plan, plan], CountsEveryKill(nodes))
    trio.run(overlap, process.KILL, process.KILL, [plan, plan], MemoryWorld(nodes))


class CountsEveryKill(MemoryWorld):
    """Answers a kill of a dead node with its incarnation, as a careless world would."""

    async def kill(self, node: str):
        await super().kill(node)
        return {"incarnation": self.incarnations[node]}


def test_no_effect_is_said_so():
    nodes = group(3)

    async def scenario() -> None:
        world = MemoryWorld(nodes, "n0")
        world.traffic = False
        for name, fault in FAULTS.items():
            world.dead = set() if name == "partition" else set(nodes)
            plan = aimed(name, 1, nodes, 0, "n0")
            undo = await fault.apply(plan, world)
            assert not (await fault.probe(plan, undo, world)).took_effect
            await fault.undo(undo, world)
        assert "restart n0" not in world.log

    trio.run(scenario)


@pytest.mark.parametrize("name", ["kill", "pause"])
def test_a_half_applied_fault_undoes_its_half(name: str):
    nodes = group(5)

    class Stumbling(MemoryWorld):
        async def strike(self, node):
            if node == "n3":
                raise OSError("no such luck")
            return await getattr(MemoryWorld, name)(self, node)

    world = Stumbling(nodes)
    setattr(world, name, world.strike)
    plan = {"variant": "minority", "order": list(nodes), "victims": ["n1", "n3"], "leader": None}
    with pytest.raises(OSError, match="no such luck"):
        trio.run(FAULTS[name].apply, plan, world)
    assert world.is_whole
    assert world.log[0] == f"{name} n1"


@pytest.mark.parametrize("size", range(2, 10))
def test_each_shape_of_partition_cuts_something_in_the_groups_it_is_drawn_for(size: int):
    nodes = group(size)
    for shape in grudges.shapes_for(size):
        plan = {"shape": shape, "order": list(reversed(nodes)), "heal": "deliver"}
        links = network.PARTITION.aim(plan, nodes, "n1")["links"]
        assert links, shape
        assert len(links) < size * (size - 1) or size == 2 or shape == "shattered", shape


def test_one_way_shapes_cut_one_way():
    nodes = group(3)
    order = list(nodes)

    def links(shape: str):
        plan = {"shape": shape, "order": order, "heal": "deliver"}
        return {tuple(link) for link in network.PARTITION.aim(plan, nodes, "n1")["links"]}

    assert links("leader-deaf") == {("n0", "n1"), ("n2", "n1")}
    assert links("leader-mute") == {("n1", "n0"), ("n1", "n2")}
    assert links("one-way") == {("n0", "n1")}
    assert links("isolate-leader") == links("leader-deaf") | links("leader-mute")


@pytest.mark.parametrize("size", [3, 4, 5, 7])
@pytest.mark.parametrize("shape", ["bridge", "one-way"])
def test_a_partition_cuts_links_of_the_leader_since_followers_talk_to_it_alone(
    shape: str, size: int
):
    nodes = [f"n{number}" for number in range(size)]
    for turn in range(20):
        order = Random(turn).sample(nodes, size)
        plan = {"shape": shape, "order": order, "heal": "reset"}
        for leader in nodes:
            links = network.PARTITION.aim(plan, nodes, leader)["links"]
            assert any(leader in link for link in links), (order, leader)
