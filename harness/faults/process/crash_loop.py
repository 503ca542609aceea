"""Kill nodes again and again, each time soon after they start: often during recovery.

Source: a pod in CrashLoopBackOff; SQLite's and ALICE's crashes in recovery.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
from shaketable.harness.faults.incarnations import in_effect
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one", "minority")
LIVES = 6
LIFE_MIN_S, LIFE_MAX_S = 0.05, 1.2
"""How long a process lives before it is killed again."""
LEAST_S = 3.0
CRASHES_MIN = 2
"""A single crash is not a loop."""


class CrashLoop:
    """Kill nodes again and again (SIGKILL), each time 0.05 to 1.2 s after their start."""

    name = "crash-loop"
    family = capabilities.PROCESS
    needs = frozenset({Capability.KILL})

    def __init__(self, variants: Sequence[str] = VARIANTS) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault restricted to options["victims"], if there are any."""
        return CrashLoop(choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has processes."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims and the length of each life."""
        lives_s = [round(rng.uniform(LIFE_MIN_S, LIFE_MAX_S), 3) for _ in range(LIVES)]
        return {**plan_victims(rng, nodes, self._variants, index), "lives_s": lives_s}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "kill again and again leader n1"."""
        return describe_victims("kill again and again", plan)

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time that some lives take."""
        return LEAST_S

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims."""
        return without(plan, spare)

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
        gone = [node for node, number in in_effect(undo) if not world.is_alive(node, number)]
        crashes = undo["crashes"]
        measures: dict[str, int | float] = {"crashes": crashes, "nodes": len(gone)}
        if not gone or crashes < CRASHES_MIN:
            return Evidence(False, f"{crashes} processes ended: no loop", measures)
        leader = await world.leader()
        now = f"{leader} leads" if leader is not None else "nobody leads"
        return Evidence(True, f"{', '.join(gone)} ended {crashes} times; {now}", measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the nodes that are still down."""
        for node, incarnation in in_effect(undo):
            await world.restart(node, incarnation)


PLUGIN = CrashLoop()
