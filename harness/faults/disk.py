"""Faults of disks: errors, full, slow, stalled; power loss; data wiped, damaged, rolled back.

Disks that fail, fill up, get slow or stall: the fault is injected into the node's own disk calls,
and the node counts its effects (`InjectsDiskFaults`). A node that ends because of it is started
again when it is healed.

Power loss: everything that a node had not synced is gone; of several nodes at once. For processes
without root, the node's disk keeps unsynced writes in process memory (campaign: `disk =
"volatile"`), so SIGKILL is a power loss. The lost bytes are counted in a file that outlives the
process. A program that is not ours is killed, and its disk (`harness.volatile_disk`) forgets what
it had not synced, names of files too. If nothing unsynced was lost, the fault had no effect.

Source: HARNESSES.md section 5; charybdefs; libfiu; `strace -e inject`; lazyfs (clear cache on
kill); etcd's robustness tests; "All File Systems Are Not Created Equal" (OSDI 2014).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Self

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.abilities import LosesDisks, NoticesDamage, StoresFiles
from shaketable.harness.contracts.capabilities import (
    Capability,
    DiskFaultSpec,
    InjectsDiskFaults,
    LosesPower,
)
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Json, Target, World
from shaketable.harness.faults.victims import (
    SINGLE,
    UNDO_TIMEOUT_S,
    NodeFault,
    ended,
    restart_struck,
    undone_if_it_fails,
    who_leads,
)

VARIANTS = ("leader", "one", "minority")

Judge = Callable[[DiskFaultSpec, Mapping[str, Json]], tuple[bool, str]]
"""Decides from the effects on each node whether the fault took effect; describes the evidence."""


@dataclass(eq=False)
class DiskFault(NodeFault):
    """Inject a fault into the disks of some nodes; implements `contracts.plugins.Fault`.

    Attributes:
        name: the fault's name.
        summary: the text that `list` shows.
        needs: the capabilities that a world must have.
        draw_spec: draws the fields of a `DiskFaultSpec` that are not the default.
        phrase: describes the disk fault: "slow disk (50 ms a sync) of".
        judge: decides whether it took effect.
        takes_out: whether the group has to do without the node meanwhile.
        restarts: whether the victims are killed first, and start under the fault.
    """

    name: str
    summary: str
    needs: frozenset[Capability]
    draw_spec: Callable[[Random, int], Json]
    phrase: Callable[[DiskFaultSpec], str]
    judge: Judge
    takes_out: bool = True
    restarts: Callable[[DiskFaultSpec], bool] = lambda _: False
    variants: tuple[str, ...] = VARIANTS
    family: str = capabilities.DISK

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the disk fault."""
        return {"disk_fault": self.draw_spec(rng, index)}

    def verb(self, plan: Json) -> str:
        """Describe the disk fault: "full disk of"."""
        return self.phrase(DiskFaultSpec(**plan["disk_fault"]))

    async def apply(self, plan: Json, world: World) -> Json:
        """Inject the fault into each victim's disk; return the ids of the disk faults."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        spec = DiskFaultSpec(**plan["disk_fault"])
        undo: Json = {"disk_faults": {}}
        async with undone_if_it_fails(self, undo, world):
            for node in plan["victims"]:
                dead = await world.kill(node) if self.restarts(spec) else None
                undo["disk_faults"][node] = await world.inject_disk_fault(node, spec)
                if dead is not None and dead["incarnation"] != UNTOUCHED:
                    await world.restart(node, dead["incarnation"])
        return undo

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the nodes counted effects of these disk faults."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        await trio.lowlevel.checkpoint()
        did = {node: world.disk_fault_effects(name) for node, name in undo["disk_faults"].items()}
        took_effect, what = self.judge(DiskFaultSpec(**plan["disk_fault"]), did)
        ended = [node for node, each in did.items() if each["ended"]]
        if ended:
            what += f"; {', '.join(ended)} ended of it"
        what += f"; {await who_leads(world)}"
        return Evidence(took_effect, what, {**_sums(did), "ended": len(ended)})

    async def undo(self, undo: Json, world: World) -> None:
        """Heal exactly these disk faults; nodes that ended because of them start again."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        for name in undo["disk_faults"].values():
            await world.heal_disk(name)


def judge_errors(spec: DiskFaultSpec, did: Mapping[str, Json]) -> tuple[bool, str]:
    """Took effect if a call failed."""
    errors = int(_sums(did)["errors"])
    calls = "call" if errors == 1 else "calls"
    return errors > 0, f"{errors} {calls} ({spec.op}) failed with {spec.error}"


def judge_waits(spec: DiskFaultSpec, did: Mapping[str, Json]) -> tuple[bool, str]:
    """Took effect if a call was delayed."""
    sums = _sums(did)
    slowed = int(sums["slowed"])
    calls = "call" if slowed == 1 else "calls"
    how = "stalled" if spec.stall else f"waited {sums['waited_ms']:.0f} ms in all"
    return slowed > 0, f"{slowed} {calls} ({spec.op}) {how}"


def _sums(did: Mapping[str, Json]) -> dict[str, int | float]:
    return {
        name: sum(each[name] for each in did.values())
        for name in ("calls", "errors", "slowed", "waited_ms")
    }


# Disk errors: EIO from the N-th write, fsync or read on.
#
# What could not be written or synced may be lost, so the node has to stop; it starts again when the
# disk is healed. Reads happen at a start: the node is killed, and starts under the fault.
#
# Source: DESIGN.md decision 2 (an error of fsync is fatal); fsyncgate; charybdefs.

CALLS = ("sync", "write", "read")
NTH_MAX = 20


def _draw_disk_errors(rng: Random, index: int) -> Json:
    op = CALLS[index % len(CALLS)]
    nth = rng.randint(1, NTH_MAX) if op != "read" else 1
    return {"op": op, "error": "EIO", "nth": nth}


def _phrase_disk_errors(spec: DiskFaultSpec) -> str:
    since = f" from call {spec.nth} on" if spec.nth > 1 else ""
    return f"EIO ({spec.op}{since}) on"


DISK_ERRORS = DiskFault(
    name="disk-errors",
    summary="Make disk calls of a node fail with EIO: fsync, write, or reads at startup.",
    needs=frozenset({Capability.KILL, Capability.DISK_ERRORS}),
    draw_spec=_draw_disk_errors,
    phrase=_phrase_disk_errors,
    judge=judge_errors,
    restarts=lambda spec: spec.op == "read",
)


# Disk full: every write that needs space fails with ENOSPC, or only one to three of them.
#
# The latter is a disk that other programs use too: they free space, and take it. So a node runs out
# of space in the middle of what it saves, and not only before.
#
# Source: FoundationDB's simulated drives that fill up; DESIGN.md decision 2.

REFUSED_MAX = 3


def _draw_disk_full(rng: Random, index: int) -> Json:
    spec: Json = {"op": "write", "error": "ENOSPC"}
    if index % 2:
        spec |= {"nth": rng.randint(1, NTH_MAX), "times": rng.randint(1, REFUSED_MAX)}
    return spec


def _phrase_disk_full(spec: DiskFaultSpec) -> str:
    if not spec.times:
        return "full disk of"
    if spec.times == 1:
        return f"full disk (at write {spec.nth} from now) of"
    return f"full disk (at writes {spec.nth} to {spec.nth + spec.times - 1} from now) of"


DISK_FULL = DiskFault(
    name="disk-full",
    summary="Fill a node's disk (ENOSPC) for a while: the leader, one node or a minority.",
    needs=frozenset({Capability.DISK_FULL}),
    draw_spec=_draw_disk_full,
    phrase=_phrase_disk_full,
    judge=judge_errors,
)


# Slow disk: each fsync, or each call, takes longer.
#
# Source: TigerBeetle's slow disks; toxiproxy's latency, for a disk.

DELAYS_MS = (5.0, 20.0, 60.0, 150.0, 400.0)
"""From a slow drive to one that is about to fail."""


def _draw_disk_slow(rng: Random, index: int) -> Json:
    return {"op": rng.choice(("sync", "sync", "write")), "delay_ms": rng.choice(DELAYS_MS)}


def _phrase_disk_slow(spec: DiskFaultSpec) -> str:
    return f"slow disk ({spec.delay_ms:g} ms a {spec.op}) of"


DISK_SLOW = DiskFault(
    name="disk-slow",
    summary="Slow each fsync or write of a node down by 5 to 400 ms.",
    needs=frozenset({Capability.DISK_SLOW}),
    draw_spec=_draw_disk_slow,
    phrase=_phrase_disk_slow,
    judge=judge_waits,
    takes_out=False,
)


# Disk stall: calls block until the fault is healed.
#
# Heartbeats continue, so only the node itself can notice: a leader that cannot write must step
# down.
#
# Source: `fsfreeze`; EBS volumes that hang; etcd's robustness tests (sleep in a failpoint).


def _draw_disk_stall(rng: Random, index: int) -> Json:
    return {"op": rng.choice(("sync", "write", "any")), "stall": True}


def _phrase_disk_stall(spec: DiskFaultSpec) -> str:
    return f"stalled disk ({spec.op}) of"


DISK_STALL = DiskFault(
    name="disk-stall",
    summary="Block a node's disk calls until the fault ends.",
    needs=frozenset({Capability.DISK_SLOW}),
    draw_spec=_draw_disk_stall,
    phrase=_phrase_disk_stall,
    judge=judge_waits,
)


# Power loss.

POWER_VARIANTS = ("leader", "all", "one", "minority")
MOMENTS = ("", "sync:1", "write:2", "sync:3")
"""When: now, or at that event of the node (`LosesPower.lose_power`)."""
WITHOUT_EVENTS: Final = frozenset({"hosts"})
"""Worlds in which no event of a node is seen: power is lost once something is not synced."""


class Power(NodeFault):
    """Power off nodes, which lose their unsynced writes: the leader, one, a minority or all."""

    name = "power"
    family = capabilities.DISK
    needs = frozenset({Capability.KILL, Capability.POWER})
    variants = POWER_VARIANTS
    sees_events = True

    def configured(self, options: Json) -> Self:
        """Return this fault for the campaign's victims, and its world."""
        chosen = super().configured(options)
        chosen.sees_events = options.get("world") not in WITHOUT_EVENTS
        return chosen

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims and the moment; all nodes together lose power at once."""
        plan = super().plan(rng, nodes, index)
        on = rng.choice(MOMENTS)
        return {**plan, "on": "" if plan["variant"] == "all" else on}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "power loss of leader n1 at sync 3"."""
        event, _, nth = plan["on"].partition(":")
        at = f" at {event} {nth}" if event and self.sees_events else ""
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


POWER = Power()


# The data that a node has stored.

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
    """Kill a node, delete its store and restart it empty: the leader or any other."""

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
    """Flip bits in a stopped node's synced log, or truncate it: the node must notice."""

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
    """Restore an older copy of a node's store: outside Raft's fault model, judged separately."""

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


PLUGINS = (DISK_ERRORS, DISK_FULL, DISK_SLOW, DISK_STALL, POWER, WIPE, DAMAGE, ROLLBACK)
