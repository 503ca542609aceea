"""The clocks and disks of simulated members (`harness.simulated_nodes.SteersSimulated`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shaketable.harness.simulated_nodes import SimulatedHarm, SimulatedReading
from shaketable.system.sim.ordered_harms import OrderedHarm, OrderedHarms
from shaketable.system.sim.trio_world.host import Host
from shaketable.system.sim.trio_world.world import TrioWorld


class Machines:
    """The machines of a world's members."""

    def __init__(self, world: TrioWorld) -> None:
        self._world = world
        self._harms: dict[str, OrderedHarms] = {}
        self._known: dict[str, list[tuple[SimulatedHarm, OrderedHarm]]] = {}

    def set_rate(self, node: str, rate: float) -> None:
        """Let a node's clocks run at a rate, from now on."""
        self._host(node).run_clock_at(rate)

    def advance(self, node: str, ahead_ms: float) -> None:
        """Let a node's monotonic clock jump ahead."""
        self._host(node).clock.advance(ahead_ms)

    def set_wall_error(self, node: str, error_ms: float) -> None:
        """Let a node's wall clock be ahead by that much now."""
        clock = self._host(node).clock
        clock.offset_ms = round(error_ms - clock.ahead_ms)

    def reading(self, node: str) -> SimulatedReading:
        """Read a node's clocks."""
        clock = self._host(node).clock
        return SimulatedReading(self._world.clock.now_ms, clock.ahead_ms, clock.wall_error_ms)

    def follow_harms(self, node: str, harms: Sequence[SimulatedHarm]) -> None:
        """These harms of a node's disk are in force from now on; who went keeps its counts."""
        self.count(node)
        before = {id(harm): order for harm, order in self._known.get(node, [])}
        known = [
            (harm, before.get(id(harm)) or OrderedHarm(harm.op, harm.error, harm.nth, harm.times))
            for harm in harms
        ]
        self._known[node] = known
        self._of(node).follow([order for _, order in known])

    def count(self, node: str) -> None:
        """Write down in the harms what they did so far."""
        for harm, order in self._known.get(node, []):
            harm.calls, harm.errors = order.calls, order.errors

    def set_lateness(self, node: str, late_ms: float) -> None:
        """Let each piece of a node's disk work take that much longer."""
        self._host(node).late_ms = late_ms

    def stall(self, node: str, until_ms: float) -> None:
        """Let no disk work of a node end before that time of the world."""
        self._host(node).stalled_until_ms = until_ms

    def effects(self, node: str) -> Mapping[str, int]:
        """What a node's disk was called for so far."""
        self.count(node)
        return {**self._of(node).calls, "work": self._host(node).works}

    def lost_bytes(self) -> int:
        """How many unsynced bytes crashes took so far, of all nodes."""
        return self._world.counts.lost_bytes

    def _of(self, node: str) -> OrderedHarms:
        if node not in self._harms:
            self._harms[node] = OrderedHarms(self._host(node).disk.platter)
        return self._harms[node]

    def _host(self, node: str) -> Host:
        return self._world.members[node]
