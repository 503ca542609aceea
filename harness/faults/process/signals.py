"""Signals to node processes: kill (SIGKILL), pause (SIGSTOP)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import (
    apply_to_each,
    choose_variants,
    describe_victims,
    in_effect,
    pick_victims,
    plan_victims,
    without,
)

# Kill node processes with SIGKILL; start them again at the end of the fault.
#
# The node's disk decides about unsynced writes: with the campaign's `disk = "volatile"` (the
# default) they are lost, as in a power cut; with "real" they stay in the page cache, as in a crash
# of the process alone.
#
# Source: jepsen.nemesis.combined `db-package` (node specs one, minority, all, primaries).

KILL_VARIANTS = ("leader", "one", "minority", "all")


class Kill:
    """Kill node processes (SIGKILL), start them again: the leader, one, a minority, all, named."""

    name = "kill"
    family = capabilities.PROCESS
    needs = frozenset({Capability.KILL})

    def __init__(self, variants: Sequence[str] = KILL_VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], if there are any."""
        return Kill(choose_variants(self.name, KILL_VARIANTS, options))

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
        """Describe the plan: "kill leader n1"."""
        return describe_victims("kill", plan)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Kill each victim; return the incarnations that died."""
        return await apply_to_each(plan["victims"], world.kill, self.undo, world)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a process that ran is gone. Reports the current leader."""
        gone = [
            node for node, incarnation in in_effect(undo) if not world.is_alive(node, incarnation)
        ]
        if not gone:
            return Evidence(False, "no process ended", {"killed": 0})
        leader = await world.leader()
        now = f"{leader} leads" if leader is not None else "no leader"
        return Evidence(True, f"process of {', '.join(gone)} gone; {now}", {"killed": len(gone)})

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that this fault killed and that are still down."""
        for node, incarnation in in_effect(undo):
            await world.restart(node, incarnation)


KILL = Kill()


# Pause node processes with SIGSTOP; resume them (SIGCONT) at the end of the fault.
#
# A paused leader wakes up and still believes that it leads: this finds stale reads and late
# acknowledgements.
#
# Source: jepsen.nemesis.combined `db-package`; etcd's robustness track record (#20418).

PAUSE_VARIANTS = ("leader", "one", "minority")


class Pause:
    """Stop node processes (SIGSTOP) for a while: the leader, one or a minority."""

    name = "pause"
    family = capabilities.PROCESS
    needs = frozenset({Capability.PAUSE})

    def __init__(self, variants: Sequence[str] = PAUSE_VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], if there are any."""
        return Pause(choose_variants(self.name, PAUSE_VARIANTS, options))

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
        now = f"{leader} leads" if leader is not None else "no leader"
        what = f"process of {', '.join(stopped)} stopped (state T); {now}"
        return Evidence(True, what, {"paused": len(stopped)})

    async def undo(self, undo: Json, world: World) -> None:
        """Resume the processes that this fault stopped."""
        for node, incarnation in in_effect(undo):
            await world.resume(node, incarnation)


PAUSE = Pause()


PLUGINS = (KILL, PAUSE)
