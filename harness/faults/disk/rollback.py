"""Roll a node back: its store is replaced by an older copy, as after a bad restore.

This is outside Raft's fault model: the node has forgotten votes and entries that it acknowledged,
and cannot know it. No target promises to survive it (family "rollback"): a loss is observed and
reported, but is no violation.

Source: DESIGN.md decision 2; Jepsen's corrupt-file (snapshot, restore); virtual machines that are
reset to a snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks
from shaketable.harness.contracts.capabilities import Capability, Damage, InjectsDiskFaults
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
from shaketable.harness.faults.incarnations import undone_if_it_fails
from shaketable.harness.faults.victims import (
    SINGLE,
    choose_variants,
    describe_victims,
    pick_victims,
)
from shaketable.harness.faults.victims import plan_victims as draw_victims

VARIANTS = SINGLE
AGE_MIN_S, AGE_MAX_S = 0.8, 2.0
"""How long the node serves again before its copy is put back."""


class Rollback:
    """Put back an older copy of a node's store: outside Raft's model, judged apart."""

    name = "rollback"
    family = capabilities.ROLLBACK
    needs = frozenset({Capability.KILL, Capability.ROLLBACK})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], as far as it can strike them."""
        return Rollback(choose_variants(self.name, VARIANTS, options, SINGLE))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target whose store directories are known."""
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say where its nodes keep their store"
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a victim and the age of its copy."""
        age_s = round(rng.uniform(AGE_MIN_S, AGE_MAX_S), 3)
        return {**draw_victims(rng, nodes, self._variants, index), "age_s": age_s}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victim."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "roll back leader n1 by 1.2 s"."""
        return f"{describe_victims('roll back', plan)} by {plan['age_s']:.1f} s"

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victim; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """There is only one victim: all or nothing."""
        return None if set(plan["victims"]) & set(spare) else plan

    async def apply(self, plan: Json, world: World) -> Json:
        """Copy the dead victim's store, let it run for a while, and put the copy back."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        (victim,) = plan["victims"]
        killed = await world.kill(victim)
        if killed["incarnation"] == UNTOUCHED:
            return {"node": victim, **killed}
        undo = {"node": victim, "incarnation": killed["incarnation"]}
        async with undone_if_it_fails(self, undo, world):
            copy = await world.copy_store(victim)
            undo |= {
                "incarnation": (await world.start_damaged(victim, undo["incarnation"]))[
                    "incarnation"
                ]
            }
            await trio.sleep(plan["age_s"])
            killed = await world.kill(victim)
            if killed["incarnation"] == UNTOUCHED:
                return {**undo, "done": None}
            undo |= killed
            done = await world.damage(victim, Damage(how="rollback", copy=copy))
            await world.restart(victim, undo["incarnation"])
        return {**undo, "done": done}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if entries that the node had are gone."""
        await trio.lowlevel.checkpoint()
        if undo["incarnation"] == UNTOUCHED:
            return Evidence(False, f"{undo['node']} did not run")
        if undo["done"] is None:
            return Evidence(False, f"{undo['node']} ended by itself before its copy was put back")
        entries = undo["done"]["entries"]
        what = f"{undo['node']} forgot {entries:,} entries of its log"
        return Evidence(entries > 0, what, {"entries": entries})

    async def undo(self, undo: Json, world: World) -> None:
        """Make sure that the node runs; the group replicates to it what it forgot."""
        if undo["incarnation"] != UNTOUCHED:
            await world.restart(undo["node"], undo["incarnation"])


PLUGIN = Rollback()
