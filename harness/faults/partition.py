"""Partition the network between the nodes: hold what flows over some directed links.

A cut holds bytes and delivers them when it is mended, or resets the connections that
crossed it; which of the two is drawn. Clients reach every node throughout.

Source: jepsen.nemesis (partition-halves, -random-node, majorities-ring, bridge) and
jepsen.nemesis.combined `partition-package`; one-way cuts as in TigerBeetle's simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from harness import words
from harness.faults import grudges
from harness.plugins import Evidence, Fault, Json, Target, World
from harness.words import Word

SHAPES = (
    "isolate-leader",
    "isolate-one",
    "minority-with-leader",
    "halves",
    "majorities-ring",
    "bridge",
    "leader-deaf",
    "leader-mute",
    "one-way",
)
MEND_MODES = ("deliver", "reset")
NODES_MIN = 2
MINORITY_NODES_MIN = 5
"""Below that a minority with the leader is the leader alone."""


class Partition:
    """Cut links between nodes: leader or one isolated, halves, ring, bridge, one-way."""

    name = "partition"
    family = words.NETWORK
    needs = frozenset({Word.CUT})

    def configured(self, options: Json) -> Fault:
        """Return itself: it has no options."""
        return self

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link to cut."""
        return "a group of one node has no links to cut" if len(nodes) < NODES_MIN else None

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """Draw a shape, an order of the nodes and how to mend; the first isolates the leader."""
        order = rng.sample(list(nodes), len(nodes))
        mend = rng.choice(MEND_MODES)
        shape = rng.choice(shapes_for(len(nodes)))
        return {"shape": "isolate-leader" if turn == 0 else shape, "order": order, "mend": mend}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan with the links to cut and a label. Without a leader, the first drawn."""
        order = [node for node in plan["order"] if node in nodes]
        target = leader if leader is not None else order[0]
        role = f"leader {target}" if leader is not None else target
        label, links = _aim_shape(plan["shape"], nodes, order, target, role)
        return {**plan, "links": [list(link) for link in links], "label": label, "leader": leader}

    def describe(self, plan: Json) -> str:
        """Say "isolate leader n1, held bytes delivered after"."""
        after = {"deliver": "held bytes delivered after", "reset": "connections reset after"}
        return f"{plan.get('label', plan['shape'])}, {after[plan['mend']]}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links."""
        cut = await world.cut([(a, b) for a, b in plan["links"]])
        return {"cut": cut, "how": plan["mend"]}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Bit if bytes or connections stood before this very cut."""
        held = world.held(undo["cut"])
        what = f"held {held['bytes']} bytes of {held['connections']} connections"
        return Evidence(held["bytes"] > 0 or held["connections"] > 0, what, dict(held))

    async def undo(self, undo: Json, world: World) -> None:
        """Mend this cut."""
        await world.mend(undo["cut"], undo["how"])


def shapes_for(node_count: int) -> list[str]:
    """The shapes that cut something in a group of this size."""
    needs = {
        "minority-with-leader": MINORITY_NODES_MIN,
        "halves": grudges.BRIDGE_NODES_MIN,
        "majorities-ring": grudges.RING_NODES_MIN,
        "bridge": grudges.BRIDGE_NODES_MIN,
    }
    return [shape for shape in SHAPES if node_count >= needs.get(shape, 2)]


def _aim_shape(
    shape: str, nodes: Sequence[str], order: list[str], target: str, role: str
) -> tuple[str, tuple[grudges.Link, ...]]:
    """Return what the shape does in words, and its grudge."""
    minority = max(1, (len(nodes) - 1) // 2)
    others = [node for node in order if node != target]
    match shape:
        case "isolate-leader":
            return f"isolate {role}", grudges.components(nodes, [[target], others])
        case "isolate-one":
            return f"isolate {order[0]}", grudges.components(nodes, [order[:1], order[1:]])
        case "minority-with-leader" | "halves":
            front = order if shape == "halves" else [target, *others]
            parts = front[:minority], front[minority:]
            return f"partition {_names(parts)}", grudges.components(nodes, parts)
        case "majorities-ring":
            return f"majorities ring {' '.join(order)}", grudges.majorities_ring(nodes, order)
        case "bridge":
            # Followers talk to the leader alone: with it in the middle nothing would be cut.
            half = (len(order) - 1) // 2
            if order[half] == target:
                order = [order[half], *order[1:half], order[0], *order[half + 1 :]]
            left, middle, right = order[:half], order[half], order[half + 1 :]
            label = f"bridge {_names((left, [middle], right))}"
            return label, grudges.bridge(nodes, left, middle, right)
        case _:
            return _aim_one_way(shape, nodes, order, target, role)


def _aim_one_way(
    shape: str, nodes: Sequence[str], order: list[str], target: str, role: str
) -> tuple[str, tuple[grudges.Link, ...]]:
    match shape:
        case "leader-deaf":
            return f"{role} deaf (can send, cannot hear)", grudges.deaf(nodes, target)
        case "leader-mute":
            return f"{role} mute (can hear, cannot send)", grudges.mute(nodes, target)
        case "one-way":
            # For the same reason the pair has the leader in it.
            a, b = order[:2] if target in order[:2] else (order[0], target)
            return f"one-way cut {a} -> {b}", ((a, b),)
    raise ValueError(f"partition: unknown shape {shape!r}")


def _names(parts: Sequence[Sequence[str]]) -> str:
    return " | ".join(" ".join(part) for part in parts)


PLUGIN = Partition()
