"""Faults of links that stay links: vocabulary of those that differ only in what they draw.

Which links: all of the victims', in one direction or both. What becomes of them is a
`contracts.words.LinkShape`; what that did, as the world counted it, is the evidence.

Source: tc-netem(8) for the vocabulary; toxiproxy's directions; jepsen.nemesis.combined
`packet-package`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random

from shaketable.harness.contracts import words
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.contracts.words import LinkShape, ShapesLinks, Word
from shaketable.harness.faults.victims import choose_variants, pick_victims, plan_victims

VARIANTS = ("leader", "one", "minority", "all")
DIRECTIONS = ("both", "out", "in")
NODES_MIN = 2

Judge = Callable[[LinkShape, Json], tuple[bool, str]]
"""Says of what a shape did whether it bit, and in words what it did."""


@dataclass(slots=True, eq=False)
class LinkFault:
    """Shape the links of some nodes for a while; implements `contracts.plugins.Fault`.

    Never changed once made; only the protocol says that a name could be.

    Attributes:
        name: the fault's.
        summary: what `list` shows.
        needs: the words that a world must have for it.
        draw: draws the fields of a `LinkShape` that are not the default.
        tell: says in words what such a shape does: "delay 80 ms".
        judge: says whether it bit.
        directions: seen from the victims: what flows out of them, in to them, or both.
        variants: which victims it draws from.
    """

    name: str
    summary: str
    needs: frozenset[Word]
    draw: Callable[[Random], Json]
    tell: Callable[[LinkShape], str]
    judge: Judge
    directions: tuple[str, ...] = DIRECTIONS
    variants: tuple[str, ...] = VARIANTS
    family: str = words.NETWORK

    def configured(self, options: Json) -> Fault:
        """Return this fault on the links of options["victims"] alone, where there are any."""
        return replace(self, variants=choose_variants(self.name, VARIANTS, options))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link."""
        return "a group of one node has no links" if len(nodes) < NODES_MIN else None

    def plan(self, rng: Random, nodes: Sequence[str], turn: int) -> Json:
        """Draw whose links, in which direction, and what becomes of them."""
        plan = plan_victims(rng, nodes, self.variants, turn)
        shape = {**self.draw(rng), "seed": f"{rng.getrandbits(48):x}"}
        # The first goes both ways if it can: what the leader sends most of is not known.
        drawn = rng.choice(self.directions)
        return {
            **plan,
            "direction": self.directions[0] if turn == 0 else drawn,
            "link_shape": shape,
        }

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Name the victims and their links."""
        aimed = pick_victims(plan, nodes, leader)
        return {**aimed, "links": _links(aimed["victims"], nodes, plan["direction"])}

    def describe(self, plan: Json) -> str:
        """Say "delay 80 ms on links of leader n1"."""
        what = self.tell(LinkShape(**plan["link_shape"]))
        victims = plan.get("victims")
        if victims is None:
            return f"{what} on links of {plan['variant']}"
        way = {"both": "on links of", "out": "on links from", "in": "on links to"}
        named = [f"leader {node}" if node == plan["leader"] else node for node in victims]
        whose = "all nodes" if len(victims) == len(plan["order"]) else ", ".join(named)
        return f"{what} {way[plan['direction']]} {whose}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Shape the links."""
        assert isinstance(world, ShapesLinks), "the fault was not available"
        links = [(a, b) for a, b in plan["links"]]
        return {"shape": await world.shape(links, LinkShape(**plan["link_shape"]))}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Ask the world what this very shape did."""
        assert isinstance(world, ShapesLinks), "the fault was not available"
        did = world.shaped(undo["shape"])
        bit, what = self.judge(LinkShape(**plan["link_shape"]), did)
        return Evidence(bit, what, {name: much for name, much in did.items() if much})

    async def undo(self, undo: Json, world: World) -> None:
        """Take this shape away."""
        assert isinstance(world, ShapesLinks), "the fault was not available"
        await world.unshape(undo["shape"])


def judge_count(counted: str, told: str) -> Judge:
    """Judge by one count that must not be 0: "12 packets lost of 3 456 bytes that came"."""

    def judge(_shape: LinkShape, did: Json) -> tuple[bool, str]:
        many = did.get(counted, 0)
        return many > 0, f"{many} {told}, {crossed(did)}"

    return judge


def crossed(did: Json) -> str:
    """Say how much met the shape."""
    unit = "packets" if "packets" in did else "chunks"
    return f"{did.get(unit, 0)} {unit} ({did.get('bytes', 0)} bytes) came by"


def _links(victims: Sequence[str], nodes: Sequence[str], direction: str) -> list[list[str]]:
    """Return the links of the victims; of all nodes those in one direction are all as well."""
    return [
        [a, b]
        for a, b in permutations(nodes, 2)
        if (direction != "in" and a in victims) or (direction != "out" and b in victims)
    ]
