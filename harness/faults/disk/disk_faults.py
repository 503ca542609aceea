"""Faults of disks that fail, fill up, get slow or stand still: what they share.

A harm is ordered of the node's own disk calls, and what it did is counted by the node
(`InjectsDiskFaults`). A node that ends of it is started again when it is healed.

Source: HARNESSES.md section 5; charybdefs; libfiu; `strace -e inject`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, DiskFaultSpec, InjectsDiskFaults
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one", "minority")
UNDO_TIMEOUT_S = 10.0

Judge = Callable[[DiskFaultSpec, Mapping[str, Json]], tuple[bool, str]]
"""Given a harm and what it did to each node, says whether it bit, and what shows it."""


@dataclass(slots=True, eq=False)
class DiskFault:
    """Harm the disks of some nodes for a while; implements `contracts.plugins.Fault`.

    Attributes:
        name: the fault's.
        summary: what `list` shows.
        needs: the words that a world must have for it.
        draw: draws the fields of a `DiskFaultSpec` that are not the default.
        tell: says in words what such a harm is: "slow disk (50 ms a sync) of".
        judge: says whether it bit.
        takes_out: whether a node is no good to its group meanwhile.
        restarts: whether each node is killed first, and started under the harm, by the plan.
    """

    name: str
    summary: str
    needs: frozenset[Capability]
    draw: Callable[[Random, int], Json]
    tell: Callable[[DiskFaultSpec], str]
    judge: Judge
    takes_out: bool = True
    restarts: Callable[[DiskFaultSpec], bool] = lambda _: False
    variants: tuple[str, ...] = VARIANTS
    family: str = capabilities.DISK

    def configured(self, options: Json) -> Fault:
        """Return this fault on options["victims"] alone, where there are any."""
        return replace(self, variants=choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has disks; what a world can do to them it says itself."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """Draw whose disks, and what becomes of them."""
        plan = plan_victims(rng, nodes, self.variants, turn)
        return {**plan, "harm": self.draw(rng, turn)}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Name the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Say "full disk of leader n1"."""
        return describe_victims(self.tell(DiskFaultSpec(**plan["harm"])), plan)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims, if they are no good meanwhile; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"]) if self.takes_out else ()

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Spare some of the victims."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Harm each victim's disk; return what harms these are."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        spec = DiskFaultSpec(**plan["harm"])
        undo: Json = {"harms": {}}
        try:
            for node in plan["victims"]:
                dead = await world.kill(node) if self.restarts(spec) else None
                undo["harms"][node] = await world.inject_disk_fault(node, spec)
                if dead is not None and dead["incarnation"] != UNTOUCHED:
                    await world.restart(node, dead["incarnation"])
        except BaseException:  # also when cancelled: nobody else knows what was harmed so far
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
                await self.undo(undo, world)
            raise
        return undo

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Ask what these very harms did, as the nodes counted."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        await trio.lowlevel.checkpoint()
        did = {node: world.disk_fault_effects(name) for node, name in undo["harms"].items()}
        took_effect, what = self.judge(DiskFaultSpec(**plan["harm"]), did)
        ended = [node for node, each in did.items() if each["ended"]]
        if ended:
            what += f"; {', '.join(ended)} ended of it"
        leader = await world.leader()
        what += f"; {leader} leads" if leader is not None else "; nobody leads"
        return Evidence(took_effect, what, {**_sums(did), "ended": len(ended)})

    async def undo(self, undo: Json, world: World) -> None:
        """Heal exactly these disks; what ended of that starts again."""
        assert isinstance(world, InjectsDiskFaults), "the fault was not available"
        for name in undo["harms"].values():
            await world.heal_disk(name)


def judge_errors(spec: DiskFaultSpec, did: Mapping[str, Json]) -> tuple[bool, str]:
    """Bit if a call was made to fail."""
    errors = int(_sums(did)["errors"])
    calls = "call" if errors == 1 else "calls"
    return errors > 0, f"{errors} {calls} ({spec.op}) failed with {spec.error}"


def judge_waits(spec: DiskFaultSpec, did: Mapping[str, Json]) -> tuple[bool, str]:
    """Bit if a call was made to wait."""
    sums = _sums(did)
    slowed = int(sums["slowed"])
    calls = "call" if slowed == 1 else "calls"
    how = "stood still" if spec.stall else f"waited {sums['waited_ms']:.0f} ms in all"
    return slowed > 0, f"{slowed} {calls} ({spec.op}) {how}"


def _sums(did: Mapping[str, Json]) -> dict[str, int | float]:
    return {
        name: sum(each[name] for each in did.values())
        for name in ("calls", "errors", "slowed", "waited_ms")
    }


# Let a node's disk fail: EIO from the N-th write, fsync or read on.
#
# What could not be written or synced may be lost, so a node has to stop; it starts again when the
# disk is well. Reads are those of a start: the node is killed, and starts under the fault.
#
# Source: DESIGN.md decision 2 (an error of fsync is fatal); fsyncgate; charybdefs.

CALLS = ("sync", "write", "read")
NTH_MAX = 20


def _draw_disk_errors(rng: Random, turn: int) -> Json:
    op = CALLS[turn % len(CALLS)]
    nth = rng.randint(1, NTH_MAX) if op != "read" else 1
    return {"op": op, "error": "EIO", "nth": nth}


def _tell_disk_errors(spec: DiskFaultSpec) -> str:
    since = f" from call {spec.nth} on" if spec.nth > 1 else ""
    return f"EIO ({spec.op}{since}) on"


DISK_ERRORS = DiskFault(
    name="disk-errors",
    summary="Let disk calls of a node fail (EIO): fsync, write, or read at a start.",
    needs=frozenset({Capability.KILL, Capability.DISK_ERRORS}),
    draw=_draw_disk_errors,
    tell=_tell_disk_errors,
    judge=judge_errors,
    restarts=lambda spec: spec.op == "read",
)


# Let a node's disk be full: every write that needs room fails with ENOSPC.
#
# Source: FoundationDB's simulated drives that fill up; DESIGN.md decision 2.


def _draw_disk_full(rng: Random, turn: int) -> Json:
    return {"op": "write", "error": "ENOSPC"}


def _tell_disk_full(spec: DiskFaultSpec) -> str:
    return "full disk of"


DISK_FULL = DiskFault(
    name="disk-full",
    summary="Let a node's disk be full (ENOSPC): leader, one or a minority; room comes back.",
    needs=frozenset({Capability.DISK_FULL}),
    draw=_draw_disk_full,
    tell=_tell_disk_full,
    judge=judge_errors,
)


# Let a node's disk be slow: each fsync, or each call, takes some time longer.
#
# Source: TigerBeetle's slow disks; toxiproxy's latency, for a disk.

DELAYS_MS = (5.0, 20.0, 60.0, 150.0, 400.0)
"""From a slow drive to one that is about to die."""


def _draw_disk_slow(rng: Random, turn: int) -> Json:
    return {"op": rng.choice(("sync", "sync", "write")), "delay_ms": rng.choice(DELAYS_MS)}


def _tell_disk_slow(spec: DiskFaultSpec) -> str:
    return f"slow disk ({spec.delay_ms:g} ms a {spec.op}) of"


DISK_SLOW = DiskFault(
    name="disk-slow",
    summary="Let each fsync or write of a node take longer, by 5 to 400 ms.",
    needs=frozenset({Capability.DISK_SLOW}),
    draw=_draw_disk_slow,
    tell=_tell_disk_slow,
    judge=judge_waits,
    takes_out=False,
)


# Let a node's disk stand still: calls do not return before the fault is over.
#
# Heartbeats go on, so that only the node itself can notice: a leader that cannot write must not
# go on leading.
#
# Source: `fsfreeze`; EBS volumes that hang; etcd's robustness tests (sleep in a failpoint).


def _draw_disk_stall(rng: Random, turn: int) -> Json:
    return {"op": rng.choice(("sync", "write", "any")), "stall": True}


def _tell_disk_stall(spec: DiskFaultSpec) -> str:
    return f"stalled disk ({spec.op}) of"


DISK_STALL = DiskFault(
    name="disk-stall",
    summary="Let disk calls of a node stand still until the fault is over.",
    needs=frozenset({Capability.DISK_SLOW}),
    draw=_draw_disk_stall,
    tell=_tell_disk_stall,
    judge=judge_waits,
)


PLUGINS = (DISK_ERRORS, DISK_FULL, DISK_SLOW, DISK_STALL)
