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

from shaketable.harness.contracts import words
from shaketable.harness.contracts.errors import all_of
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.contracts.resources import Resources, TakesResources
from shaketable.harness.contracts.words import Word
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
    needs: frozenset[Word]
    draw: Callable[[Random, int], Json]
    tell: Callable[[Resources], str]
    judge: Judge
    measures: tuple[str, ...]
    variants: tuple[str, ...] = VARIANTS
    family: str = words.RESOURCES

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
        """The victims; see `contracts.words.TakesOut`."""
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
        bitten = {node: how for node, each in did.items() if (how := self.judge(resources, each))}
        sums = _sums(did, self.measures)
        if not bitten:
            return Evidence(False, "nothing was seen of it", sums)
        what = "; ".join(f"{node} {how}" for node, how in bitten.items())
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
