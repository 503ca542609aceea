"""A simulated group of whole nodes for tests that bring their own main function.

`run_group` runs that function inside the world's trio run, as one more process of it. So what it
does with trio (clients, timeouts, nurseries) uses virtual time and simulated sockets, and it has a
harness's operations on processes (kill, restart, pause, resume, cut, heal).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shaketable.system.mutants import HEALTHY, Mutant
from shaketable.system.sim.rules.violation import Violation
from shaketable.system.sim.run_trace import Trace
from shaketable.system.sim.schedules.faults import Cut
from shaketable.system.sim.schedules.schedule import Schedule, Settings
from shaketable.system.sim.trio_world.clocks import CURRENT, Process
from shaketable.system.sim.trio_world.host import Host
from shaketable.system.sim.trio_world.tcp_network import TcpLink
from shaketable.system.sim.trio_world.world import TrioWorld

Result = TypeVar("Result")

HARNESS = "harness"
HARNESS_ADDRESS = "10.0.3.1"
UNTOUCHED = -1
"""The incarnation of a node on which a fault had no effect."""


class SimulatedGroup:
    """The nodes of a group and the operations on them. Made by `run_group`."""

    def __init__(self, world: TrioWorld) -> None:
        self._world = world
        self._cuts: dict[str, tuple[Cut, list[TcpLink]]] = {}
        self._held: dict[str, tuple[int, int]] = {}
        self._cut_numbers = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node's id, in the order they were added."""
        return tuple(self._world.present)

    @property
    def client_addresses(self) -> dict[str, tuple[str, int]]:
        """Addresses of the nodes for clients."""
        return self._world.client_addresses()

    @property
    def violation(self) -> Violation | None:
        """The first violated invariant, or None."""
        return self._world.found

    def leader(self) -> str | None:
        """Return the node that leads the highest term, or None."""
        return self._world.leader()

    def incarnation(self, node: str) -> int:
        """Return the number of the node's latest process."""
        return self._host(node).incarnation

    def is_alive(self, node: str, incarnation: int) -> bool:
        """Return whether that incarnation of the node still runs, or is paused."""
        host = self._host(node)
        return host.is_up and host.incarnation == incarnation

    def is_paused(self, node: str) -> bool:
        """Return whether the node's process is paused."""
        return self._host(node).is_paused

    def start(self, node: str) -> None:
        """Start a node that is down."""
        self._world.restart(self._host(node))

    def kill(self, node: str, *, loses_unsynced: bool = False) -> int:
        """Kill a node's process, or crash its machine; return its incarnation, or UNTOUCHED."""
        host = self._host(node)
        if not host.is_up:
            return UNTOUCHED
        self._world.crash(host, loses_unsynced=loses_unsynced)
        return host.incarnation

    def restart(self, node: str, incarnation: int) -> None:
        """Restart the node if that incarnation was its last and is dead (idempotent)."""
        host = self._host(node)
        if host.incarnation == incarnation and not host.is_up:
            self._world.restart(host)

    def stop(self, node: str) -> None:
        """Stop a node cleanly (SIGTERM); it takes some time."""
        self._host(node).stop()

    def pause(self, node: str) -> int:
        """Pause a node (SIGSTOP); return its incarnation, or UNTOUCHED."""
        host = self._host(node)
        if not host.is_up or host.is_paused:
            return UNTOUCHED
        host.pause()
        return host.incarnation

    def resume(self, node: str, incarnation: int) -> None:
        """Resume that incarnation (SIGCONT); nothing if it is gone (idempotent)."""
        host = self._host(node)
        if host.incarnation == incarnation:
            host.resume()

    def cut(self, links: Sequence[tuple[str, str]]) -> str:
        """Hold all bytes from a to b, for each (a, b); return the cut's id."""
        self._cut_numbers += 1
        fault = Cut(start_ms=self._cut_numbers, duration_ms=0, links=tuple(links))
        found = [self._world.network.link(source, target) for source, target in links]
        for link in found:
            link.add_fault(fault)
        cut = f"cut-{self._cut_numbers}"
        self._cuts[cut] = (fault, found)
        return cut

    def heal(self, cut: str, *, resets: bool = False) -> None:
        """Deliver what the cut held, or with `resets` reset its connections (idempotent)."""
        if cut in self._cuts:
            self._held[cut] = self.held(cut)
            fault, links = self._cuts.pop(cut)
            for link in links:
                link.resets = resets
                link.remove_fault(fault)

    def held(self, cut: str) -> tuple[int, int]:
        """Return (bytes, connections) that a cut holds, or held when it was healed."""
        if cut not in self._cuts:
            return self._held.get(cut, (0, 0))
        network = self._world.network
        found = [network.held(source, target) for source, target in self._cuts[cut][0].links]
        return sum(size for size, _ in found), sum(count for _, count in found)

    def _host(self, node: str) -> Host:
        return self._world.members[node]


def run_group(
    main: Callable[[SimulatedGroup], Awaitable[Result]],
    *,
    seed: int,
    settings: Settings | None = None,
    mutant: Mutant = HEALTHY,
    trace: Callable[[str], None] | None = None,
) -> Result:
    """Run `main(group)` in a new world; its nodes are started before, and stopped after it.

    A violated invariant does not end the run: check `group.violation`. Raises what `main` raises,
    not wrapped in an exception group.
    """
    schedule = Schedule(seed=seed, settings=settings or Settings(), faults=(), calls=())
    world = TrioWorld(schedule, mutant=mutant, trace=Trace(trace), stops_at_violation=False)
    group = SimulatedGroup(world)
    world.network.add_host(HARNESS, HARNESS_ADDRESS)
    outcome: list[Result] = []
    failure: list[Exception] = []

    async def harness() -> None:
        CURRENT.set(Process(HARNESS, HARNESS_ADDRESS, 0))
        try:
            outcome.append(await main(group))
        except Exception as error:
            failure.append(error)

    world.run_with(harness)
    if failure:
        raise failure[0]
    return outcome[0]
