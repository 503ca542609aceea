"""The simulated network between members: one link for each ordered pair, with its own stream.

A link delivers in order unless a fault reorders. Messages sent before a crash or a cut may still
arrive after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shaketable.system.raft.protocol import Message
from shaketable.system.sim.event_heap import EventHeap
from shaketable.system.sim.schedules.faults import (
    Cut,
    Duplicate,
    LinkFault,
    LossyLink,
    LowMtu,
    NarrowLink,
    Reorder,
    SlowLink,
)
from shaketable.system.sim.schedules.random_streams import RandomStreams

Deliver = Callable[[str, str, Message], None]
"""Called with (from, to, message) when a message arrives."""

Note = Callable[[int, float, int, bool], None]
"""Called with (bytes, delay added, times lost, whether reordered) for each segment."""


class Link:
    """One direction between two members: its delay and its active faults."""

    __slots__ = (
        "_faults",
        "_last_ms",
        "_random",
        "bytes_per_ms",
        "delay_ms",
        "duplicate",
        "free_ms",
        "is_cut",
        "is_wrong",
        "jitter_ms",
        "late_ms",
        "loss",
        "mtu_bytes",
        "notes",
        "reorder",
        "slow_ms",
    )

    def __init__(self, random: Callable[[], float], delay_ms: float, jitter_ms: float) -> None:
        self._random = random
        self._faults: list[LinkFault] = []
        self._last_ms = 0.0
        self.free_ms = 0.0
        """When a narrow link has capacity again."""
        self.notes: list[Note] = []
        """Called with what a faulty link did to each segment of a connection."""
        self.delay_ms = delay_ms
        self.jitter_ms = jitter_ms
        self._combine()

    def _combine(self) -> None:
        """Combine the active faults into the link's parameters."""
        self.is_cut = False
        self.slow_ms = self.loss = self.duplicate = self.reorder = self.late_ms = 0.0
        self.bytes_per_ms = 0.0
        self.mtu_bytes = math.inf
        for fault in self._faults:
            if isinstance(fault, Cut):
                self.is_cut = True
            elif isinstance(fault, SlowLink):
                self.slow_ms += fault.delay_ms
            elif isinstance(fault, LossyLink):
                self.loss = max(self.loss, fault.probability)
            elif isinstance(fault, Duplicate):
                self.duplicate = max(self.duplicate, fault.probability)
            elif isinstance(fault, Reorder):
                self.reorder = max(self.reorder, fault.probability)
                self.late_ms = max(self.late_ms, fault.delay_ms)
            elif isinstance(fault, NarrowLink):
                rate = fault.bytes_per_s / 1e3
                self.bytes_per_ms = min(rate, self.bytes_per_ms or rate)
            elif isinstance(fault, LowMtu):
                self.mtu_bytes = min(self.mtu_bytes, fault.mtu_bytes)
        self.is_wrong = bool(self._faults)

    def add_fault(self, fault: LinkFault) -> None:
        """Start a fault on this link."""
        self._faults.append(fault)
        self._combine()

    def remove_fault(self, fault: LinkFault) -> None:
        """End a fault on this link."""
        self._faults.remove(fault)
        self._combine()

    def arrivals(self, now_ms: float) -> tuple[float, ...]:
        """Return when a message sent now arrives: never, once, or twice."""
        random = self._random
        at_ms = now_ms + self.delay_ms + self.jitter_ms * random()
        if not self.is_wrong:
            at_ms = max(at_ms, self._last_ms)
            self._last_ms = at_ms
            return (at_ms,)
        if self.is_cut or (self.loss and random() < self.loss):
            return ()
        at_ms += self.slow_ms
        if self.reorder and random() < self.reorder:
            at_ms += self.late_ms * random()
        else:
            self._last_ms = at_ms = max(at_ms, self._last_ms)
        if self.duplicate and random() < self.duplicate:
            return at_ms, at_ms + (self.delay_ms + self.late_ms) * random() * 4
        return (at_ms,)


class Network:
    """All links, created on first use."""

    __slots__ = (
        "_delay_ms",
        "_deliver",
        "_heap",
        "_jitter_ms",
        "_links",
        "_rngs",
        "late_until_ms",
        "lost",
        "sent",
    )

    def __init__(
        self,
        heap: EventHeap,
        rngs: RandomStreams,
        deliver: Deliver,
        delay_ms: float,
        jitter_ms: float,
    ) -> None:
        self._heap = heap
        self._rngs = rngs
        self._deliver = deliver
        self._delay_ms = delay_ms
        self._jitter_ms = jitter_ms
        self._links: dict[tuple[str, str], Link] = {}
        self.sent = 0
        self.lost = 0
        self.late_until_ms = 0.0
        """When the last message arrives that a fault affected; it may be long after the fault."""

    def link(self, source: str, target: str) -> Link:
        """Return the link of an ordered pair."""
        found = self._links.get((source, target))
        if found is None:
            stream = self._rngs.stream(f"link/{source}/{target}")
            found = Link(stream.random, self._delay_ms, self._jitter_ms)
            self._links[source, target] = found
        return found

    def send(self, source: str, target: str, message: Message) -> None:
        """Send one message; it arrives once, twice or never."""
        link = self._links.get((source, target)) or self.link(source, target)
        heap = self._heap
        arrivals = link.arrivals(heap.now_ms)
        self.sent += 1
        if not arrivals:
            self.lost += 1
        elif link.is_wrong:
            self.late_until_ms = max(self.late_until_ms, *arrivals)
        for at_ms in arrivals:
            heap.push(at_ms, self._deliver, source, target, message)
