"""Faults of disks that fail, fill up, get slow or stall.

The fault is injected into the node's own disk calls, and the node counts its effects
(`InjectsDiskFaults`). A node that ends because of it is started again when it is healed.

Source: HARNESSES.md section 5; charybdefs; libfiu; `strace -e inject`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, DiskFaultSpec, InjectsDiskFaults
from shaketable.harness.contracts.plugins import UNTOUCHED, Evidence, Json, World
from shaketable.harness.faults.victims import NodeFault, undone_if_it_fails, who_leads

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
    summary="Let disk calls of a node fail (EIO): fsync, write, or read at a start.",
    needs=frozenset({Capability.KILL, Capability.DISK_ERRORS}),
    draw_spec=_draw_disk_errors,
    phrase=_phrase_disk_errors,
    judge=judge_errors,
    restarts=lambda spec: spec.op == "read",
)


# Disk full: every write that needs space fails with ENOSPC.
#
# Source: FoundationDB's simulated drives that fill up; DESIGN.md decision 2.


def _draw_disk_full(rng: Random, index: int) -> Json:
    return {"op": "write", "error": "ENOSPC"}


def _phrase_disk_full(spec: DiskFaultSpec) -> str:
    return "full disk of"


DISK_FULL = DiskFault(
    name="disk-full",
    summary="Let a node's disk be full (ENOSPC): leader, one or a minority; room comes back.",
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
    summary="Let each fsync or write of a node take longer, by 5 to 400 ms.",
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
    summary="Stall disk calls of a node until the fault is over.",
    needs=frozenset({Capability.DISK_SLOW}),
    draw_spec=_draw_disk_stall,
    phrase=_phrase_disk_stall,
    judge=judge_waits,
)


PLUGINS = (DISK_ERRORS, DISK_FULL, DISK_SLOW, DISK_STALL)
