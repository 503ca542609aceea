"""Links among simulated nodes that are worse than they should be, over what `system.sim` has.

Connections are simulated, not their packets: a lost or damaged segment is late by its
retransmission, and an overtaken one holds up all behind it, as TCP does. What comes twice TCP
throws away: there is nothing to be shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from shaketable.harness.plugins import Json
from shaketable.harness.words import Link, LinkShape
from shaketable.system.sim.faults import LinkFault, LossyLink, NarrowLink, Reorder, SlowLink
from shaketable.system.sim.trio_world.heap_clock import HeapClock
from shaketable.system.sim.trio_world.sim_socket import SimSocket
from shaketable.system.sim.trio_world.tcp_network import TcpNetwork
from shaketable.system.sim.trio_world.tcp_pipe import Pipe

OVERTAKEN_MS = 20.0
"""An overtaken segment is late by up to this."""
LATE_MIN_MS = 1.0


class ShapedLinks:
    """One shape in force; implements `harness.simulated_links.SimulatedShape`."""

    def __init__(
        self, network: TcpNetwork, clock: HeapClock, links: Sequence[Link], shape: LinkShape
    ) -> None:
        self._network = network
        self._clock = clock
        self._links = tuple(links)
        self._shape = shape
        self._faults = _faults(self._links, shape)
        self._dice = Random(f"{shape.seed}/resets")
        self._has_ended = False
        self._bytes = self._chunks = self._delayed = self._lost = self._overtaken = 0
        self._late_ms = 0.0
        self._resets = 0
        self._void: list[Pipe] = []
        self._untold: list[SimSocket] = []
        self._unread = 0
        for link in (network.link(a, b) for a, b in self._links):
            link.notes.append(self._note)
            for fault in self._faults:
                link.begin(fault)
        if shape.half_open:
            self._open_half()
        if shape.reset_every_ms:
            self._reset_all()

    def end(self) -> None:
        """Take it away; those who were not told of their connection's end find it out now."""
        self._unread = self._unread_bytes()
        self._has_ended = True
        for link in (self._network.link(a, b) for a, b in self._links):
            link.notes.remove(self._note)
            for fault in self._faults:
                link.end(fault)
        for near in self._untold:
            near.reset()

    def did(self) -> Json:
        """What it did so far."""
        mean_ms = self._late_ms / self._delayed if self._delayed else 0.0
        return {
            "bytes": self._bytes,
            "chunks": self._chunks,
            "delayed": self._delayed,
            "delay_ms_mean": round(mean_ms, 3),
            "dropped": self._lost if self._shape.loss else 0,
            "corrupted": self._lost if self._shape.corrupt and not self._shape.loss else 0,
            "reordered": self._overtaken if self._shape.reorder else 0,
            "resets": self._resets,
            "half_open": len(self._void),
            "unread": self._unread if self._has_ended else self._unread_bytes(),
        }

    def _note(self, size: int, late_ms: float, losses: int, is_overtaken: bool) -> None:
        self._bytes += size
        self._chunks += 1
        self._lost += losses
        self._overtaken += is_overtaken
        if late_ms >= LATE_MIN_MS:
            self._delayed += 1
            self._late_ms += late_ms

    def _open_half(self) -> None:
        """Reset the far side of each connection; what the near side says goes into nothing."""
        for a, b in self._links:
            for near, far in self._network.connections(a, b):
                assert near.outgoing is not None, "the connection is whole"
                near.outgoing.swallowed = 0
                self._void.append(near.outgoing)
                self._untold.append(near)
                far.reset()

    def _unread_bytes(self) -> int:
        return sum(pipe.swallowed or 0 for pipe in self._void)

    def _reset_all(self) -> None:
        """Reset the connections of these links, and again after a while."""
        if self._has_ended:
            return
        for a, b in self._links:
            for near, far in self._network.connections(a, b):
                near.reset()
                far.reset()
                self._resets += 1
        self._clock.after(
            self._shape.reset_every_ms * self._dice.uniform(0.5, 1.5), self._reset_all
        )


def _faults(links: tuple[Link, ...], shape: LinkShape) -> list[LinkFault]:
    """Say a shape in the words of the simulation."""
    found: list[LinkFault] = []
    least_ms = max(0.0, shape.delay_ms - shape.jitter_ms)
    if least_ms:
        found.append(SlowLink(start_ms=0, duration_ms=0, links=links, delay_ms=least_ms))
    if shape.jitter_ms or shape.reorder:
        late_ms = 2 * shape.jitter_ms if shape.jitter_ms else OVERTAKEN_MS
        share = 1.0 if shape.jitter_ms else shape.reorder
        found.append(
            Reorder(start_ms=0, duration_ms=0, links=links, probability=share, delay_ms=late_ms)
        )
    lost = max(shape.loss, shape.corrupt)
    if lost:
        found.append(LossyLink(start_ms=0, duration_ms=0, links=links, probability=lost))
    if shape.rate_bytes_s:
        found.append(
            NarrowLink(start_ms=0, duration_ms=0, links=links, bytes_per_s=shape.rate_bytes_s)
        )
    return found
