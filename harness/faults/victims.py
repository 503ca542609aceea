"""Victims of a fault: drawn before the run, resolved to nodes when it strikes, struck, and undone.

Shared by all faults of nodes. The campaign's `victims` is a role (leader, or masters if there are
several; followers), a number of nodes (one, minority, minority-third, majority, all), or nodes by
name ("n1"; several at once: "n0+n2").

Source: jepsen.nemesis.combined `db-nodes` (target selection is a parameter of the fault).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from random import Random
from typing import Self

import trio

from shaketable.harness.contracts.capabilities import Capability
from shaketable.harness.contracts.errors import UsageError, unknown_name
from shaketable.harness.contracts.plugins import UNTOUCHED, Fault, Json, Target, World

VICTIMS = ("leader", "one", "minority", "all", "minority-third", "majority", "followers")
"""The values of `victims` besides names of nodes."""
SINGLE = ("leader", "one")
"""Those of VICTIMS that are a single node."""
MASTERS = "masters"
"""The name for leaders if there are several."""
TOGETHER = "+"
"""Joins the names of nodes that are struck together."""


class UnknownVictimError(UsageError):
    """No fault has such a victim."""


def choose_variants(
    fault: str, variants: Sequence[str], options: Json, can: Sequence[str] = VICTIMS
) -> tuple[str, ...]:
    """Return the variants that option `victims` selects, as far as `can` allows; else `variants`.

    Args:
        fault: its name, for errors.
        variants: the fault's default.
        options: from `harness.campaigns.campaign.fault_options`.
        can: what the fault supports of VICTIMS; several named nodes only if "all" is among them.

    Raises:
        UnknownVictimError: an unknown victim.
        UsageError: the fault supports none of the victims.
    """
    asked = [
        "leader" if victim == MASTERS else victim for victim in options.get("victims") or variants
    ]
    nodes = options.get("nodes", ())
    for victim in asked:
        if victim not in VICTIMS and not set(victim.split(TOGETHER)) <= set(nodes):
            raise UnknownVictimError(unknown_name("victim", victim, (*VICTIMS, *nodes)))
    chosen = [variant for variant in can if variant in asked]
    named = [victim for victim in asked if victim not in VICTIMS]
    chosen += [victim for victim in named if TOGETHER not in victim or "all" in can]
    if not chosen:
        there_are = ", ".join(can)
        raise UsageError(f"victims {', '.join(asked)}: {fault} can strike: {there_are}")
    return tuple(chosen)


def is_victim(victim: str, nodes: Collection[str]) -> bool:
    """True if `victim` is valid for a group that includes these nodes."""
    return victim in (*VICTIMS, MASTERS) or set(victim.split(TOGETHER)) <= set(nodes)


def plan_victims(rng: Random, nodes: Sequence[str], variants: Sequence[str], index: int) -> Json:
    """Draw {"variant", "order"}; the first index strikes the leader if that is a variant."""
    order = rng.sample(list(nodes), len(nodes))
    drawn = rng.choice(list(variants))
    return {"variant": "leader" if index == 0 and "leader" in variants else drawn, "order": order}


def pick_victims(plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
    """Return the plan with "victims" and "leader"; for None, the first node drawn stands in."""
    order = [node for node in plan["order"] if node in nodes]
    return {**plan, "victims": _named(plan["variant"], order, leader), "leader": leader}


def _named(variant: str, order: Sequence[str], leader: str | None) -> list[str]:
    led = leader if leader is not None else order[0]
    if variant == "leader":
        return [led]
    if variant == "followers":
        return [node for node in order if node != led] or [led]
    size = len(order)
    counts = {
        "one": 1,
        "minority": max(1, (size - 1) // 2),
        "minority-third": max(1, (size - 1) // 3),
        "majority": size // 2 + 1,
        "all": size,
    }
    if variant in counts:
        return list(order[: counts[variant]])
    named = variant.split(TOGETHER)
    return [node for node in order if node in named]


def describe_victims(verb: str, plan: Json) -> str:
    """Describe a plan, aimed or not: "kill leader n1"."""
    victims = plan.get("victims")
    if victims is None:
        return f"{verb} {plan['variant']}"
    if plan["variant"] == "all" and len(victims) == len(plan["order"]):
        return f"{verb} all nodes"
    leader = plan.get("leader")
    return f"{verb} {', '.join(f'leader {v}' if v == leader else v for v in victims)}"


def without(plan: Json, spare: Collection[str]) -> Json | None:
    """Return an aimed plan without the spared nodes; None if no victim is left."""
    left = [node for node in plan["victims"] if node not in spare]
    return {**plan, "victims": left} if left else None


class NodeFault:
    """A fault of nodes by role, number or name: all but what it does to them.

    A subclass says what it is, has `apply`, `probe` and `undo` (`contracts.plugins.Fault`), and
    may draw more than its victims.

    Attributes:
        name: the fault's name.
        family: one of `contracts.capabilities.FAMILIES`.
        needs: the capabilities that a world must have.
        variants: the victims that it draws from; those of the campaign, if there are any.
        can: those of VICTIMS that a campaign may ask for.
        takes_out: whether the group has to do without the victims meanwhile.
    """

    name: str
    family: str
    needs: frozenset[Capability]
    variants: tuple[str, ...]
    can: tuple[str, ...] = VICTIMS
    takes_out: bool = True

    def configured(self, options: Json) -> Self:
        """Return this fault restricted to options["victims"], as far as it can strike them."""
        chosen = copy(self)
        chosen.variants = choose_variants(self.name, self.variants, options, self.can)
        return chosen

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Every group has nodes; the world decides what can be done to them."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the victims, and what `draw` adds; the first plan strikes the leader."""
        return {**plan_victims(rng, nodes, self.variants, index), **self.draw(rng, index)}

    def draw(self, rng: Random, index: int) -> Json:
        """Draw what else belongs to the `index`-th plan: nothing."""
        return {}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims."""
        return pick_victims(plan, nodes, leader)

    def describe(self, plan: Json) -> str:
        """Describe the plan: "kill leader n1"."""
        return describe_victims(self.verb(plan), plan)

    def verb(self, plan: Json) -> str:
        """Return what a plan does, its victims to follow: the name of the fault."""
        return self.name

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return the victims if it takes them out; see `contracts.capabilities.TakesOut`."""
        return list(plan["victims"]) if self.takes_out else ()

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the spared victims; see `contracts.capabilities.TakesOut`."""
        return without(plan, spare)


# Undo by incarnation, for faults that act on processes.
#
# For faults whose undo is "these incarnations of these nodes". A world returns `UNTOUCHED` for a
# node on which it could do nothing (it was dead, or already paused by another fault); the undo then
# leaves that node alone, so no fault heals another one.
#
# Source: DESIGN.md decision 10 (`undo` undoes exactly this fault).

UNDO_TIMEOUT_S = 10.0


async def apply_to_each(
    victims: Sequence[str],
    strike: Callable[[str], Awaitable[Json]],
    undo: Callable[[Json, World], Awaitable[None]],
    world: World,
) -> Json:
    """Strike all victims and return the undo; if one cannot be struck, undo the others first."""
    struck: dict[str, int] = {}
    try:
        for node in victims:
            struck[node] = (await strike(node))["incarnation"]
    except BaseException:  # also when cancelled: only this task knows what was struck so far
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
            await undo({"incarnations": struck}, world)
        raise
    return {"incarnations": struck}


@asynccontextmanager
async def undone_if_it_fails(fault: Fault, undo: Json, world: World) -> AsyncIterator[None]:
    """Undo what was done so far if the rest of an apply fails. `undo` may grow meanwhile."""
    try:
        yield
    except BaseException:  # also when cancelled: only this task knows what was done so far
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
            await fault.undo(undo, world)
        raise


def in_effect(undo: Json) -> Iterator[tuple[str, int]]:
    """Yield the nodes and incarnations that this fault actually struck."""
    for node, incarnation in undo["incarnations"].items():
        if incarnation != UNTOUCHED:
            yield node, incarnation


def ended(undo: Json, world: World) -> list[str]:
    """Return the nodes whose struck process is gone."""
    return [node for node, number in in_effect(undo) if not world.is_alive(node, number)]


async def restart_struck(undo: Json, world: World) -> None:
    """Start the nodes that this fault struck and that are still down."""
    for node, incarnation in in_effect(undo):
        await world.restart(node, incarnation)


async def who_leads(world: World) -> str:
    """Return "n1 leads", or "no known leader"."""
    leader = await world.leader()
    return f"{leader} leads" if leader is not None else "no known leader"
