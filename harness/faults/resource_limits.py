"""Faults that limit a resource of nodes' processes for a while.

The limits are a `contracts.capabilities.Resources`; the evidence is what the world measured from
outside. If a process ends for lack of the resource, the fault caused that, and the node is started
again when the limit is lifted.

Source: Chaos Mesh's StressChaos; prlimit(2).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, LimitsResources, Resources
from shaketable.harness.contracts.errors import all_of
from shaketable.harness.contracts.plugins import Evidence, Json, World
from shaketable.harness.faults.victims import NodeFault, undone_if_it_fails, who_leads

VARIANTS = ("leader", "one", "minority")

Judge = Callable[[Resources, Json], str | None]
"""Returns a phrase on how a node was affected, from what the world measured; None if it was not."""


@dataclass(eq=False)
class ResourceFault(NodeFault):
    """Limit a resource of some nodes for a while; implements `contracts.plugins.Fault`.

    Attributes:
        name: the fault's name.
        summary: the text that `list` shows.
        needs: the capabilities that a world must have.
        draw_limits: draws the fields of a `Resources` that are not the default.
        phrase: describes them: "leave 20 % of the processor to".
        judge: decides whether a node was affected.
        measures: which of the world's measures go into the evidence, summed over the nodes.
    """

    name: str
    summary: str
    needs: frozenset[Capability]
    draw_limits: Callable[[Random, int], Json]
    phrase: Callable[[Resources], str]
    judge: Judge
    measures: tuple[str, ...]
    variants: tuple[str, ...] = VARIANTS
    family: str = capabilities.RESOURCES

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the limits."""
        return {"resources": self.draw_limits(rng, index)}

    def verb(self, plan: Json) -> str:
        """Describe the limits: "leave 20 % of the processor to"."""
        return self.phrase(Resources(**plan["resources"]))

    async def apply(self, plan: Json, world: World) -> Json:
        """Limit each victim; return the ids of the limits."""
        assert isinstance(world, LimitsResources), "the fault was not available"
        undo: Json = {"taken": {}}
        limits = Resources(**plan["resources"])
        async with undone_if_it_fails(self, undo, world):
            for node in plan["victims"]:
                undo["taken"][node] = await world.limit_resources(node, limits)
        return undo

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a victim was affected, as measured from outside."""
        assert isinstance(world, LimitsResources), "the fault was not available"
        await trio.lowlevel.checkpoint()
        resources = Resources(**plan["resources"])
        did = {node: world.limit_effects(taken) for node, taken in undo["taken"].items() if taken}
        affected = {node: how for node, each in did.items() if (how := self.judge(resources, each))}
        sums = _sums(did, self.measures)
        if not affected:
            return Evidence(False, "nothing was seen of it", sums)
        what = "; ".join(f"{node} {how}" for node, how in affected.items())
        what += f"; {await who_leads(world)}"
        return Evidence(True, what, sums)

    async def undo(self, undo: Json, world: World) -> None:
        """Lift exactly these limits; nodes that ended because of them start again."""
        assert isinstance(world, LimitsResources), "the fault was not available"
        failed: dict[str, Exception] = {}

        async def lift(node: str, taken: str) -> None:
            try:
                await world.lift_limits(taken)
            except Exception as error:  # lift the other limits all the same
                failed[node] = error

        async with trio.open_nursery() as nursery:  # concurrently: a slow one delays no other
            for node, taken in undo["taken"].items():
                nursery.start_soon(lift, node, taken)
        if failed:
            raise all_of(failed)


def how_it_ended(did: Json) -> str | None:
    """Return a phrase if the node ended for lack of the resource; None if it did not."""
    return None if did["ended"] is None else f"ended of it ({did['ended']})"


def _sums(did: Mapping[str, Json], names: Sequence[str]) -> dict[str, int | float]:
    sums = {name: sum(each.get(name) or 0 for each in did.values()) for name in names}
    return {**sums, "ended": sum(each["ended"] is not None for each in did.values())}


# CPU: each victim runs for its share of the time, in slices.
#
# The process is stopped (SIGSTOP) for most of each slice (20 to 400 ms) and runs for the rest, as
# on an overcommitted machine, or when throttled by a quota. The rest of this machine is not
# affected.
#
# Source: cpulimit; CFS bandwidth control, which throttles in slices of 100 ms; Chaos Mesh.

SHARES = (0.05, 0.1, 0.2, 0.4)
SLICES_MS = (20.0, 50.0, 100.0, 400.0)
"""The longest is longer than an election timeout of the built-in target."""
HELD_SHARE_MIN = 0.5
"""Took effect if the process was stopped for this share of the time to be taken."""


def _draw_cpu(rng: Random, index: int) -> Json:
    return {"cpu_share": rng.choice(SHARES), "slice_ms": rng.choice(SLICES_MS)}


def _phrase_cpu(resources: Resources) -> str:
    return f"leave {resources.cpu_share:.0%} of the processor to"


def _judge_cpu(resources: Resources, did: Json) -> str | None:
    wall_ms, stopped_ms = did.get("wall_ms", 0.0), did.get("stopped_ms", 0.0)
    to_take_ms = wall_ms * (1 - resources.cpu_share)
    if not did.get("stops") or stopped_ms < HELD_SHARE_MIN * to_take_ms:
        return None
    ran_ms = did["cpu_ms"]
    ran = "" if ran_ms is None else f", ran {ran_ms:.0f} ms on a processor"
    before = f" ({did['cpu_share_before']:.0%} of one before)" if ran else ""
    return (
        f"was stopped for {stopped_ms:.0f} of {wall_ms:.0f} ms, {did['stops']} times{ran}{before}"
    )


CPU = ResourceFault(
    name="cpu",
    summary="Throttle nodes to 5 to 40 % of CPU time, in slices of 20 to 400 ms.",
    needs=frozenset({Capability.CPU}),
    draw_limits=_draw_cpu,
    phrase=_phrase_cpu,
    judge=_judge_cpu,
    measures=("stops", "stopped_ms", "wall_ms", "cpu_ms"),
)


# Memory: a process can allocate little more than it has, or nothing.
#
# The limit is the process's own (RLIMIT_AS). Meanwhile many clients connect at once, so that the
# process needs more memory. A program whose allocation fails carries on without, or exits, or loses
# a part of itself and hangs. At the end its limit is restored, and it is started again if it does
# not run or does not answer.
#
# Source: setrlimit(2); Chaos Mesh's memory stress; openraft and etcd out-of-memory reports.

MIB = 1 << 20
SPARES_BYTES = (0, 0, 0, MIB)
MEMORY_CALLERS = 400
"""Each costs a program some memory; together they cost more than it has left."""


def _draw_memory(rng: Random, index: int) -> Json:
    return {
        "memory_spare_bytes": rng.choice(SPARES_BYTES) if index else 0,
        "callers": MEMORY_CALLERS,
    }


def _phrase_memory(resources: Resources) -> str:
    return f"leave {(resources.memory_spare_bytes or 0) // MIB} MiB more of memory to"


def _judge_memory(resources: Resources, did: Json) -> str | None:
    ended, refused = how_it_ended(did), did.get("refused", 0)
    if ended is None and did.get("silent"):
        ended = "it runs, and answers nothing"
    if ended is None and not refused:
        return None
    limit = f"was refused memory beyond {did.get('limit_bytes', 0) // MIB} MiB"
    return f"{limit} {refused} times" if ended is None else f"{limit}: {ended}"


MEMORY = ResourceFault(
    name="memory",
    summary="Let nodes allocate at most 1 MiB more memory, or none (RLIMIT_AS).",
    needs=frozenset({Capability.MEMORY}),
    draw_limits=_draw_memory,
    phrase=_phrase_memory,
    judge=_judge_memory,
    measures=("refused",),
)


# Descriptors: a process can open few more files and connections, or none.
#
# The limit is the process's own (RLIMIT_NOFILE). Meanwhile a few clients connect at once; a node
# without a free descriptor leaves them in the accept queue.
#
# Source: setrlimit(2); accept(2), EMFILE.

SPARES = (0, 0, 1, 3)
DESCRIPTORS_CALLERS = 8


def _draw_descriptors(rng: Random, index: int) -> Json:
    return {"descriptors_spare": rng.choice(SPARES) if index else 0, "callers": DESCRIPTORS_CALLERS}


def _phrase_descriptors(resources: Resources) -> str:
    return f"leave {resources.descriptors_spare} more descriptors to"


def _judge_descriptors(resources: Resources, did: Json) -> str | None:
    ended = how_it_ended(did)
    waiting, refused = did.get("unaccepted", 0), did.get("refused", 0)
    is_full = did.get("open", 0) >= did.get("limit", 1)
    if ended is None and not (is_full and (waiting or refused)):
        return None
    what = f"had all of its {did.get('limit')} descriptors in use"
    if waiting:
        what += f", {waiting} connections waited at its door"
    if refused:
        what += f", it reported so {refused} times"
    return what if ended is None else f"{what}, and {ended}"


DESCRIPTORS = ResourceFault(
    name="descriptors",
    summary="Let nodes open at most 0 to 3 more files and connections (RLIMIT_NOFILE).",
    needs=frozenset({Capability.DESCRIPTORS}),
    draw_limits=_draw_descriptors,
    phrase=_phrase_descriptors,
    judge=_judge_descriptors,
    measures=("unaccepted", "refused"),
)


PLUGINS = (CPU, MEMORY, DESCRIPTORS)
