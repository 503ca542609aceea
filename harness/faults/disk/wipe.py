"""Kill a node and lose its disk; it comes back with an empty one at the end.

Before it is killed it is cut off: what it sends to the other nodes is held for a while, and lost.
So whatever it has acknowledged alone by then is nowhere else. The target decides how a node comes
back: as a new member that catches up, as a copy of another node, or with nothing.

Source: DESIGN.md decisions 2 and 10; the disk of a failed machine in RocketMQ's deployment modes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
from shaketable.harness.faults.incarnations import UNDO_TIMEOUT_S
from shaketable.harness.faults.victims import (
    SINGLE,
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one")
WAIT_S = 6.0
"""How long to wait while no disk may be lost, until the other nodes are back."""
WAIT_POLL_S = 0.1
SILENT_MIN_S, SILENT_MAX_S = 0.2, 0.6
"""How long the node is cut off before it is killed."""


class Wipe:
    """Kill a node, delete its store, and start it with an empty disk: the leader, or any one."""

    name = "wipe"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.CUT, Capability.WIPE})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], as far as it can strike them."""
        return Wipe(choose_variants(self.name, VARIANTS, options, can=SINGLE))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target that can bring back a node without its disk."""
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say how a node without its disk comes back"
        return target.why_no_disk_may_go(nodes)

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a variant, an order of the nodes, and how long the victim is cut off first."""
        silent_s = round(rng.uniform(SILENT_MIN_S, SILENT_MAX_S), 3)
        return {**plan_victims(rng, nodes, self._variants, index), "silent_s": silent_s}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victim."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "wipe leader n1"."""
        return describe_victims("wipe", plan)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victim; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """There is only one victim: all or nothing."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the victim off, kill it, delete its store; return what was lost."""
        (victim,) = plan["victims"]
        why = world.why_not_wiped(victim)
        with trio.move_on_after(WAIT_S):
            while why is not None:
                await trio.sleep(WAIT_POLL_S)
                why = world.why_not_wiped(victim)
        if why is not None:
            return {"node": victim, "incarnation": UNTOUCHED, "why": why}
        cut = await world.cut([(victim, other) for other in world.nodes if other != victim])
        try:
            await trio.sleep(plan["silent_s"])
            lost = await world.wipe(victim)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
                await world.heal(cut, "reset")
        return {"node": victim, **lost}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the process is gone, and stored bytes with it."""
        await trio.lowlevel.checkpoint()
        if undo["incarnation"] == UNTOUCHED:
            why = undo.get("why", "it did not run")
            return Evidence(False, f"{undo['node']} kept its disk: {why}")
        measures = {name: undo[name] for name in ("files", "bytes", "messages")}
        what = (
            f"{undo['node']} lost its disk: {undo['messages']:,} messages,"
            f" {undo['bytes']:,} bytes in {undo['files']} files"
        )
        is_gone = not world.is_alive(undo["node"], undo["incarnation"])
        return Evidence(is_gone and undo["bytes"] > 0, what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the node with an empty disk, and make the group whole again."""
        if undo["incarnation"] != UNTOUCHED:
            await world.replace(undo["node"], undo["incarnation"])


PLUGIN = Wipe()
