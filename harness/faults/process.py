"""Faults of processes: kill (SIGKILL), pause (SIGSTOP), crash loop, rolling restart, transfer.

A transfer of leadership loses nothing: the old leader refuses appends until the new one leads, and
everything that it acknowledged is in the new leader's log.

Source: for transfers, Raft dissertation section 3.10; DLedger's `preferredLeaderId`;
redpanda-data/chaos (`leader transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import cycle
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import TransfersLeadership
from shaketable.harness.contracts.capabilities import Capability, SeesFromOutside, StopsNodes
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
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
    """Kill nodes (SIGKILL) and restart them: the leader, one, a minority, all, or named nodes."""

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
    """Pause nodes (SIGSTOP) for a while: the leader, one or a minority."""

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


# Restarts: a crash loop, a rolling restart.

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
    """Kill nodes (SIGKILL) again and again, 0.05 to 1.2 s after each start."""

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
    """Restart all nodes gracefully (SIGTERM), one after the other, the leader last or not."""

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


# Transfers of leadership.

NODES_MIN = 2
ASK_FOR_S = 6.0
"""Retry for this long while there is no leader, or it refuses, or is itself the destination."""
ASK_AGAIN_AFTER_S = 0.2


class Transfer:
    """Ask the leader to transfer leadership to a random node."""

    name = "transfer"
    family = capabilities.PROCESS
    needs = frozenset({Capability.TRANSFER})

    def configured(self, options: Json) -> Fault:
        """Return itself: it has no options."""
        return self

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target with leadership transfer, and a second node."""
        if not isinstance(target, TransfersLeadership):
            return f"the target {target.name} cannot be asked to transfer its leadership"
        if len(nodes) < NODES_MIN:
            return f"a group of {len(nodes)} has no other member to take the leadership"
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the order in which nodes are considered."""
        return {"order": rng.sample(list(nodes), len(nodes))}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the first node in the order that does not lead."""
        order = [node for node in plan["order"] if node in nodes]
        others = [node for node in order if node != leader]
        return {**plan, "to": (others or order)[0], "leader": leader}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "transfer leadership from n1 to n2"."""
        if "to" not in plan:
            return "transfer leadership"
        who = f"from {plan['leader']} " if plan["leader"] is not None else ""
        return f"transfer leadership {who}to {plan['to']}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Request the transfer, wait for the outcome, and return it.

        The chosen node may already lead by now, or be down: then the next one is chosen.
        """
        again_until_s = trio.current_time() + ASK_FOR_S
        order = [plan["to"], *(node for node in plan["order"] if node != plan["to"])]
        for to in cycle(order):
            answer = await world.transfer(to)
            if not _is_to_be_asked_again(answer, to) or trio.current_time() >= again_until_s:
                return {**answer, "to": to}
            await trio.sleep(ASK_AGAIN_AFTER_S)
        raise AssertionError("a cycle ends")

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if leadership moved from another node to the requested one."""
        await trio.lowlevel.checkpoint()
        was, to, took_ms = undo["from"], undo["to"], undo["took_ms"]
        if was is not None and was != to and took_ms is not None:
            what = f"leadership went from {was} to {to} in {took_ms:.0f} ms"
            return Evidence(True, what, {"took_ms": took_ms})
        if was is None:
            return Evidence(False, "there was no leader that could be asked")
        if was == to:
            return Evidence(False, f"{to} led already")
        why = f": {undo['error']}" if undo["error"] is not None else ""
        return Evidence(False, f"{to} did not come to lead after {was}{why}")

    async def undo(self, undo: Json, world: World) -> None:
        """Nothing to undo: the group is whole with any leader."""
        await trio.lowlevel.checkpoint()


def _is_to_be_asked_again(answer: Json, to: str) -> bool:
    """True if there was no leader, or it refused, or was the destination itself."""
    is_refused = answer["from"] in (None, to) or answer["error"] is not None
    return answer["took_ms"] is None and is_refused


TRANSFER = Transfer()


PLUGINS = (KILL, PAUSE, CRASH_LOOP, ROLLING_RESTART, TRANSFER)
