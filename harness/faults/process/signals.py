"""Signals to node processes: kill (SIGKILL), pause (SIGSTOP)."""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, SeesFromOutside
from shaketable.harness.contracts.plugins import Evidence, Json, World
from shaketable.harness.faults.victims import (
    NodeFault,
    apply_to_each,
    ended,
    in_effect,
    restart_struck,
    who_leads,
)

# Kill node processes with SIGKILL; start them again at the end of the fault.
#
# The node's disk decides about unsynced writes: with the campaign's `disk = "volatile"` (the
# default) they are lost, as in a power cut; with "real" they stay in the page cache, as in a crash
# of the process alone.
#
# Source: jepsen.nemesis.combined `db-package` (node specs one, minority, all, primaries).


class Kill(NodeFault):
    """Kill node processes (SIGKILL), start them again: the leader, one, a minority, all, named."""

    name = "kill"
    family = capabilities.PROCESS
    needs = frozenset({Capability.KILL})
    variants = ("leader", "one", "minority", "all")

    async def apply(self, plan: Json, world: World) -> Json:
        """Kill each victim; return the incarnations that died."""
        return await apply_to_each(plan["victims"], world.kill, self.undo, world)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a process that ran is gone. Reports the current leader."""
        gone = ended(undo, world)
        if not gone:
            return Evidence(False, "no process ended", {"killed": 0})
        seen = _seen(world, f"process of {', '.join(gone)} gone", gone)
        what = f"{seen}; {await who_leads(world)}"
        return Evidence(True, what, {"killed": len(gone)})

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that this fault killed and that are still down."""
        await restart_struck(undo, world)


KILL = Kill()


# Pause node processes with SIGSTOP; resume them (SIGCONT) at the end of the fault.
#
# A paused leader wakes up and still believes that it leads: this finds stale reads and late
# acknowledgements.
#
# Source: jepsen.nemesis.combined `db-package`; etcd's robustness track record (#20418).


class Pause(NodeFault):
    """Stop node processes (SIGSTOP) for a while: the leader, one or a minority."""

    name = "pause"
    family = capabilities.PROCESS
    needs = frozenset({Capability.PAUSE})
    variants = ("leader", "one", "minority")

    async def apply(self, plan: Json, world: World) -> Json:
        """Stop each victim; return the incarnations that stopped."""
        return await apply_to_each(plan["victims"], world.pause, self.undo, world)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the kernel reports a process of this fault as stopped.

        Where only answers are seen: if its node did not answer.
        """
        stopped = [
            node
            for node, incarnation in in_effect(undo)
            if world.is_alive(node, incarnation) and world.is_paused(node)
        ]
        if not stopped:
            return Evidence(False, "no process was stopped", {"paused": 0})
        seen = _seen(world, f"process of {', '.join(stopped)} stopped (state T)", stopped)
        what = f"{seen}; {await who_leads(world)}"
        return Evidence(True, what, {"paused": len(stopped)})

    async def undo(self, undo: Json, world: World) -> None:
        """Resume the processes that this fault stopped."""
        for node, incarnation in in_effect(undo):
            await world.resume(node, incarnation)


PAUSE = Pause()


def _seen(world: World, of_processes: str, nodes: Sequence[str]) -> str:
    """Return what was seen of struck nodes: of their processes, or in their answers only."""
    if isinstance(world, SeesFromOutside) and world.sees_answers_only:
        return f"{', '.join(nodes)} did not answer"
    return of_processes


PLUGINS = (KILL, PAUSE)
