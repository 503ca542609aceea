"""Faults that degrade links without cutting them, each a set of shapes to draw from.

They strike all links of the victims, in one direction or both. The effect is a
`contracts.capabilities.LinkShape`; the evidence is what the world counted.

Source: tc-netem(8) for the vocabulary; toxiproxy's directions; jepsen.nemesis.combined
`packet-package`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from random import Random

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, LinkShape, ShapesLinks
from shaketable.harness.contracts.plugins import Evidence, Json, Target, World
from shaketable.harness.faults.victims import NodeFault

VARIANTS = ("leader", "one", "minority", "all")
DIRECTIONS = ("both", "out", "in")
NODES_MIN = 2

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
        return {**aimed, "links": _links(aimed["victims"], nodes, plan["direction"])}

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


def _links(victims: Sequence[str], nodes: Sequence[str], direction: str) -> list[list[str]]:
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
    summary="Let what flows between nodes be late, with or without jitter.",
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
    summary="Lose some of the packets between nodes.",
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
    summary="Let links between nodes take only some kilobytes a second.",
    needs=frozenset({Capability.RATE}),
    draw_shape=_draw_slow_link,
    phrase=_phrase_slow_link,
    judge=_judge_slow_link,
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
    summary="Reset the connections between nodes, again and again.",
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
    what = f"{halves} connections left half open, {unread} bytes sent into nothing"
    return halves > 0 and unread > 0, what


HALF_OPEN = LinkFault(
    name="half-open",
    summary="End one side of connections between nodes, and do not tell the other.",
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
    summary="Let some of the packets between nodes come twice.",
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
    summary="Change a bit in some of the packets between nodes.",
    needs=frozenset({Capability.CORRUPT}),
    draw_shape=_draw_corrupt,
    phrase=_phrase_corrupt,
    judge=judge_count("corrupted", "packets with a bit changed"),
)


PLUGINS = (DELAY, LOSS, SLOW_LINK, RESET, HALF_OPEN, DUPLICATE, REORDER, CORRUPT)
