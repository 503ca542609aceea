"""Let links between nodes flap: down for a moment, up for a moment, again and again.

Each time the held bytes are delivered, or the connections reset, as drawn. The times are shorter
than an election timeout or a little longer: leaders change often, or the group only waits.

Source: HARNESSES.md section 1; jepsen.nemesis `partition!` on and off; FoundationDB's clogging.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import permutations
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one", "minority", "all")
NODES_MIN = 2
DOWN_MS = (60, 200, 500)
UP_MS = (60, 200, 500)
HEAL_MODES = ("deliver", "reset")
FLAPS_MIN = 2
"""Down a single time is a partition."""


class Flap:
    """Let the links of some nodes be down and up in turns, each for a moment."""

    name = "flap"
    family = capabilities.NETWORK
    needs = frozenset({Capability.CUT})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to the links of options["victims"], if there are any."""
        return Flap(choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link."""
        return "a group of one node has no links" if len(nodes) < NODES_MIN else None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims, and how long their links are down and up."""
        return {
            **plan_victims(rng, nodes, self._variants, index),
            "down_ms": rng.choice(DOWN_MS),
            "up_ms": rng.choice(UP_MS),
            "mend": rng.choice(HEAL_MODES),
        }

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "flap links of leader n1: 200 ms down, 60 ms up"."""
        whose = describe_victims("flap links of", plan)
        return f"{whose}: {plan['down_ms']} ms down, {plan['up_ms']} ms up"

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return the victims: half of the time they are unreachable."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims."""
        return without(plan, spare)

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time that a few flaps take."""
        return FLAPS_MIN * (max(DOWN_MS) + max(UP_MS)) / 1e3

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links for the first time."""
        past = {"flaps": 0, "met": 0, "bytes": 0}
        return {"cuts": [await world.cut(_links(plan, world))], "how": plan["mend"], "past": past}

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


PLUGIN = Flap()
