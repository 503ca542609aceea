"""Cut links between nodes: once (partition), or again and again (flap)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import permutations
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults import grudges
from shaketable.harness.faults.victims import (
    NodeFault,
    choose_variants,
    pick_victims,
    plan_victims,
)

# Partition the network between the nodes: hold the traffic of some directed links.
#
# A cut holds bytes and delivers them when it is healed, or resets the connections that crossed it,
# as drawn. In world netns a cut drops packets, and TCP retransmits them. Clients always reach every
# node.
#
# Source: jepsen.nemesis (partition-halves, -random-node, majorities-ring, bridge) and
# jepsen.nemesis.combined `partition-package` (one, majority, majorities-ring, minority-third,
# primaries); one-way cuts as in TigerBeetle's simulator.

HEAL_MODES = ("deliver", "reset")
NODES_MIN = 2
PARTITION_VARIANTS = ("leader", "one", "minority", "minority-third", "majority", "followers")
"""The values of `victims`; "all" would cut nothing."""


class Partition:
    """Cut links between nodes: leader or some isolated, halves, ring, bridge, one-way, all."""

    name = "partition"
    family = capabilities.NETWORK
    needs = frozenset({Capability.CUT})

    def __init__(self, variants: Sequence[str] = ()) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault; with options["victims"] it isolates these from all others."""
        if not options.get("victims"):
            return self
        return Partition(
            choose_variants(self.name, PARTITION_VARIANTS, options, PARTITION_VARIANTS)
        )

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link to cut."""
        return "a group of one node has no links to cut" if len(nodes) < NODES_MIN else None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a shape, an order of the nodes and how to heal; the first isolates the leader."""
        if self._variants:
            heal = rng.choice(HEAL_MODES)
            return {
                "shape": "victims",
                "heal": heal,
                **plan_victims(rng, nodes, self._variants, index),
            }
        order = rng.sample(list(nodes), len(nodes))
        heal = rng.choice(HEAL_MODES)
        shape = rng.choice(grudges.shapes_for(len(nodes)))
        return {"shape": "isolate-leader" if index == 0 else shape, "order": order, "heal": heal}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan with the links to cut and a label; see `pick_victims`."""
        order = [node for node in plan["order"] if node in nodes]
        target = leader if leader is not None else order[0]
        role = f"leader {target}" if leader is not None else target
        if plan["shape"] == "victims":
            victims = pick_victims(plan, nodes, leader)["victims"]
            rest = [node for node in nodes if node not in victims]
            label = f"isolate {' '.join(victims)}"
            links = grudges.components(nodes, [victims, rest])
        else:
            label, links = grudges.aim_shape(plan["shape"], nodes, order, target, role)
        return {**plan, "links": [list(link) for link in links], "label": label, "leader": leader}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "isolate leader n1, held bytes delivered after"."""
        after = {"deliver": "held bytes delivered after", "reset": "connections reset after"}
        return f"{plan.get('label', plan['shape'])}, {after[plan['heal']]}"

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return the nodes outside the largest set whose members all reach each other directly."""
        return grudges.parted(nodes, [(a, b) for a, b in plan["links"]])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the links of the spared nodes."""
        links = [link for link in plan["links"] if not set(spare) & set(link)]
        return {**plan, "links": links, "label": f"{plan['label']}, in part"} if links else None

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links; with several primaries (one a group), those of all of them."""
        links = [(a, b) for a, b in plan["links"]]
        if plan["shape"] == "primaries":
            alone = [node for node in world.nodes if await world.leader((node,)) == node]
            links += [link for link in grudges.each_alone(world.nodes, alone) if link not in links]
        return {"cut": await world.cut(links), "how": plan["heal"]}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if this cut held bytes or connections."""
        held = world.held(undo["cut"])
        did = "dropped" if "packets" in held else "held"
        what = f"{did} {held['bytes']} bytes of {held['connections']} connections"
        return Evidence(held["bytes"] > 0 or held["connections"] > 0, what, dict(held))

    async def undo(self, undo: Json, world: World) -> None:
        """Heal this cut."""
        await world.heal(undo["cut"], undo["how"])


PARTITION = Partition()


# Let links between nodes flap: down for a moment, up for a moment, again and again.
#
# Each time the held bytes are delivered, or the connections reset, as drawn. The times are shorter
# than an election timeout or a little longer: leaders change often, or the group only waits.
#
# Source: HARNESSES.md section 1; jepsen.nemesis `partition!` on and off; FoundationDB's clogging.

DOWN_MS = (60, 200, 500)
UP_MS = (60, 200, 500)

FLAPS_MIN = 2
"""Down a single time is a partition."""


class Flap(NodeFault):
    """Let the links of some nodes be down and up in turns, each for a moment."""

    name = "flap"
    family = capabilities.NETWORK
    needs = frozenset({Capability.CUT})
    variants = ("leader", "one", "minority", "all")

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link."""
        return "a group of one node has no links" if len(nodes) < NODES_MIN else None

    def draw(self, rng: Random, index: int) -> Json:
        """Draw how long the links are down and up."""
        return {
            "down_ms": rng.choice(DOWN_MS),
            "up_ms": rng.choice(UP_MS),
            "heal": rng.choice(HEAL_MODES),
        }

    def describe(self, plan: Json) -> str:
        """Describe the plan: "flap links of leader n1: 200 ms down, 60 ms up"."""
        return f"{super().describe(plan)}: {plan['down_ms']} ms down, {plan['up_ms']} ms up"

    def verb(self, plan: Json) -> str:
        """Return "flap links of"."""
        return "flap links of"

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time that a few flaps take."""
        return FLAPS_MIN * (max(DOWN_MS) + max(UP_MS)) / 1e3

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links for the first time."""
        past = {"flaps": 0, "met": 0, "bytes": 0}
        return {"cuts": [await world.cut(_links(plan, world))], "how": plan["heal"], "past": past}

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Heal and cut alternately; each cut is in the ledger from its start until it is healed."""
        while True:
            await trio.sleep(plan["down_ms"] / 1e3)
            await world.heal(undo["cuts"][0], undo["how"])
            undo["past"] = _so_far(undo, world)
            undo["cuts"] = []
            await trio.sleep(plan["up_ms"] / 1e3)
            with trio.CancelScope(shield=True):  # a cut that is not in the ledger would stay
                undo["cuts"] = [await world.cut(_links(plan, world))]
                note(undo)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the links were down more than once, and blocked something each time."""
        did = _so_far(undo, world)
        what = (
            f"down {did['flaps']} times, {did['met']} times with traffic:"
            f" {did['bytes']} bytes stopped"
        )
        return Evidence(did["met"] >= FLAPS_MIN, what, did)

    async def undo(self, undo: Json, world: World) -> None:
        """Heal the cut in force, if any."""
        for cut in undo["cuts"]:
            await world.heal(cut, undo["how"])


def _so_far(undo: Json, world: World) -> dict[str, int | float]:
    """Return what the cuts blocked: the healed ones, and the one in force."""
    did: dict[str, int | float] = dict(undo["past"])
    for held in [world.held(cut) for cut in undo["cuts"]]:
        did["flaps"] += 1
        did["met"] += held["bytes"] > 0 or held["connections"] > 0
        did["bytes"] += held["bytes"]
    return did


def _links(plan: Json, world: World) -> list[tuple[str, str]]:
    victims = set(plan["victims"])
    return [link for link in permutations(world.nodes, 2) if not victims.isdisjoint(link)]


FLAP = Flap()


PLUGINS = (PARTITION, FLAP)
