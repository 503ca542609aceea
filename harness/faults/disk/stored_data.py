"""Faults of the data that a node has stored: wipe, damage, rollback."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks, NoticesDamage, StoresFiles
from shaketable.harness.contracts.capabilities import Capability, InjectsDiskFaults
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Json, Target, World
from shaketable.harness.faults.victims import (
    SINGLE,
    UNDO_TIMEOUT_S,
    NodeFault,
    undone_if_it_fails,
)

# Kill a node and lose its disk; it comes back with an empty one at the end.
#
# Before it is killed it is cut off: what it sends to the other nodes is held for a while, and lost.
# So whatever it has acknowledged alone by then is nowhere else. The target decides how a node comes
# back: as a new member that catches up, as a copy of another node, or with nothing.
#
# Source: DESIGN.md decisions 2 and 10; the disk of a failed machine in RocketMQ's deployment modes.

WAIT_S = 6.0
"""How long to wait while no disk may be lost, until the other nodes are back."""
WAIT_POLL_S = 0.1
SILENT_MIN_S, SILENT_MAX_S = 0.2, 0.6
"""How long the node is cut off before it is killed."""


class Wipe(NodeFault):
    """Kill a node, delete its store, and start it with an empty disk: the leader, or any one."""

    name = "wipe"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.CUT, Capability.WIPE})
    variants = SINGLE
    can = SINGLE

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target that can bring back a node without its disk."""
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say how a node without its disk comes back"
        return target.why_no_disk_may_go(nodes)

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a variant, an order of the nodes, and how long the victim is cut off first."""
        silent_s = round(rng.uniform(SILENT_MIN_S, SILENT_MAX_S), 3)
        return {**super().plan(rng, nodes, index), "silent_s": silent_s}

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
        messages = f"{undo['messages']:,} messages, " if undo.get("has_log", True) else ""
        what = (
            f"{undo['node']} lost its disk: {messages}"
            f"{undo['bytes']:,} bytes in {undo['files']} files"
        )
        is_gone = not world.is_alive(undo["node"], undo["incarnation"])
        return Evidence(is_gone and undo["bytes"] > 0, what, measures)

    async def undo(self, undo: Json, world: World) -> None:
        """Start the node with an empty disk, and make the group whole again."""
        if undo["incarnation"] != UNTOUCHED:
            await world.replace(undo["node"], undo["incarnation"])


WIPE = Wipe()


# Damage a node's synced data while it is down: flip bits of its log, or truncate a file.
#
# The node must not accept such a log and vote with it: it refuses to start. Then it gets an empty
# disk, as an operator would do, and its group restores its data. A node is damaged only while the
# group is whole: otherwise a quorum may depend on what only this node stores.
#
# Source: Jepsen's corrupt-file nemesis; "Protocol-Aware Recovery" (FAST 2018); DESIGN.md decision
# 2.

WAYS = ("flip", "truncate")
BITS = (1, 1, 2, 8)


class Damage(NodeFault):
    """Flip bits of a dead node's synced log, or cut its file short: it must notice."""

    name = "damage"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.WIPE, Capability.DAMAGE})
    variants = SINGLE
    can = SINGLE

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target that declares the damage its nodes notice, and can replace a disk."""
        if not isinstance(target, NoticesDamage | StoresFiles):
            return f"the target {target.name} does not say which damage its nodes must notice"
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say how a node without its disk comes back"
        return target.why_no_disk_may_go(nodes)

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the damage; the two kinds alternate."""
        edit = {"how": WAYS[index % len(WAYS)], "bytes_": rng.choice(BITS)}
        return {"damage": {**edit, "seed": f"{rng.getrandbits(48):x}"}}

    def verb(self, plan: Json) -> str:
        """Describe the damage: "flip 1 bit in the log of"."""
        bits = plan["damage"]["bytes_"]
        flip = f"flip {bits} {'bit' if bits == 1 else 'bits'} in the log of"
        return flip if plan["damage"]["how"] == "flip" else "cut short a log file of"

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
                done = await world.damage(victim, capabilities.Damage(**plan["damage"]))
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


DAMAGE = Damage()


# Roll a node back: its store is replaced by an older copy, as after a bad restore.
#
# This is outside Raft's fault model: the node has forgotten votes and entries that it acknowledged,
# and cannot know it. No target promises to survive it (family "rollback"): a loss is observed and
# reported, but is no violation.
#
# Source: DESIGN.md decision 2; Jepsen's corrupt-file (snapshot, restore); virtual machines that are
# reset to a snapshot.

AGE_MIN_S, AGE_MAX_S = 0.8, 2.0
"""How long the node serves again before its copy is put back."""


class Rollback(NodeFault):
    """Put back an older copy of a node's store: outside Raft's model, judged apart."""

    name = "rollback"
    family = capabilities.ROLLBACK
    needs = frozenset({Capability.KILL, Capability.ROLLBACK})
    variants = SINGLE
    can = SINGLE

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a target whose store directories are known."""
        if not isinstance(target, LosesDisks):
            return f"the target {target.name} does not say where its nodes keep their store"
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a victim and the age of its copy."""
        age_s = round(rng.uniform(AGE_MIN_S, AGE_MAX_S), 3)
        return {**super().plan(rng, nodes, index), "age_s": age_s}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "roll back leader n1 by 1.2 s"."""
        return f"{super().describe(plan)} by {plan['age_s']:.1f} s"

    def verb(self, plan: Json) -> str:
        """Return "roll back"."""
        return "roll back"

    async def apply(self, plan: Json, world: World) -> Json:
        """Copy the dead victim's store, let it run for a while, and put the copy back."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        (victim,) = plan["victims"]
        killed = await world.kill(victim)
        if killed["incarnation"] == UNTOUCHED:
            return {"node": victim, **killed}
        undo = {"node": victim, "incarnation": killed["incarnation"]}
        async with undone_if_it_fails(self, undo, world):
            copy = await world.copy_store(victim)
            undo |= {
                "incarnation": (await world.start_damaged(victim, undo["incarnation"]))[
                    "incarnation"
                ]
            }
            await trio.sleep(plan["age_s"])
            killed = await world.kill(victim)
            if killed["incarnation"] == UNTOUCHED:
                return {**undo, "done": None}
            undo |= killed
            done = await world.damage(victim, capabilities.Damage(how="rollback", copy=copy))
            await world.restart(victim, undo["incarnation"])
        return {**undo, "done": done}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if entries that the node had are gone; without a log: if files changed."""
        await trio.lowlevel.checkpoint()
        if undo["incarnation"] == UNTOUCHED:
            return Evidence(False, f"{undo['node']} did not run")
        if undo["done"] is None:
            return Evidence(False, f"{undo['node']} ended by itself before its copy was put back")
        entries, changed = undo["done"]["entries"], undo["done"]["bytes"]
        if undo["done"].get("has_log", True):
            what = f"{undo['node']} forgot {entries:,} entries of its log"
            return Evidence(entries > 0, what, {"entries": entries})
        what = f"{undo['node']} got older files back: {changed:,} bytes in files that were others"
        return Evidence(changed > 0, what, {"changed_bytes": changed})

    async def undo(self, undo: Json, world: World) -> None:
        """Make sure that the node runs; the group replicates to it what it forgot."""
        if undo["incarnation"] != UNTOUCHED:
            await world.restart(undo["node"], undo["incarnation"])


ROLLBACK = Rollback()


PLUGINS = (WIPE, DAMAGE, ROLLBACK)
