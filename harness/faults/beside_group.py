"""Faults beside the group: of name servers, and of links between nodes and name servers or clients.

Name servers do not know each other and store nothing: one live server is enough; a restarted one
knows no route until brokers register again; and meanwhile clients use the routes they have. No node
is struck, and no leader steps down, when one is killed, paused or cut off.

Source: https://github.com/apache/rocketmq/issues/11043, /5374 and /6316 (a connection that closes
late, a late message of the old master); RFC 9293 section 3.5.1 for half-open connections. For name
servers, RocketMQ's NamesrvController (no state on disk), MQClientInstance (routes are kept while no
name server answers), BrokerController's registerBrokerAll every registerNameServerPeriod.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar, Final

import trio

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import (
    Capability,
    FaultsNameServers,
    Link,
    LinksClients,
    LinkShape,
    LinksNameServers,
    ShapesLinks,
)
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.contracts.rng import rng_for
from shaketable.harness.faults.victims import NodeFault, apply_to_each, in_effect

# Links.

CUT: Final = "cut"
SHAPED: Final = "shaped"
HEAL_MODES: Final = ("deliver", "reset")
DIRECTIONS: Final = ("both", "out", "in")
"""As seen from the nodes: traffic to the other hosts is "out"."""
HALF_OPEN: Final[Json] = {"half_open": True}


class OuterLinks(NodeFault):
    """Cut or shape the links between the victims and hosts beside their group.

    Attributes:
        others: what those hosts are, for people: "name servers".
        shapes: what happens to the links, one of them at random; None: they are cut.
    """

    family = capabilities.NETWORK
    variants = ("leader", "one", "all")
    takes_out = False
    others: ClassVar[str]
    shapes: Sequence[Json | None]

    def hosts(self, world: World) -> Sequence[str]:
        """Return the other ends of the links."""
        raise NotImplementedError

    def draw(self, rng: Random, index: int) -> Json:
        """Draw the direction, what happens to the links, and how a cut is healed."""
        shape = rng.choice(self.shapes)
        return {
            "how": CUT if shape is None else SHAPED,
            # One end of a half-open connection gets no notice: usually the other host.
            "direction": rng.choice(DIRECTIONS if shape != HALF_OPEN else ("in", "in", "out")),
            "heal": rng.choice(HEAL_MODES),
            "link_shape": {**(shape or {}), "seed": f"{rng.getrandbits(48):x}"},
        }

    def describe(self, plan: Json) -> str:
        """Describe the plan: "cut of links from leader n1 to name servers, reset after"."""
        whose = _whose(plan)
        way = {
            "both": f"links between {whose} and {self.others}",
            "out": f"links from {whose} to {self.others}",
            "in": f"links from {self.others} to {whose}",
        }[plan["direction"]]
        if plan["how"] == CUT:
            after = "held bytes delivered after" if plan["heal"] == "deliver" else "reset after"
            return f"cut of {way}, {after}"
        return f"{_phrase(LinkShape(**plan['link_shape']))} on {way}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Cut or shape the links."""
        links = _links(plan["victims"], self.hosts(world), plan["direction"])
        if plan["how"] == CUT:
            return {"cut": await world.cut(links), "heal": plan["heal"]}
        assert isinstance(world, ShapesLinks), "the fault was not available"
        return {"shape": await world.shape(links, LinkShape(**plan["link_shape"]))}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a cut held something, a connection ended, or something was delayed."""
        if "cut" in undo:
            held = world.held(undo["cut"])
            what = f"held {held['bytes']} bytes of {held['connections']} connections"
            return Evidence(held["connections"] > 0, what, dict(held))
        assert isinstance(world, ShapesLinks), "the fault was not available"
        did = world.shaped(undo["shape"])
        counts = ("half_open", "resets", "delayed", "dropped")
        did = {name: did[name] for name in counts if did.get(name)}
        labels = ", ".join(f"{name.replace('_', '-')} {much}" for name, much in did.items())
        return Evidence(bool(did), labels or "no bytes were sent there", did)

    async def undo(self, undo: Json, world: World) -> None:
        """Heal this cut, or remove this shape."""
        if "cut" in undo:
            await world.heal(undo["cut"], undo["heal"])
            return
        assert isinstance(world, ShapesLinks), "the fault was not available"
        await world.unshape(undo["shape"])


class NameServerLinks(OuterLinks):
    """Cut, reset, slow down or half-open the links of the leader, one node or all to name servers.

    A broker's registration arrives late, or only after another leader was elected; or its
    connection ends, and the name server notices long after the broker has come back. Clients always
    reach the name servers.
    """

    name = "name-server-links"
    needs = frozenset({Capability.NAME_SERVERS})
    others = "name servers"
    # Brokers send little there, so most shapes act on connections.
    shapes = (
        HALF_OPEN,
        HALF_OPEN,
        HALF_OPEN,
        {"reset_every_ms": 150.0},
        {"reset_every_ms": 1000.0},
        {"delay_ms": 300.0, "jitter_ms": 50.0},
        {"loss": 0.4},
        None,
    )

    def hosts(self, world: World) -> Sequence[str]:
        """Return the name servers."""
        assert isinstance(world, LinksNameServers), "the fault was not available"
        return world.name_servers


# ---- the links to clients ---------------------------------------------------------------------

BROKEN: Final = "broken"
BROKEN_EVERY_MS: Final = (200.0, 1000.0, 3000.0)
"""The mean times between two breaks of all connections to a victim."""
BREAKS_MIN_S: Final = 1.0
OF_PACKETS: Final[Sequence[Json | None]] = (
    HALF_OPEN,
    {"delay_ms": 300.0, "jitter_ms": 50.0},
    {"delay_ms": 1500.0, "jitter_ms": 500.0},
    {"loss": 0.4},
    None,
)
"""What else happens in a world with links to clients."""


class ClientLinks(OuterLinks):
    """Reset client connections to the leader, one node or all; in world sim also cut or delay them.

    Requests and answers are lost in flight and clients connect anew, while the group itself is
    undisturbed and its leader stays. In real time the clients' own sockets are shut down (a node
    sees them close), whatever the target: no proxy is on the way.

    Source: jepsen.client (a client reopens after an unknown outcome); RocketMQ's
    ClientHousekeepingService (what a broker does when a channel closes).
    """

    name = "client-links"
    needs = frozenset({Capability.CLIENT_LINKS})
    others = "clients"
    shapes: Sequence[Json | None] = ()

    def configured(self, options: Json) -> ClientLinks:
        """Return this fault; it also cuts and shapes links if the world has any to clients."""
        chosen = super().configured(options)
        chosen.shapes = OF_PACKETS if options.get("world") == "sim" else ()
        return chosen

    def hosts(self, world: World) -> Sequence[str]:
        """Return the clients' host."""
        assert isinstance(world, LinksClients), "the fault was not available"
        return world.client_hosts

    def draw(self, rng: Random, index: int) -> Json:
        """Draw breaks of connections for half of the plans, or for all without links."""
        if self.shapes and rng.random() < 1 / 2:
            return super().draw(rng, index)
        return {
            "how": BROKEN,
            "every_ms": rng.choice(BROKEN_EVERY_MS),
            "seed": f"{rng.getrandbits(48):x}",
        }

    def describe(self, plan: Json) -> str:
        """Describe the plan: "break of connections between leader n1 and clients, every 200 ms"."""
        if plan["how"] != BROKEN:
            return super().describe(plan)
        often = f"about every {plan['every_ms']:g} ms"
        return f"break of connections between {_whose(plan)} and clients, {often}"

    def min_duration_s(self, nodes: Sequence[str]) -> float:
        """Return the time of some operations."""
        return BREAKS_MIN_S

    async def apply(self, plan: Json, world: World) -> Json:
        """Break the connections, or cut or shape the links."""
        if plan["how"] != BROKEN:
            return await super().apply(plan, world)
        assert isinstance(world, LinksClients), "the fault was not available"
        before = world.broken_connections()
        await world.break_connections(plan["victims"])
        return {"broken_before": before}

    async def act(self, plan: Json, undo: Json, world: World, note: Callable[[Json], None]) -> None:
        """Break the connections again and again until cancelled."""
        if plan["how"] != BROKEN:
            await trio.sleep_forever()
        assert isinstance(world, LinksClients), "the fault was not available"
        rng = rng_for(plan["seed"], "breaks")
        while True:
            await trio.sleep(plan["every_ms"] / 1000 * rng.uniform(0.5, 1.5))
            await world.break_connections(plan["victims"])

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a connection of a client was broken; see also `OuterLinks.probe`."""
        if plan["how"] != BROKEN:
            return await super().probe(plan, undo, world)
        assert isinstance(world, LinksClients), "the fault was not available"
        count = world.broken_connections() - undo["broken_before"]
        what = f"{count} connections of clients broken" if count else "clients had no connection"
        return Evidence(count > 0, what, {"connections": count})

    async def undo(self, undo: Json, world: World) -> None:
        """Heal this cut, or remove this shape; a broken connection stays so."""
        if "broken_before" not in undo:
            await super().undo(undo, world)


def _whose(plan: Json) -> str:
    """Name the nodes of a plan, aimed or not: "leader n1"."""
    victims = plan.get("victims")
    labels = [plan["variant"]] if victims is None else victims
    named = [f"leader {node}" if node == plan.get("leader") else node for node in labels]
    return "all nodes" if len(labels) == len(plan["order"]) else ", ".join(named)


def _phrase(shape: LinkShape) -> str:
    if shape.half_open:
        return "half-open connections"
    if shape.reset_every_ms:
        return f"resets every {shape.reset_every_ms:g} ms"
    if shape.loss:
        return f"loss of {shape.loss:.0%}"
    return f"delay {shape.delay_ms:g} ms"


def _links(victims: Sequence[str], hosts: Sequence[str], direction: str) -> list[Link]:
    out = [(node, host) for node in victims for host in hosts]
    back = [(host, node) for node, host in out]
    return {"out": out, "in": back, "both": [*out, *back]}[direction]


# Name servers.

KILL: Final = "kill"
PAUSE: Final = "pause"
DONE: Final = {KILL: "gone", PAUSE: "stopped (state T)"}


class NameServers:
    """Kill (SIGKILL), pause (SIGSTOP) or isolate one name server, or all, for a while."""

    name = "name-servers"
    family = capabilities.PROCESS
    needs = frozenset({Capability.NAME_SERVER_PROCESSES})

    def __init__(self, ways: Sequence[str] = (KILL, PAUSE)) -> None:
        self._ways = tuple(ways)

    def configured(self, options: Json) -> Fault:
        """Return this fault; it also cuts links if the world can cut those to name servers."""
        return NameServers((KILL, PAUSE, CUT) if options.get("world") == "sim" else (KILL, PAUSE))

    def unavailable(self, target: Target, nodes: Sequence[str]) -> str | None:
        """The world decides whether there are name servers."""
        return None

    def plan(self, rng: Random, nodes: Sequence[str], index: int) -> Json:
        """Draw the kind of fault, one name server or all, and how a cut is healed."""
        # The first is a kill: only a restarted server has forgotten all routes.
        way = rng.choice(self._ways)
        return {
            "how": self._ways[0] if index == 0 else way,
            "whom": "all" if rng.random() < 1 / 3 else "one",
            "which": rng.random(),
            "heal": rng.choice(HEAL_MODES),
        }

    def aim(self, plan: Json, nodes: Sequence[str], leader: str | None) -> Json:
        """Return the plan as it is: the world knows the name servers."""
        return plan

    def describe(self, plan: Json) -> str:
        """Describe the plan: "kill one name server"."""
        whom = "all name servers" if plan["whom"] == "all" else "one name server"
        if plan["how"] == CUT:
            after = "held bytes delivered after" if plan["heal"] == "deliver" else "reset after"
            return f"cut off {whom}, {after}"
        return f"{plan['how']} {whom}"

    async def apply(self, plan: Json, world: World) -> Json:
        """Kill, pause or cut off the name servers."""
        assert isinstance(world, FaultsNameServers), "the fault was not available"
        servers = list(world.name_servers)
        if plan["whom"] == "one":
            servers = [servers[int(plan["which"] * len(servers))]]
        if plan["how"] == CUT:
            ends = [(server, end) for server in servers for end in world.name_server_peers]
            links = [*ends, *((end, server) for server, end in ends)]
            return {"cut": await world.cut(links), "heal": plan["heal"]}
        strike = world.kill if plan["how"] == KILL else world.pause
        return {**await apply_to_each(servers, strike, self.undo, world), "how": plan["how"]}

    async def probe(self, plan: Json, undo: Json, world: World) -> Evidence:
        """Took effect if a process is gone or stopped, or the cut held something."""
        if "cut" in undo:
            held = world.held(undo["cut"])
            what = f"held {held['bytes']} bytes of {held['connections']} connections"
            return Evidence(held["connections"] > 0, what, dict(held))
        is_kill = undo["how"] == KILL
        struck = [
            server
            for server, incarnation in in_effect(undo)
            if (not world.is_alive(server, incarnation) if is_kill else world.is_paused(server))
        ]
        done = DONE[undo["how"]]
        what = f"process of {', '.join(struck)} {done}" if struck else f"no process was {done}"
        return Evidence(bool(struck), what, {"name_servers": len(struck)})

    async def undo(self, undo: Json, world: World) -> None:
        """Heal this cut, or start or resume the servers that this fault struck."""
        if "cut" in undo:
            await world.heal(undo["cut"], undo["heal"])
            return
        for server, incarnation in in_effect(undo):
            if undo.get("how") != PAUSE:
                await world.restart(server, incarnation)
            await world.resume(server, incarnation)


NAME_SERVERS = NameServers()
NAME_SERVER_LINKS = NameServerLinks()
CLIENT_LINKS = ClientLinks()
PLUGINS = (NAME_SERVERS, NAME_SERVER_LINKS, CLIENT_LINKS)
