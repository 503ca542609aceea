"""Power loss: everything that a node had not synced is gone; of several nodes at once.

For processes without root, the node's disk keeps unsynced writes in process memory (campaign: `disk
= "volatile"`), so SIGKILL is a power loss. The lost bytes are counted in a file that outlives the
process; if no unsynced byte was lost, the fault had no effect.

Source: lazyfs (clear cache on kill); etcd's robustness tests; "All File Systems Are Not Created
Equal" (OSDI 2014); HARNESSES.md section 5.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, LosesPower
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    in_effect,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "all", "one", "minority")
MOMENTS = ("", "sync:1", "write:2", "sync:3")
"""When: now, or at that event of the node (`LosesPower.lose_power`)."""


class Power:
    """Cut the power of nodes: unsynced writes are lost, and counted; leader, one, minority, all."""

    name = "power"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.POWER})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], if there are any."""
        return Power(choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every node can lose power; the world decides whether the loss is known."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims and the moment; all nodes together lose power at once."""
        plan = plan_victims(rng, nodes, self._variants, index)
        on = rng.choice(MOMENTS)
        return {**plan, "on": "" if plan["variant"] == "all" else on}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "power loss of leader n1 at sync 3"."""
        event, _, nth = plan["on"].partition(":")
        at = f" at {event} {nth}" if event else ""
        return describe_victims("power loss of", plan) + at

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the power; return the dead incarnations, and the bytes that each certainly lost."""
        assert isinstance(world, LosesPower), "the fault was not available"
        return await world.lose_power(plan["victims"], plan["on"])

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a process that ran is gone, and unsynced bytes with it."""
        await trio.lowlevel.checkpoint()
        gone = [
            node for node, incarnation in in_effect(undo) if not world.is_alive(node, incarnation)
        ]
        lost = {node: int(undo["lost_bytes"].get(node, 0)) for node in gone}
        measures: dict[str, int | float] = {"killed": len(gone), "lost_bytes": sum(lost.values())}
        if not gone:
            return Evidence(False, "no process ended", measures)
        losses = ", ".join(f"{node} {size:,}" for node, size in lost.items())
        what = f"unsynced bytes lost: {losses}"
        return Evidence(sum(lost.values()) > 0, what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that this fault struck and that are still down."""
        for node, incarnation in in_effect(undo):
            await world.restart(node, incarnation)


PLUGIN = Power()
