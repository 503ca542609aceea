"""Damage a node's synced data while it is down: flip bits of its log, or truncate a file.

The node must not accept such a log and vote with it: it refuses to start. Then it gets an empty
disk, as an operator would do, and its group restores its data. A node is damaged only while the
group is whole: otherwise a quorum may depend on what only this node stores.

Source: Jepsen's corrupt-file nemesis; "Protocol-Aware Recovery" (FAST 2018); DESIGN.md decision 2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks, NoticesDamage
from shaketable.harness.contracts.capabilities import Capability, InjectsDiskFaults
from shaketable.harness.contracts.capabilities import Damage as Edit
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
WAYS = ("flip", "truncate")
BITS = (1, 1, 2, 8)


class Damage:
    """Flip bits of a dead node's synced log, or cut its file short: it must notice."""

    name = "damage"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.WIPE, Capability.DAMAGE})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], as far as it can strike them."""
        return Damage(choose_variants(self.name, VARIANTS, options, SINGLE))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target that declares the damage its nodes notice, and can replace a disk."""
        if not isinstance(target, NoticesDamage):
            return f"the target {target.name} does not say which damage its nodes must notice"
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say how a node without its disk comes back"
        return target.why_no_disk_may_go(nodes)

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a victim and the damage; the two kinds alternate."""
        plan = draw_victims(rng, nodes, self._variants, index)
        edit = {"how": WAYS[index % len(WAYS)], "bytes_": rng.choice(BITS)}
        return {**plan, "damage": {**edit, "seed": f"{rng.getrandbits(48):x}"}}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victim."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "flip 1 bit in the log of leader n1"."""
        bits = plan["damage"]["bytes_"]
        flip = f"flip {bits} {'bit' if bits == 1 else 'bits'} in the log of"
        return describe_victims(
            flip if plan["damage"]["how"] == "flip" else "cut short a log file of", plan
        )

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victim; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """There is only one victim: all or nothing."""
        return None if set(plan["victims"]) & set(spare) else plan

    async def apply(self, plan: Json, world: World) -> Json:
        """Kill the victim, damage its log, start it, and record what it does."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        (victim,) = plan["victims"]
        why = world.why_not_wiped(victim)
        killed = {"incarnation": UNTOUCHED} if why else await world.kill(victim)
        if killed["incarnation"] == UNTOUCHED:
            return {"node": victim, **killed, "why": why or "it did not run"}
        undo = {"node": victim, "incarnation": killed["incarnation"]}
        async with undone_if_it_fails(self, undo, world):
            try:
                done = await world.damage(victim, Edit(**plan["damage"]))
            except BaseException:  # nothing was changed
                with trio.CancelScope(shield=True):
                    await world.restart(victim, killed["incarnation"])
                raise
            undo |= await world.start_damaged(victim, killed["incarnation"])
        return {**undo, "done": done}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if bytes were changed. Reports whether the node noticed."""
        await trio.lowlevel.checkpoint()
        node = undo["node"]
        if undo["incarnation"] == UNTOUCHED:
            return Evidence(False, f"{node} was left alone: {undo['why']}")
        done = undo["done"]
        refused = undo["refused"]
        silent = f"{node} SERVES with it" if undo["serves"] else f"{node} did not answer in time"
        then = f"{node} refused it ({refused})" if refused else silent
        where = f"at byte {done['at']:,} of {done['file']}"
        measures = {
            "changed_bytes": done["bytes"],
            "refused": int(refused is not None),
            "serves": int(undo["serves"]),
        }
        return Evidence(
            done["bytes"] > 0, f"{done['bytes']:,} bytes changed {where}; {then}", measures
        )

    async def undo(self, undo: Json, world: World) -> None:
        """Give a node that refused an empty disk, and make the group whole again."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        if undo["incarnation"] != UNTOUCHED:
            await world.revive(undo["node"], undo["incarnation"])


PLUGIN = Damage()
