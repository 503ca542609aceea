"""Kill, pause or cut off name servers for a while.

Name servers do not know each other and store nothing: one live server is enough; a restarted one
knows no route until brokers register again; and meanwhile clients use the routes they have. No node
is struck, and no leader steps down.

Source: RocketMQ's NamesrvController (no state on disk), MQClientInstance (routes are kept while no
name server answers), BrokerController's registerBrokerAll every registerNameServerPeriod.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from shaketable.harness.contracts import capabilities
from shaketable.harness.contracts.capabilities import Capability, FaultsNameServers
from shaketable.harness.contracts.plugins import Evidence, Fault, Json, Target, World
from shaketable.harness.faults.victims import apply_to_each, in_effect

KILL: Final = "kill"
PAUSE: Final = "pause"
CUT: Final = "cut"
DONE: Final = {KILL: "gone", PAUSE: "stopped (state T)"}
HEAL_MODES = ("deliver", "reset")


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


PROCESSES = NameServers()


PLUGINS = (PROCESSES,)
