"""Victims of a fault that works on processes: drawn before the run, named when it strikes.

Shared by the faults whose undo is "these incarnations of these nodes". A world answers
`UNTOUCHED` for a node on which it could do nothing (it was dead, or already paused by
another fault); the undo then leaves that node alone, so that no fault heals another's.

Source: jepsen.nemesis.combined `db-nodes` (target selection is a parameter of the fault).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from random import Random

import trio

from harness.discovery import unknown
from harness.errors import UsageError
from harness.plugins import UNTOUCHED, Json, World

UNDO_TIMEOUT_S = 10.0
VICTIMS = ("leader", "one", "minority", "all")
MASTERS = "masters"
"""What leaders are called where there are several."""


def choose_variants(fault: str, variants: Sequence[str], options: Json) -> tuple[str, ...]:
    """Return those of a fault's variants that the option `victims` names; without it, all.

    Raises:
        UsageError: it names none of them, or something that is no victim.
    """
    asked = [
        "leader" if victim == MASTERS else victim for victim in options.get("victims") or variants
    ]
    for victim in asked:
        if victim not in VICTIMS:
            raise UsageError(unknown("victim", victim, VICTIMS))
    chosen = tuple(variant for variant in variants if variant in asked)
    if not chosen:
        there_are = ", ".join(variants)
        raise UsageError(f"victims {', '.join(asked)}: {fault} can strike: {there_are}")
    return chosen


def plan_victims(rng: Random, nodes: Sequence[str], variants: Sequence[str], turn: int) -> Json:
    """Draw {"variant", "order"}; the first turn aims at the leader if that may be."""
    order = rng.sample(list(nodes), len(nodes))
    drawn = rng.choice(list(variants))
    return {"variant": "leader" if turn == 0 and "leader" in variants else drawn, "order": order}


def pick_victims(plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
    """Return the plan with "victims" and who led then. Without a leader, the first drawn."""
    order = [node for node in plan["order"] if node in nodes]
    variant = plan["variant"]
    counts = {"one": 1, "minority": max(1, (len(nodes) - 1) // 2), "all": len(nodes)}
    if variant == "leader":
        victims = [leader if leader is not None else order[0]]
    else:
        victims = order[: counts[variant]]
    return {**plan, "victims": victims, "leader": leader}


def describe_victims(verb: str, plan: Json) -> str:
    """Say what an aimed (or not yet aimed) plan does: "kill leader n1"."""
    victims = plan.get("victims")
    if victims is None:
        return f"{verb} {plan['variant']}"
    if plan["variant"] == "all":
        return f"{verb} all nodes"
    leader = plan.get("leader")
    return f"{verb} {', '.join(f'leader {v}' if v == leader else v for v in victims)}"


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
    except BaseException:  # also when cancelled: nobody else knows what was struck so far
        with trio.CancelScope(shield=True, deadline=trio.current_time() + UNDO_TIMEOUT_S):
            await undo({"incarnations": struck}, world)
        raise
    return {"incarnations": struck}


def in_effect(undo: Json) -> Iterator[tuple[str, int]]:
    """Yield the nodes and incarnations that this fault really struck."""
    for node, incarnation in undo["incarnations"].items():
        if incarnation != UNTOUCHED:
            yield node, incarnation
