"""Faults of name servers: each way, of one or all, on a world in memory and in a simulated one."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from memory_world import MemoryWorld

from shaketable.harness.campaigns.campaign import Campaign, node_names
from shaketable.harness.faults import beside_group
from shaketable.harness.runtime import availability
from shaketable.harness.runtime.rig import beside_nodes
from shaketable.harness.runtime.simulated.run import new_group
from shaketable.harness.targets.simulated_group import CLIENTS, BrokerGroup

NODES = ("n0", "n1")
SERVERS = ("ns0", "ns1")


class World(MemoryWorld):
    name_servers = SERVERS
    name_server_peers = (*NODES, "clients")

    def __init__(self) -> None:
        super().__init__((*NODES, *SERVERS, "clients"))


def plan(how: str, whom: str) -> dict[str, object]:
    return {"how": how, "whom": whom, "which": 0.7, "heal": "reset"}


@pytest.mark.parametrize("whom", ["one", "all"])
@pytest.mark.parametrize("how", ["kill", "pause", "cut"])
def test_name_servers_are_struck_and_nodes_are_not(how: str, whom: str) -> None:
    fault = beside_group.NAME_SERVERS

    async def scenario() -> None:
        world = World()
        aimed = fault.aim(plan(how, whom), NODES, "n0")
        undo = await fault.apply(aimed, world)
        struck = {"ns1"} if whom == "one" else {*SERVERS}
        assert (world.dead, world.paused) == (
            struck if how == "kill" else set(),
            struck if how == "pause" else set(),
        )
        cut = {link for links in world.cuts.values() for link in links}
        ends = [*NODES, "clients"]
        both = {
            (a, b) for server in struck for end in ends for a, b in [(server, end), (end, server)]
        }
        assert cut == (both if how == "cut" else set())
        assert (await fault.probe(aimed, undo, world)).took_effect
        await fault.undo(undo, world)
        assert world.is_whole

    trio.run(scenario)


def test_the_first_is_a_kill_and_a_cut_comes_where_links_can_be_cut() -> None:
    drawn = {
        world: [
            beside_group.NAME_SERVERS.configured({"world": world}).plan(Random(seed), NODES, seed)
            for seed in range(60)
        ]
        for world in ("sim", "process")
    }
    assert drawn["sim"][0]["how"] == drawn["process"][0]["how"] == "kill"
    assert {each["how"] for each in drawn["sim"]} == {"kill", "pause", "cut"}
    assert {each["how"] for each in drawn["process"]} == {"kill", "pause"}
    assert {each["whom"] for each in drawn["sim"]} == {"one", "all"}


def test_two_run_where_one_of_them_is_struck() -> None:
    struck = Campaign(target="multi-master", workload="queue", faults=("kill", "name-servers"))
    assert beside_nodes(struck) == SERVERS
    left_alone = Campaign(target="multi-master", workload="queue", faults=("kill",))
    assert beside_nodes(left_alone) == SERVERS[:1]
    none = Campaign(workload="log", faults=("kill", "name-servers"))
    assert beside_nodes(none) == ()
    assert "no name server" in availability.choose(none).unavailable["name-servers"]


def test_a_simulated_name_server_is_killed_paused_and_started_anew(tmp_path: Path) -> None:
    campaign = Campaign(
        world="sim", target="multi-master", workload="queue", faults=("name-servers",)
    )
    group = new_group(campaign)
    assert isinstance(group, BrokerGroup)
    assert set(group.addresses) == {*node_names(campaign), *SERVERS}
    assert group.clients_host == CLIENTS.host
    seen: list[tuple[bool, bool, int]] = []

    def look() -> None:
        seen.append((group.is_running("ns0"), group.is_paused("ns0"), group.incarnation("ns0")))

    async def main() -> None:
        await trio.sleep(0.1)
        look()
        group.pause("ns0")
        look()
        group.resume("ns0")
        group.kill("ns0")
        look()
        await trio.sleep(0.1)
        group.start("ns0")
        look()
        await trio.sleep(0.1)

    group.run(main)
    assert seen == [(True, False, 1), (True, True, 1), (False, False, 1), (True, False, 2)]
    assert group.problems() == ()
    group.save("ns0", tmp_path)
    said = (tmp_path / "node.log").read_text()
    assert "incarnation 1 killed" in said
    assert "incarnation 2 starts" in said
