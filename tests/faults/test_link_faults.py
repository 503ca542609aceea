"""Faults of links against a world in memory: what they draw, prove and undo."""

from __future__ import annotations

import json
from functools import partial
from random import Random

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from memory_world import MemoryWorld

from shaketable.harness import discovery
from shaketable.harness.campaigns.campaign import Campaign
from shaketable.harness.contracts.capabilities import NETWORK, LinkShape, family_of
from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.promises import FAULTS_OF_LINKS
from shaketable.harness.faults import beside_group, grudges, network
from shaketable.harness.runtime import availability

SHAPED = sorted(FAULTS_OF_LINKS - {"partition", "flap", "name-server-links", "client-links"})
PACKETS = {"loss", "duplicate", "reorder", "corrupt"}


def group(size: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(size))


def aimed(fault, seed: int, nodes: tuple[str, ...], turn: int = 0, leader: str | None = "n1"):
    return fault.aim(json.loads(json.dumps(fault.plan(Random(seed), nodes, turn))), nodes, leader)


def test_all_faults_of_links_are_of_one_family_and_promised_by_the_group():
    found = {
        name for name, fault in discovery.find("faults").items() if family_of(fault) == NETWORK
    }
    assert found == FAULTS_OF_LINKS
    assert discovery.get("targets", "dledger").promises.durable_under >= found


@pytest.mark.parametrize("name", SHAPED)
@given(seed=st.integers(), size=st.integers(2, 7), turn=st.integers(0, 3))
def test_a_shaped_link_bites_is_told_and_is_undone_once(name, seed, size, turn):
    fault, nodes = discovery.get("faults", name), group(size)
    plan = aimed(fault, seed, nodes, turn, nodes[-1])
    assert fault.needs == LinkShape(**plan["link_shape"]).capabilities
    assert all(set(link) & set(plan["victims"]) for link in plan["links"])
    assert plan["links"]
    assert fault.describe(plan)

    async def scenario() -> None:
        world = MemoryWorld(nodes)
        undo = json.loads(json.dumps(await fault.apply(plan, world)))
        assert not world.is_whole
        assert (await fault.probe(plan, undo, world)).took_effect
        world.traffic = False
        nothing = await fault.probe(plan, undo, world)
        assert not nothing.took_effect
        assert nothing.what
        await fault.undo(undo, world)
        assert world.is_whole
        done = list(world.log)
        await fault.undo(undo, world)
        assert world.log == done

    trio.run(scenario)


def test_a_delay_far_below_what_was_asked_did_not_bite():
    fault = discovery.get("faults", "delay")
    shape = LinkShape(delay_ms=80)
    felt = {"delayed": 5, "delay_ms_mean": 79.0, "chunks": 5, "bytes": 10}
    assert fault.judge(shape, felt)[0]
    assert not fault.judge(shape, {**felt, "delay_ms_mean": 9.0})[0]


def test_half_open_connections_that_nobody_wrote_into_did_not_bite():
    judge = discovery.get("faults", "half-open").judge
    assert judge(LinkShape(), {"half_open": 2, "unread": 40})[0]
    assert not judge(LinkShape(), {"half_open": 2, "unread": 0})[0]
    assert not judge(LinkShape(), {"half_open": 0, "unread": 0})[0]


def test_what_only_packets_have_is_lacking_among_streams_and_said_so():
    choice = availability.choose(Campaign(faults=(*SHAPED, "flap", "partition")))
    assert choice.unavailable.keys() == PACKETS
    assert all("a TCP stream" in why for why in choice.unavailable.values())


class NamedWorld(MemoryWorld):
    """One beside whose nodes a name server runs."""

    name_servers = ("ns0",)

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__((*nodes, *self.name_servers))


@given(seed=st.integers(), size=st.integers(1, 5), turn=st.integers(0, 3))
def test_links_to_name_servers_are_struck_are_told_and_are_whole_again(seed, size, turn):
    fault, nodes = beside_group.NAME_SERVER_LINKS, group(size)
    plan = aimed(fault, seed, nodes, turn, nodes[-1])
    assert "name servers" in fault.describe(plan)

    async def scenario() -> None:
        world = NamedWorld(nodes)
        undo = json.loads(json.dumps(await fault.apply(plan, world)))
        links = [link for cut in world.cuts.values() for link in cut]
        links += [link for shaped, _ in world.shapes.values() for link in shaped]
        assert links
        assert all("ns0" in link and set(link) & set(plan["victims"]) for link in links)
        assert (await fault.probe(plan, undo, world)).took_effect
        await fault.undo(undo, world)
        assert world.is_whole
        done = list(world.log)
        await fault.undo(undo, world)
        assert world.log == done

    trio.run(scenario)


class WorldWithClients(MemoryWorld):
    """One whose clients have two connections to each node."""

    client_hosts = ("clients",)

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__((*nodes, *self.client_hosts))
        self.broken: list[str] = []

    async def break_connections(self, nodes):
        if self.traffic:
            self.broken += [node for node in nodes for _ in range(2)]

    def broken_connections(self):
        return len(self.broken)


@pytest.mark.parametrize("world_name", ["process", "sim"])
@given(seed=st.integers(), size=st.integers(1, 5), turn=st.integers(0, 3))
def test_links_to_clients_are_struck_are_told_and_are_whole_again(world_name, seed, size, turn):
    nodes = group(size)
    fault = beside_group.CLIENT_LINKS.configured({"world": world_name, "nodes": list(nodes)})
    plan = aimed(fault, seed, nodes, turn, nodes[-1])
    assert plan["how"] == "broken" or world_name == "sim"
    assert "clients" in fault.describe(plan)

    async def scenario() -> None:
        world = WorldWithClients(nodes)
        await world.break_connections(nodes[:1])  # by another fault, before
        undo = json.loads(json.dumps(await fault.apply(plan, world)))
        assert world.is_whole is (plan["how"] == "broken")
        assert (await fault.probe(plan, undo, world)).took_effect
        assert set(world.broken[2:]) == set(plan["victims"] if plan["how"] == "broken" else ())
        await fault.undo(undo, world)
        assert world.is_whole

    trio.run(scenario)


def test_connections_are_broken_again_and_again():
    nodes = group(3)
    plan = {"how": "broken", "every_ms": 2.0, "seed": "1", "victims": ["n1"], "order": list(nodes)}

    async def scenario(*, is_idle: bool) -> int:
        world = WorldWithClients(nodes)
        world.traffic = not is_idle
        undo = await beside_group.CLIENT_LINKS.apply(plan, world)
        with trio.move_on_after(0.5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beside_group.CLIENT_LINKS.act, plan, undo, world, print)
                while world.broken_connections() < 8:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        evidence = await beside_group.CLIENT_LINKS.probe(plan, undo, world)
        assert evidence.took_effect is not is_idle
        return int(evidence.measures["connections"])

    assert trio.run(partial(scenario, is_idle=False)) >= 8
    assert trio.run(partial(scenario, is_idle=True)) == 0


def test_of_a_half_open_connection_one_side_is_not_told():
    plans = [beside_group.NAME_SERVER_LINKS.plan(Random(n), group(3), 1) for n in range(200)]
    halves = [plan for plan in plans if plan["link_shape"].get("half_open")]
    assert {plan["direction"] for plan in halves} == {"in", "out"}


@pytest.mark.parametrize(
    ("campaign", "why"),
    [
        ({"world": "process"}, "directly"),
        ({"world": "sim", "workload": "log"}, "no name server"),
    ],
)
def test_links_to_name_servers_are_where_there_are_any(campaign, why):
    choice = availability.choose(Campaign(faults=("kill", "name-server-links"), **campaign))
    assert why in choice.unavailable["name-server-links"]
    sim = {"world": "sim", "workload": "queue", "target": "multi-master"}
    choice = availability.choose(Campaign(faults=("partition", "name-server-links"), **sim))
    assert choice.faults.keys() == {"name-server-links"}, "masters talk to them"


@pytest.mark.parametrize("is_busy", [True, False])
def test_a_flapping_link_is_down_again_and_again_and_up_at_the_end(is_busy):
    nodes = group(3)
    plan = {**aimed(network.FLAP, 1, nodes), "down_ms": 5, "up_ms": 5}
    noted: list[int] = []

    async def scenario() -> None:
        world = MemoryWorld(nodes)
        world.traffic = is_busy
        undo = await network.FLAP.apply(plan, world)
        once = await network.FLAP.probe(plan, undo, world)
        assert not once.took_effect, "once down is a partition"
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    network.FLAP.act,
                    plan,
                    undo,
                    world,
                    lambda undo: noted.append(len(undo["cuts"])),
                )
                while len(world.cuts) < 4:
                    await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        assert noted[:2] == [1, 1], "the ledger holds the cut that is open, not all there were"
        evidence = await network.FLAP.probe(plan, undo, world)
        assert evidence.took_effect is is_busy
        assert evidence.measures["flaps"] == len(world.cuts)
        await network.FLAP.undo(undo, world)
        assert world.is_whole

    trio.run(scenario)


def test_victims_say_whom_a_partition_parts_from_the_others():
    nodes = group(5)
    fault = network.PARTITION.configured({"victims": ["minority"], "nodes": list(nodes)})
    plan = aimed(fault, 3, nodes)
    assert len({a for a, _ in plan["links"]}) == 5
    assert sorted(fault.taken_out(plan, nodes)) == sorted(plan["order"][:2])
    with pytest.raises(UsageError, match="partition can strike"):
        network.PARTITION.configured({"victims": ["all"], "nodes": list(nodes)})


def test_what_a_partition_takes_out_is_who_does_not_hear_the_most_others_directly():
    nodes = group(5)
    assert grudges.parted(nodes, []) == ()
    assert grudges.parted(nodes, grudges.deaf(nodes, "n2")) == ("n2",)
    assert grudges.parted(nodes, [("n0", "n1")]) == ("n1",)
    assert grudges.parted(group(3), [("n0", "n1"), ("n1", "n0")]) == ("n1",)
    assert grudges.parted(nodes, grudges.bridge(nodes, nodes[:2], "n2", nodes[3:])) == nodes[3:]
    assert len(grudges.parted(nodes, grudges.majorities_ring(nodes, nodes))) == 3
    halves = grudges.components(nodes, [["n0", "n4"], ["n1", "n2", "n3"]])
    assert grudges.parted(nodes, halves) == ("n0", "n4")
    assert grudges.parted(nodes, grudges.each_alone(nodes, nodes)) == ("n1", "n2", "n3", "n4")


def test_a_partition_that_must_spare_a_node_leaves_its_links():
    nodes = group(3)
    plan = aimed(network.PARTITION, 1, nodes)  # isolates n1
    assert network.PARTITION.narrowed(plan, nodes, ["n1"]) is None
    less = network.PARTITION.narrowed(plan, nodes, ["n0"])
    assert {tuple(link) for link in less["links"]} == {("n1", "n2"), ("n2", "n1")}


def test_primaries_are_all_that_lead_a_group():
    nodes = group(4)

    class TwoGroups(MemoryWorld):
        async def leader(self, order=()):
            return next((node for node in order if node in ("n0", "n2")), "n2")

    async def scenario() -> None:
        world = TwoGroups(nodes)
        plan = {"shape": "primaries", "order": list(nodes), "heal": "reset"}
        await network.PARTITION.apply(network.PARTITION.aim(plan, nodes, "n2"), world)
        assert sorted(world.closed_links) == sorted(grudges.each_alone(nodes, ["n0", "n2"]))

    trio.run(scenario)
