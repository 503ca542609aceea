"""Power loss: everything that a node had not synced is gone; of several nodes at once.

For processes without root, the node's disk keeps unsynced writes in process memory (campaign: `disk
= "volatile"`), so SIGKILL is a power loss. The lost bytes are counted in a file that outlives the
process. A program that is not ours is killed, and its disk (`harness.volatile_disk`) forgets what
it had not synced, names of files too. If nothing unsynced was lost, the fault had no effect.

Source: lazyfs (clear cache on kill); etcd's robustness tests; "All File Systems Are Not Created
Equal" (OSDI 2014); HARNESSES.md section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, LosesPower
from shaketable.harness.contracts.plugins import Evidence, Json, World
from shaketable.harness.faults.victims import NodeFault, ended, restart_struck

VARIANTS = ("leader", "all", "one", "minority")
MOMENTS = ("", "sync:1", "write:2", "sync:3")
"""When: now, or at that event of the node (`LosesPower.lose_power`)."""


class Power(NodeFault):
    """Cut the power of nodes: unsynced writes are lost, and counted; leader, one, minority, all."""

    name = "power"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.POWER})
    variants = VARIANTS

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims and the moment; all nodes together lose power at once."""
        plan = super().plan(rng, nodes, index)
        on = rng.choice(MOMENTS)
        return {**plan, "on": "" if plan["variant"] == "all" else on}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "power loss of leader n1 at sync 3"."""
        event, _, nth = plan["on"].partition(":")
        at = f" at {event} {nth}" if event else ""
        return super().describe(plan) + at

    def verb(self, plan: Json) -> str:
        """Return "power loss of"."""
        return "power loss of"

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the power; return the dead incarnations, and the bytes that each certainly lost."""
        assert isinstance(world, LosesPower), "the fault was not available"
        return await world.lose_power(plan["victims"], plan["on"])

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a process that ran is gone, and unsynced bytes with it."""
        await trio.lowlevel.checkpoint()
        gone = ended(undo, world)
        lost = {node: int(undo["lost_bytes"].get(node, 0)) for node in gone}
        measures: dict[str, int | float] = {"killed": len(gone), "lost_bytes": sum(lost.values())}
        if not gone:
            return Evidence(False, "no process ended", measures)
        what = f"unsynced bytes lost: {_of_nodes(lost)}"
        entries = {node: int(undo.get("lost_entries", {}).get(node, 0)) for node in gone}
        if "lost_entries" in undo:
            measures["lost_entries"] = sum(entries.values())
        if any(entries.values()):
            what += f"; unsynced directory entries lost: {_of_nodes(entries)}"
        return Evidence(any((*lost.values(), *entries.values())), what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that this fault struck and that are still down."""
        await restart_struck(undo, world)


def _of_nodes(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{node} {count:,}" for node, count in counts.items())


PLUGIN = Power()
