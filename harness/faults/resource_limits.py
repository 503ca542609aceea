"""Faults that take a resource from nodes' processes for a while: what they share.

What is taken is a `contracts.resources.Resources`; what that did, as the world measured it from
outside, is the evidence. A process may end for want of it: that is the fault's doing, and the node
is started again when it is given back.

Source: Chaos Mesh's StressChaos; prlimit(2).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import all_of
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.contracts.resources import Resources, TakesResources
from shaketable.harness.faults.victims import (
    choose_variants,
    describe_victims,
    pick_victims,
    plan_victims,
    without,
)

VARIANTS = ("leader", "one", "minority")
UNDO_TIMEOUT_S = 10.0

Judge = Callable[[Resources, Json], str | None]
"""Says of what it did to one node, in words, how it bit; None if it did not."""


@dataclass(slots=True, eq=False)
class ResourceFault:
    """Take a resource from some nodes for a while; implements `contracts.plugins.Fault`.

    Attributes:
        name: the fault's.
        summary: what `list` shows.
        needs: the words that a world must have for it.
        draw: draws the fields of a `Resources` that are not the default.
        tell: says in words what that is: "leave 20 % of the processor to".
        judge: says whether it bit.
        measures: what of the world's measures goes into the evidence, summed over the nodes.
    """

    name: str
    summary: str
    needs: frozenset[Capability]
    draw: Callable[[Random, int], Json]
    tell: Callable[[Resources], str]
    judge: Judge
    measures: tuple[str, ...]
    variants: tuple[str, ...] = VARIANTS
    family: str = capabilities.RESOURCES

    def configured(self, options: Json) -> Fault:
        """Return this fault on options["victims"] alone, where there are any."""
        return replace(self, variants=choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has processes; what a world can take from them it says itself."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """Draw whose, and how much."""
        plan = plan_victims(rng, nodes, self.variants, turn)
        return {**plan, "resources": self.draw(rng, turn)}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Name the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Say "leave 20 % of the processor to leader n1"."""
        return describe_victims(self.tell(Resources(**plan["resources"])), plan)

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """The victims; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Spare some of the victims."""
        return without(plan, spare)

    async def apply(self, plan: Json, world: World) -> Json:
        """Take it from each victim; return under which ids."""
        assert isinstance(world, TakesResources), "the fault was not available"
        undo: Json = {"taken": {}}
        try:
            for node in plan["victims"]:
                undo["taken"][node] = await world.take(node, Resources(**plan["resources"]))
        except BaseException:  # also when cancelled: nobody else knows what was taken so far
            with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
                await self.undo(undo, world)
            raise
        return undo

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Ask what that did so far, as measured from outside."""
        assert isinstance(world, TakesResources), "the fault was not available"
        await trio.lowlevel.checkpoint()
        resources = Resources(**plan["resources"])
        did = {node: world.taken(taken) for node, taken in undo["taken"].items() if taken}
        affected = {node: how for node, each in did.items() if (how := self.judge(resources, each))}
        sums = _sums(did, self.measures)
        if not affected:
            return Evidence(False, "nothing was seen of it", sums)
        what = "; ".join(f"{node} {how}" for node, how in affected.items())
        leader = await world.leader()
        what += f"; {leader} leads" if leader is not None else "; nobody leads"
        return Evidence(True, what, sums)

    async def undo(self, undo: Json, world: World) -> None:
        """Give exactly that back; what ended for want of it starts again."""
        assert isinstance(world, TakesResources), "the fault was not available"
        failed: dict[str, Exception] = {}

        async def give_back(node: str, taken: str) -> None:
            try:
                await world.give_back(taken)
            except Exception as error:  # the others get theirs back all the same
                failed[node] = error

        async with trio.open_nursery() as nursery:  # at once: none is left short by another's wait
            for node, taken in undo["taken"].items():
                nursery.start_soon(give_back, node, taken)
        if failed:
            raise all_of(failed)


def how_it_ended(did: Json) -> str | None:
    """Say that a node ended for want of what was taken; None if it did not."""
    return None if did["ended"] is None else f"ended of it ({did['ended']})"


def _sums(did: Mapping[str, Json], names: Sequence[str]) -> dict[str, int | float]:
    sums = {name: sum(each.get(name) or 0 for each in did.values()) for name in names}
    return {**sums, "ended": sum(each["ended"] is not None for each in did.values())}


# Take processor time from nodes: each runs for its share of the time, in slices of time.
#
# The process is stopped for most of each slice (20 to 400 ms) and goes on for the rest, as on a
# machine that is overcommitted, or throttled by a quota. The rest of this machine is left alone.
#
# Source: cpulimit; CFS bandwidth control, which throttles in slices of 100 ms; Chaos Mesh.

SHARES = (0.05, 0.1, 0.2, 0.4)
SLICES_MS = (20.0, 50.0, 100.0, 400.0)
"""The longest are longer than an election timeout of the built-in target."""
HELD_SHARE_MIN = 0.5
"""It bit if the process was stopped for this share of the time that was to be taken."""


def _draw_cpu(rng: Random, turn: int) -> Json:
    return {"cpu_share": rng.choice(SHARES), "slice_ms": rng.choice(SLICES_MS)}


def _tell_cpu(resources: Resources) -> str:
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
    summary="Let nodes run for 5 to 40 % of the time only, in slices of 20 to 400 ms.",
    needs=frozenset({Capability.CPU}),
    draw=_draw_cpu,
    tell=_tell_cpu,
    judge=_judge_cpu,
    measures=("stops", "stopped_ms", "wall_ms", "cpu_ms"),
)


# Take memory from nodes: a process gets little more than it has, or nothing, whatever it asks.
#
# The limit is the process's own (RLIMIT_AS). Meanwhile a crowd asks for connections at its door, as
# clients do that come back all at once, so that it wants more. A program that is refused carries on
# without, or ends, or loses a part of itself and stands still: in the end it has its limit as it
# was, and is started again if it does not run or does not answer.
#
# Source: setrlimit(2); Chaos Mesh's memory stress; openraft and etcd out-of-memory reports.

MIB = 1 << 20
SPARES_BYTES = (0, 0, 0, MIB)
MEMORY_CALLERS = 400
"""Each of them costs a program some memory, all of them more than it has in hand."""


def _draw_memory(rng: Random, turn: int) -> Json:
    return {
        "memory_spare_bytes": rng.choice(SPARES_BYTES) if turn else 0,
        "callers": MEMORY_CALLERS,
    }


def _tell_memory(resources: Resources) -> str:
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
    summary="Let nodes have 0 or 1 MiB more memory than they have now (RLIMIT_AS).",
    needs=frozenset({Capability.MEMORY}),
    draw=_draw_memory,
    tell=_tell_memory,
    judge=_judge_memory,
    measures=("refused",),
)


# Take descriptors from nodes: a process can open few more files and connections, or none.
#
# The limit is the process's own (RLIMIT_NOFILE). Meanwhile a few connections are asked for at its
# door, as by clients that come back all at once; a node that has none left lets them wait there.
#
# Source: setrlimit(2); accept(2), EMFILE.

SPARES = (0, 0, 1, 3)
DESCRIPTORS_CALLERS = 8


def _draw_descriptors(rng: Random, turn: int) -> Json:
    return {"descriptors_spare": rng.choice(SPARES) if turn else 0, "callers": DESCRIPTORS_CALLERS}


def _tell_descriptors(resources: Resources) -> str:
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
        what += f", it said so {refused} times"
    return what if ended is None else f"{what}, and {ended}"


DESCRIPTORS = ResourceFault(
    name="descriptors",
    summary="Let nodes open 0 to 3 more files and connections than they have (RLIMIT_NOFILE).",
    needs=frozenset({Capability.DESCRIPTORS}),
    draw=_draw_descriptors,
    tell=_tell_descriptors,
    judge=_judge_descriptors,
    measures=("unaccepted", "refused"),
)


PLUGINS = (CPU, MEMORY, DESCRIPTORS)
