"""Restarts of node processes: a crash loop, a rolling restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, StopsNodes
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import NodeFault, ended, restart_struck, who_leads

# Kill nodes again and again, each time soon after they start: often during recovery.
#
# Source: a pod in CrashLoopBackOff; SQLite's and ALICE's crashes in recovery.

VARIANTS = ("leader", "one", "minority")
LIVES = 6
LIFE_MIN_S, LIFE_MAX_S = 0.05, 1.2
"""How long a process lives before it is killed again."""
LEAST_S = 3.0
CRASHES_MIN = 2
"""A single crash is not a loop."""


class CrashLoop(NodeFault):
    """Kill nodes again and again (SIGKILL), each time 0.05 to 1.2 s after their start."""

    name = "crash-loop"
    family = capabilities.PROCESS
    needs = frozenset({Capability.KILL})
    variants = VARIANTS

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims and the length of each life."""
        lives_s = [round(rng.uniform(LIFE_MIN_S, LIFE_MAX_S), 3) for _ in range(LIVES)]
        return {**super().plan(rng, nodes, index), "lives_s": lives_s}

    def verb(self, plan: Json) -> str:
        """Describe the plan: "kill again and again leader n1"."""
        return "kill again and again"

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time that some lives take."""
        return LEAST_S

    async def apply(self, plan: Json, world: World) -> Json:
        """Do nothing yet: `act` does it."""
        await trio.lowlevel.checkpoint()
        return {"incarnations": {}, "crashes": 0}

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Kill and start the victims until cancelled."""
        for life_s in cycle(plan["lives_s"]):
            for node in plan["victims"]:
                # Shielded: a kill that is not in the ledger would leave the node down.
                with trio.CancelScope(shield=True):
                    killed = await world.kill(node)
                    if killed["incarnation"] == UNTOUCHED:
                        continue
                    undo["incarnations"][node] = killed["incarnation"]
                    undo["crashes"] += 1
                    note(undo)
                    await world.restart(node, killed["incarnation"])
            await trio.sleep(life_s)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if processes ended more than once, and the last one killed is gone."""
        gone = ended(undo, world)
        crashes = undo["crashes"]
        measures: dict[str, int | float] = {"crashes": crashes, "nodes": len(gone)}
        if not gone or crashes < CRASHES_MIN:
            return Evidence(False, f"{crashes} processes ended: no loop", measures)
        what = f"{', '.join(gone)} ended {crashes} times; {await who_leads(world)}"
        return Evidence(True, what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that are still down."""
        await restart_struck(undo, world)


CRASH_LOOP = CrashLoop()


# Restart all nodes, one after the other, each gracefully, as for an upgrade.
#
# The next node is stopped when all nodes agree on a leader again. In half of the cases the leader
# is last, as operators do it; otherwise its place is random.
#
# Source: redpanda-data/chaos (rolling restarts); ducktape's and etcd's upgrade suites.

NODE_S = 2.5
"""The average time for one node."""
STOP_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 10.0


class RollingRestart:
    """Restart all nodes one after the other, each in good order (SIGTERM), leader last or not."""

    name = "rolling-restart"
    family = capabilities.PROCESS
    needs = frozenset({Capability.STOP})

    def configured(self, options: Json) -> Fault:
        """Return itself: it strikes all nodes."""
        return self

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has processes."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw an order, and whether the leader is last."""
        return {"order": rng.sample(list(nodes), len(nodes)), "leader_last": rng.random() < 0.5}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Put the nodes into their order."""
        order = [node for node in plan["order"] if node in nodes]
        if plan["leader_last"] and leader in order:
            order = [*(node for node in order if node != leader), leader]
        return {**plan, "victims": order, "leader": leader}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "restart n2, n0, leader n1 one after the other"."""
        leader = plan.get("leader")
        order = plan["victims"] if "victims" in plan else plan["order"]
        named = ", ".join(f"leader {node}" if node == leader else node for node in order)
        return f"restart {named} one after the other"

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time for all nodes."""
        return NODE_S * len(nodes)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return any one node: they are restarted one at a time."""
        return [capabilities.ANY_NODE]

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return None: the restart waits until no other node is out."""
        return None

    async def apply(self, plan: Json, world: World) -> Json:
        """Do nothing yet: `act` does it."""
        await trio.lowlevel.checkpoint()
        return {"incarnations": {}, "ready": []}

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Stop a node, start it, wait until the group is ready; then the next one."""
        assert isinstance(world, StopsNodes), "the fault was not available"
        for node in plan["victims"]:
            undo["incarnations"][node] = world.incarnation(node)
            note(undo)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + STOP_TIMEOUT_S):
                stopped = await world.stop(node)
                undo["incarnations"][node] = stopped["incarnation"]
                if stopped["incarnation"] != UNTOUCHED:
                    await world.restart(node, stopped["incarnation"])
            if await world.until_ready(READY_TIMEOUT_S):
                undo["ready"].append(node)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if processes that ran are gone. Reports how many nodes were restarted."""
        gone = ended(undo, world)
        measures: dict[str, int | float] = {"restarted": len(gone), "ready": len(undo["ready"])}
        if not gone:
            return Evidence(False, "no process ended", measures)
        what = (
            f"{len(gone)} of {len(plan['victims'])} nodes restarted, the group was ready after "
            f"{len(undo['ready'])} of them; {await who_leads(world)}"
        )
        return Evidence(True, what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that are still down."""
        await restart_struck(undo, world)


ROLLING_RESTART = RollingRestart()


PLUGINS = (CRASH_LOOP, ROLLING_RESTART)
