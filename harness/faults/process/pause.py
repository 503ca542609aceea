"""Pause node processes with SIGSTOP; resume them (SIGCONT) at the end of the fault.

A paused leader wakes up and still believes that it leads: this finds stale reads and late
acknowledgements.

Source: jepsen.nemesis.combined `db-package`; etcd's robustness track record (#20418).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.incarnations import apply_to_each, in_effect
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one", "minority")


class Pause:
    """Stop node processes (SIGSTOP) for a while: the leader, one or a minority."""

    name = "pause"
    family = capabilities.PROCESS
    needs = frozenset({Capability.PAUSE})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], if there are any."""
        return Pause(choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has processes."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a variant and an order of the nodes; the first plan strikes the leader."""
        return plan_victims(rng, nodes, self._variants, index)

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "pause leader n1"."""
        return describe_victims("pause", plan)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Stop each victim; return the incarnations that stopped."""
        return await apply_to_each(plan["victims"], world.pause, self.undo, world)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the kernel reports a process of this fault as stopped."""
        stopped = [
            node
            for node, incarnation in in_effect(undo)
            if world.is_alive(node, incarnation) and world.is_paused(node)
        ]
        if not stopped:
            return Evidence(False, "no process was stopped", {"paused": 0})
        leader = await world.leader()
        now = f"{leader} leads" if leader is not None else "nobody leads"
        what = f"process of {', '.join(stopped)} stopped (state T); {now}"
        return Evidence(True, what, {"paused": len(stopped)})

    async def undo(self, undo: Json, world: World) -> None:
        """Resume the processes that this fault stopped."""
        for node, incarnation in in_effect(undo):
            await world.resume(node, incarnation)


PLUGIN = Pause()
