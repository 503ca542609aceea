"""Faults of the links among nodes: cut once (partition), again and again (flap), or degraded.

A fault that degrades links without cutting them has a set of shapes to draw from. It strikes all
links of the victims, in one direction or both. The effect is a `contracts.capabilities.LinkShape`;
the evidence is what the world counted.

Source: tc-netem(8) for the vocabulary; toxiproxy's directions; jepsen.nemesis.combined
`packet-package`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, LinkShape, ShapesLinks
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults import grudges
from shaketable.harness.faults.victims import (
    NodeFault,
    choose_variants,
    pick_victims,
    plan_victims,
)

# Partition the network between the nodes: hold the traffic of some directed links.
#
# A cut holds bytes and delivers them when it is healed, or resets the connections that crossed it,
# as drawn. In world netns a cut drops packets, and TCP retransmits them. Clients always reach every
# node.
#
# Source: jepsen.nemesis (partition-halves, -random-node, majorities-ring, bridge) and
# jepsen.nemesis.combined `partition-package` (one, majority, majorities-ring, minority-third,
# primaries); one-way cuts as in TigerBeetle's simulator.

HEAL_MODES = ("deliver", "reset")
NODES_MIN = 2
PARTITION_VARIANTS = ("leader", "one", "minority", "minority-third", "majority", "followers")
"""The values of `victims`; "all" would cut nothing."""


class Partition:
    """Partition nodes: leader or others isolated, halves, ring, bridge, one-way, all."""

    name = "partition"
    family = capabilities.NETWORK
    needs = frozenset({Capability.CUT})

    def __init__(self, variants: Sequence[str] = ()) -> None:
        self._variants = tuple(variants)

    def configured(self, options: Json) -> Fault:
        """Return this fault; with options["victims"] it isolates these from all others."""
        if not options.get("victims"):
            return self
        return Partition(
            choose_variants(self.name, PARTITION_VARIANTS, options, PARTITION_VARIANTS)
        )

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link to cut."""
        return "a group of one node has no links to cut" if len(nodes) < NODES_MIN else None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw a shape, an order of the nodes and how to heal; the first isolates the leader."""
        if self._variants:
            heal = rng.choice(HEAL_MODES)
            return {
                "shape": "victims",
                "heal": heal,
                **plan_victims(rng, nodes, self._variants, index),
            }
        order = rng.sample(list(nodes), len(nodes))
        heal = rng.choice(HEAL_MODES)
        shape = rng.choice(grudges.shapes_for(len(nodes)))
        return {"shape": "isolate-leader" if index == 0 else shape, "order": order, "heal": heal}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan with the links to cut and a label; see `pick_victims`."""
        order = [node for node in plan["order"] if node in nodes]
        target = leader if leader is not None else order[0]
        role = f"leader {target}" if leader is not None else target
        if plan["shape"] == "victims":
            victims = pick_victims(plan, nodes, leader)["victims"]
            rest = [node for node in nodes if node not in victims]
            label = f"isolate {' '.join(victims)}"
            links = grudges.components(nodes, [victims, rest])
        else:
            label, links = grudges.aim_shape(plan["shape"], nodes, order, target, role)
        return {**plan, "links": [list(link) for link in links], "label": label, "leader": leader}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "isolate leader n1, held bytes delivered after"."""
        after = {"deliver": "held bytes delivered after", "reset": "connections reset after"}
        return f"{plan.get('label', plan['shape'])}, {after[plan['heal']]}"

    def taken_out(self, plan: Json, nodes: Sequence[str]) -> Collection[str]:
        """Return the nodes outside the largest set whose members all reach each other directly."""
        return grudges.parted(nodes, [(a, b) for a, b in plan["links"]])

    def narrowed(self, plan: Json, nodes: Sequence[str], spare: Collection[str]) -> Json | None:
        """Return the plan without the links of the spared nodes."""
        links = [link for link in plan["links"] if not set(spare) & set(link)]
        return {**plan, "links": links, "label": f"{plan['label']}, in part"} if links else None

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links; with several primaries (one a group), those of all of them."""
        links = [(a, b) for a, b in plan["links"]]
        if plan["shape"] == "primaries":
            alone = [node for node in world.nodes if await world.leader((node,)) == node]
            links += [link for link in grudges.each_alone(world.nodes, alone) if link not in links]
        return {"cut": await world.cut(links), "how": plan["heal"]}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if this cut held bytes or connections."""
        held = world.held(undo["cut"])
        did = "dropped" if "packets" in held else "held"
        what = f"{did} {held['bytes']} bytes of {held['connections']} connections"
        return Evidence(held["bytes"] > 0 or held["connections"] > 0, what, dict(held))

    async def undo(self, undo: Json, world: World) -> None:
        """Heal this cut."""
        await world.heal(undo["cut"], undo["how"])


PARTITION = Partition()


# Let links between nodes flap: down for a moment, up for a moment, again and again.
#
# Each time the held bytes are delivered, or the connections reset, as drawn. The times are shorter
# than an election timeout or a little longer: leaders change often, or the group only waits.
#
# Source: HARNESSES.md section 1; jepsen.nemesis `partition!` on and off; FoundationDB's clogging.

DOWN_MS = (60, 200, 500)
UP_MS = (60, 200, 500)

FLAPS_MIN = 2
"""Down a single time is a partition."""


class Flap(NodeFault):
    """Take the links of some nodes down and up again, in quick succession."""

    name = "flap"
    family = capabilities.NETWORK
    needs = frozenset({Capability.CUT})
    variants = ("leader", "one", "minority", "all")

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link."""
        return "a group of one node has no links" if len(nodes) < NODES_MIN else None

    def draw(self, rng: Random, index: int) -> Json:
        """Draw how long the links are down and up."""
        return {
            "down_ms": rng.choice(DOWN_MS),
            "up_ms": rng.choice(UP_MS),
            "heal": rng.choice(HEAL_MODES),
        }

    def describe(self, plan: Json) -> str:
        """Describe the plan: "flap links of leader n1: 200 ms down, 60 ms up"."""
        return f"{super().describe(plan)}: {plan['down_ms']} ms down, {plan['up_ms']} ms up"

    def verb(self, plan: Json) -> str:
        """Return "flap links of"."""
        return "flap links of"

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time that a few flaps take."""
        return FLAPS_MIN * (max(DOWN_MS) + max(UP_MS)) / 1e3

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut the links for the first time."""
        past = {"flaps": 0, "met": 0, "bytes": 0}
        return {"cuts": [await world.cut(_links(plan, world))], "how": plan["heal"], "past": past}

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Heal and cut alternately; each cut is in the ledger from its start until it is healed."""
        while True:
            await trio.sleep(plan["down_ms"] / 1e3)
            await world.heal(undo["cuts"][0], undo["how"])
            undo["past"] = _so_far(undo, world)
            undo["cuts"] = []
            await trio.sleep(plan["up_ms"] / 1e3)
            with trio.CancelScope(shield=True):  # a cut that is not in the ledger would stay
                undo["cuts"] = [await world.cut(_links(plan, world))]
                note(undo)

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if the links were down more than once, and blocked something each time."""
        did = _so_far(undo, world)
        what = (
            f"down {did['flaps']} times, {did['met']} times with traffic:"
            f" {did['bytes']} bytes stopped"
        )
        return Evidence(did["met"] >= FLAPS_MIN, what, did)

    async def undo(self, undo: Json, world: World) -> None:
        """Heal the cut in force, if any."""
        for cut in undo["cuts"]:
            await world.heal(cut, undo["how"])


def _so_far(undo: Json, world: World) -> dict[str, int | float]:
    """Return what the cuts blocked: the healed ones, and the one in force."""
    did: dict[str, int | float] = dict(undo["past"])
    for held in [world.held(cut) for cut in undo["cuts"]]:
        did["flaps"] += 1
        did["met"] += held["bytes"] > 0 or held["connections"] > 0
        did["bytes"] += held["bytes"]
    return did


def _links(plan: Json, world: World) -> list[tuple[str, str]]:
    victims = set(plan["victims"])
    return [link for link in permutations(world.nodes, 2) if not victims.isdisjoint(link)]


FLAP = Flap()


# Links that are degraded without being cut.

VARIANTS = ("leader", "one", "minority", "all")
DIRECTIONS = ("both", "out", "in")

Judge = Callable[[LinkShape, Json], tuple[bool, str]]
"""Decides from a shape's counts whether it took effect, and describes the evidence."""


@dataclass(eq=False)
class LinkFault(NodeFault):
    """Shape the links of some nodes for a while.

    Attributes:
        name: the fault's name.
        summary: the text that `list` shows.
        needs: the capabilities that a world must have.
        draw_shape: draws the fields of a `LinkShape` that are not the default.
        phrase: describes the shape: "delay 80 ms".
        judge: decides whether it took effect.
        directions: as seen from the victims: outgoing traffic, incoming traffic, or both.
        variants: the victims that it draws from.
    """

    name: str
    summary: str
    needs: frozenset[Capability]
    draw_shape: Callable[[Random], Json]
    phrase: Callable[[LinkShape], str]
    judge: Judge
    directions: tuple[str, ...] = DIRECTIONS
    variants: tuple[str, ...] = VARIANTS
    family: str = capabilities.NETWORK
    takes_out: bool = False

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """Needs a link."""
        return "a group of one node has no links" if len(nodes) < NODES_MIN else None

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the direction and the shape of the links."""
        shape = {**self.draw_shape(rng), "seed": f"{rng.getrandbits(48):x}"}
        # The first strikes both directions if it can: where most of the traffic flows is not known.
        drawn = rng.choice(self.directions)
        return {"direction": self.directions[0] if index == 0 else drawn, "link_shape": shape}

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Choose the victims and their links."""
        aimed = super().aim(plan, nodes, leader)
        return {**aimed, "links": _links_of(aimed["victims"], nodes, plan["direction"])}

    def describe(self, plan: Json) -> str:
        """Describe the plan: "delay 80 ms on links of leader n1"."""
        what = self.phrase(LinkShape(**plan["link_shape"]))
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
        """Took effect if the world counted effects of this shape."""
        assert isinstance(world, ShapesLinks), "the fault was not available"
        did = world.shaped(undo["shape"])
        took_effect, what = self.judge(LinkShape(**plan["link_shape"]), did)
        return Evidence(took_effect, what, {name: much for name, much in did.items() if much})

    async def undo(self, undo: Json, world: World) -> None:
        """Remove this shape."""
        assert isinstance(world, ShapesLinks), "the fault was not available"
        await world.unshape(undo["shape"])


def judge_count(counted: str, effect: str) -> Judge:
    """Return a judge by one count that must not be 0: "2 packets lost, 40 packets ... came by"."""

    def judge(_shape: LinkShape, did: Json) -> tuple[bool, str]:
        many = did.get(counted, 0)
        return many > 0, f"{many} {effect}, {crossed(did)}"

    return judge


def crossed(did: Json) -> str:
    """Describe how much traffic met the shape."""
    unit = "packets" if "packets" in did else "chunks"
    return f"{did.get(unit, 0)} {unit} ({did.get('bytes', 0)} bytes) came by"


def _links_of(victims: Sequence[str], nodes: Sequence[str], direction: str) -> list[list[str]]:
    """Return the links of the victims; for all nodes, one direction is every link."""
    return [
        [a, b]
        for a, b in permutations(nodes, 2)
        if (direction != "in" and a in victims) or (direction != "out" and b in victims)
    ]


# Delay: traffic between nodes is late by a fixed time and a jitter; no reordering.
#
# Source: `tc netem delay`; toxiproxy's latency; jepsen.nemesis.combined (`:slow`).

DELAYS_MS = (30.0, 80.0, 150.0, 300.0)
"""From a link to the next city to one around the world, and longer than an election timeout."""
JITTER_SHARES = (0.0, 0.2, 0.5)
FELT_SHARE_MIN = 0.5
"""A mean delay below this share of the requested delay does not count."""


def _draw_delay(rng: Random) -> Json:
    delay_ms = rng.choice(DELAYS_MS)
    return {"delay_ms": delay_ms, "jitter_ms": round(delay_ms * rng.choice(JITTER_SHARES), 1)}


def _phrase_delay(shape: LinkShape) -> str:
    jitter = f" ± {shape.jitter_ms:g}" if shape.jitter_ms else ""
    return f"delay {shape.delay_ms:g}{jitter} ms"


def _judge_delay(shape: LinkShape, did: Json) -> tuple[bool, str]:
    mean_ms = did.get("delay_ms_mean", 0.0)
    took_effect = did.get("delayed", 0) > 0 and mean_ms >= shape.delay_ms * FELT_SHARE_MIN
    return took_effect, f"{did.get('delayed', 0)} late by {mean_ms:.0f} ms (mean), {crossed(did)}"


DELAY = LinkFault(
    name="delay",
    summary="Delay packets between nodes, with or without jitter.",
    needs=frozenset({Capability.DELAY}),
    draw_shape=_draw_delay,
    phrase=_phrase_delay,
    judge=_judge_delay,
)


# Loss: packets between nodes are dropped; TCP retransmits them late and slows down.
#
# Source: `tc netem loss`; nft's numgen; HARNESSES.md section 5.

LOSS_SHARES = (0.05, 0.15, 0.4)


def _draw_loss(rng: Random) -> Json:
    return {"loss": rng.choice(LOSS_SHARES)}


def _phrase_loss(shape: LinkShape) -> str:
    return f"lose {shape.loss:.0%} of the packets"


LOSS = LinkFault(
    name="loss",
    summary="Drop some packets between nodes.",
    needs=frozenset({Capability.LOSS}),
    draw_shape=_draw_loss,
    phrase=_phrase_loss,
    judge=judge_count("dropped", "packets lost"),
)


# Slow link: links between nodes have a bandwidth limit; excess traffic queues.
#
# Source: `tc tbf rate`; toxiproxy's bandwidth.

RATES_BYTES_S = (4_000.0, 16_000.0, 64_000.0)
"""From a modem's rate to one at which heartbeats get through and a busy log does not."""


def _judge_slow_link(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    waited, dropped = did.get("delayed", 0), did.get("dropped", 0)
    lost = f", {dropped} found no room" if dropped else ""
    what = f"{waited} waited {did.get('delay_ms_mean', 0.0):.0f} ms (mean){lost}, {crossed(did)}"
    return waited > 0 or dropped > 0, what


def _draw_slow_link(rng: Random) -> Json:
    return {"rate_bytes_s": rng.choice(RATES_BYTES_S)}


def _phrase_slow_link(shape: LinkShape) -> str:
    return f"{shape.rate_bytes_s / 1e3:g} kB/s"


SLOW_LINK = LinkFault(
    name="slow-link",
    summary="Limit links between nodes to some kilobytes per second.",
    needs=frozenset({Capability.RATE}),
    draw_shape=_draw_slow_link,
    phrase=_phrase_slow_link,
    judge=_judge_slow_link,
)


# MTU: packets that are too large are dropped silently, and small ones pass, so that a connection
# answers heartbeats until something large is sent on it, and then stalls.
#
# Source: RFC 2923, section 2.1 (black holes of path MTU discovery); `iptables -m length`.

MTUS_BYTES = (200.0, 600.0, 1_200.0)
"""From one that heartbeats pass to one that stops full segments alone."""


def _draw_mtu(rng: Random) -> Json:
    return {"mtu_bytes": rng.choice(MTUS_BYTES)}


def _phrase_mtu(shape: LinkShape) -> str:
    return f"drop packets of more than {shape.mtu_bytes:,.0f} bytes"


MTU = LinkFault(
    name="mtu",
    summary="Drop large packets between nodes silently, and let small ones pass.",
    needs=frozenset({Capability.MTU}),
    draw_shape=_draw_mtu,
    phrase=_phrase_mtu,
    judge=judge_count("dropped", "were too large"),
)


# Reset: all connections between nodes are reset now and then; data in flight is lost.
#
# Source: toxiproxy's reset_peer; HARNESSES.md section 5.

EVERY_MS = (150.0, 400.0, 1000.0)


def _draw_reset(rng: Random) -> Json:
    return {"reset_every_ms": rng.choice(EVERY_MS)}


def _judge_reset(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    resets = did.get("resets", 0)
    return resets > 0, f"{resets} connections reset"


def _phrase_reset(shape: LinkShape) -> str:
    return f"resets every {shape.reset_every_ms:g} ms"


RESET = LinkFault(
    name="reset",
    summary="Reset the connections between nodes repeatedly.",
    needs=frozenset({Capability.RESET}),
    draw_shape=_draw_reset,
    phrase=_phrase_reset,
    judge=_judge_reset,
    directions=("both",),
)


# Half-open: one end of each connection is closed, and the other end gets no notice.
#
# As after a power cut of one machine, or when a firewall on the path has dropped its state: the
# other end keeps sending into the void until its own timeout, or the end of the fault. New
# connections work.
#
# Source: RFC 9293 section 3.5.1 (half-open connections); HARNESSES.md section 5.


def _draw_half_open(_rng: Random) -> Json:
    return {"half_open": True}


def _phrase_half_open(_shape: LinkShape) -> str:
    return "half-open connections"


def _judge_half_open(_shape: LinkShape, did: Json) -> tuple[bool, str]:
    halves, unread = did.get("half_open", 0), did.get("unread", 0)
    what = f"connections left half open: {halves}, {unread} bytes sent into nothing"
    return halves > 0 and unread > 0, what


HALF_OPEN = LinkFault(
    name="half-open",
    summary="Close one side of connections between nodes without the other side noticing.",
    needs=frozenset({Capability.HALF_OPEN}),
    draw_shape=_draw_half_open,
    phrase=_phrase_half_open,
    judge=_judge_half_open,
    directions=("out", "in"),
)


# Duplicate: packets between nodes arrive twice.
#
# Source: `tc netem duplicate`.

DUPLICATE_SHARES = (0.1, 0.3, 0.6)


def _draw_duplicate(rng: Random) -> Json:
    return {"duplicate": rng.choice(DUPLICATE_SHARES)}


def _phrase_duplicate(shape: LinkShape) -> str:
    return f"duplicate {shape.duplicate:.0%} of the packets"


DUPLICATE = LinkFault(
    name="duplicate",
    summary="Duplicate some packets between nodes.",
    needs=frozenset({Capability.DUPLICATE}),
    draw_shape=_draw_duplicate,
    phrase=_phrase_duplicate,
    judge=judge_count("duplicated", "packets doubled"),
)


# Reorder: packets between nodes overtake each other.
#
# Source: `tc netem reorder`.

REORDER_SHARES = (0.1, 0.3, 0.5)


def _draw_reorder(rng: Random) -> Json:
    return {"reorder": rng.choice(REORDER_SHARES)}


def _phrase_reorder(shape: LinkShape) -> str:
    return f"reorder {shape.reorder:.0%} of the packets"


REORDER = LinkFault(
    name="reorder",
    summary="Reorder packets between nodes.",
    needs=frozenset({Capability.REORDER}),
    draw_shape=_draw_reorder,
    phrase=_phrase_reorder,
    judge=judge_count("reordered", "packets reordered"),
)


# Corrupt: a bit of a packet is flipped; checksums detect it, so the packet counts as lost.
#
# A single bit never gets past TCP's checksum; the fault shows that the group survives the loss, and
# that checksums are on.
#
# Source: `tc netem corrupt`; HARNESSES.md section 5.

CORRUPT_SHARES = (0.02, 0.1, 0.3)


def _draw_corrupt(rng: Random) -> Json:
    return {"corrupt": rng.choice(CORRUPT_SHARES)}


def _phrase_corrupt(shape: LinkShape) -> str:
    return f"corrupt {shape.corrupt:.0%} of the packets"


CORRUPT = LinkFault(
    name="corrupt",
    summary="Flip a bit in some packets between nodes.",
    needs=frozenset({Capability.CORRUPT}),
    draw_shape=_draw_corrupt,
    phrase=_phrase_corrupt,
    judge=judge_count("corrupted", "packets with a bit changed"),
)


PLUGINS = (
    PARTITION, FLAP, DELAY, LOSS, SLOW_LINK, MTU, RESET, HALF_OPEN, DUPLICATE, REORDER, CORRUPT,
)  # fmt: skip
