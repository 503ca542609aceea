"""Victims of a fault: which nodes it strikes, drawn before the run, named when it strikes.

Shared by all faults of nodes. The campaign's `victims` says whom: a role (leader, or masters where
there are several; followers), a number of nodes (one, minority, minority-third, majority, all), or
nodes by name ("n1"; several at once: "n0+n2").

Source: jepsen.nemesis.combined `db-nodes` (target selection is a parameter of the fault).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

from shaketable.harness.contracts.errors import UsageError
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.discovery import unknown

VICTIMS = ("leader", "one", "minority", "all", "minority-third", "majority", "followers")
"""What `victims` may say besides names of nodes."""
SINGLE = ("leader", "one")
"""Those of VICTIMS that are one node."""
MASTERS = "masters"
"""What leaders are called where there are several."""
TOGETHER = "+"
"""Joins the names of nodes that are struck at once."""


class UnknownVictimError(UsageError):
    """Such a victim there is for no fault."""


def choose_variants(
    fault: str, variants: Sequence[str], options: Json, can: Sequence[str] = VICTIMS
) -> tuple[str, ...]:
    """Return what the option `victims` asks for, as far as the fault can; without it, `variants`.

    Args:
        fault: its name, for errors.
        variants: what it draws from by itself.
        options: as `harness.campaigns.campaign.fault_options` gives them.
        can: what it can strike: of VICTIMS; several named nodes at once only if "all" is in it.

    Raises:
        UnknownVictimError: it names what is no victim.
        UsageError: it names nothing that the fault can strike.
    """
    asked = [
        "leader" if victim == MASTERS else victim for victim in options.get("victims") or variants
    ]
    nodes = options.get("nodes", ())
    for victim in asked:
        if victim not in VICTIMS and not set(victim.split(TOGETHER)) <= set(nodes):
            raise UnknownVictimError(unknown("victim", victim, (*VICTIMS, *nodes)))
    chosen = [variant for variant in can if variant in asked]
    named = [victim for victim in asked if victim not in VICTIMS]
    chosen += [victim for victim in named if TOGETHER not in victim or "all" in can]
    if not chosen:
        there_are = ", ".join(can)
        raise UsageError(f"victims {', '.join(asked)}: {fault} can strike: {there_are}")
    return tuple(chosen)


def is_victim(victim: str, nodes: Collection[str]) -> bool:
    """Whether `victims` may say this of a group of those nodes, or of some of them."""
    return victim in (*VICTIMS, MASTERS) or set(victim.split(TOGETHER)) <= set(nodes)


def plan_victims(rng: Random, nodes: Sequence[str], variants: Sequence[str], turn: int) -> Json:
    """Draw {"variant", "order"}; the first turn aims at the leader if that may be."""
    order = rng.sample(list(nodes), len(nodes))
    drawn = rng.choice(list(variants))
    return {"variant": "leader" if turn == 0 and "leader" in variants else drawn, "order": order}


def pick_victims(plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
    """Return the plan with "victims" and who led then. Without a leader, the first drawn."""
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
    """Say what an aimed (or not yet aimed) plan does: "kill leader n1"."""
    victims = plan.get("victims")
    if victims is None:
        return f"{verb} {plan['variant']}"
    if plan["variant"] == "all" and len(victims) == len(plan["order"]):
        return f"{verb} all nodes"
    leader = plan.get("leader")
    return f"{verb} {', '.join(f'leader {v}' if v == leader else v for v in victims)}"


def without(plan: Json, spare: Collection[str]) -> Json | None:
    """Return an aimed plan that spares those nodes; None if nobody would be struck."""
    left = [node for node in plan["victims"] if node not in spare]
    return {**plan, "victims": left} if left else None
