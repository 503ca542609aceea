"""The links among a group's nodes: their interface, and how each direction is cut or shaped.

`harness.network.proxy` implements `Network` for streams, with `Gates` and `Shapes`;
`harness.network.netns` for packets.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol

import trio

from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import Json


class Network(Protocol):
    """The links among the nodes of one group. Each cut and shape has an id and counts effects."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carry traffic until cancelled."""
        ...

    def close(self) -> None:
        """Release all resources (idempotent)."""
        ...

    def cut(self, links: Sequence[Link]) -> str:
        """Block all traffic from a to b, for each (a, b); return the cut's id."""
        ...

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut (idempotent): "deliver" what it held, or "reset" its connections."""
        ...

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        ...

    def held(self, cut: str) -> Json:
        """Return what the cut held or dropped so far; see `World.held`."""
        ...

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; return the shape's id. See `contracts.capabilities.ShapesLinks`."""
        ...

    def unshape(self, shape: str) -> None:
        """Remove one shape (idempotent)."""
        ...

    def shaped(self, shape: str) -> Json:
        """Return what the shape did so far; also after it was removed."""
        ...

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        ...


# ---- gates: which directions are open, and what each cut held; only counts, no sockets ----------
#
# A direction is an ordered pair (a, b): all traffic from a to b. A direction is open only while no
# cut names it, so healing one fault never heals another (DESIGN.md decision 10). Each cut counts
# the bytes and connections that it blocked: the evidence that it took effect (decision 11).


@dataclass(frozen=True, slots=True, eq=False)
class Waiter:
    """Data that a closed direction blocks.

    `connection` identifies the connection, `size_bytes` is what the proxy has read of it, and
    `backlog_bytes` returns how much more waits in the kernel now.
    """

    connection: int
    size_bytes: int
    backlog_bytes: Callable[[], int]


@dataclass(slots=True)
class Cut:
    """One cut: the directions it closes, and what it held so far."""

    links: tuple[Link, ...]
    held_bytes: int = 0
    connections: set[int] = field(default_factory=set)
    is_healed: bool = False

    def meet(self, waiter: Waiter) -> None:
        """Count blocked data."""
        self.held_bytes += waiter.size_bytes
        self.connections.add(waiter.connection)


@dataclass(slots=True)
class _Gate:
    """One direction: the cuts that close it, what is blocked, how many bytes passed."""

    cuts: set[str] = field(default_factory=set)
    waiting: set[Waiter] = field(default_factory=set)
    opened: trio.Event = field(default_factory=trio.Event)
    forwarded_bytes: int = 0


class Gates:
    """The gates of all directions among `nodes`."""

    def __init__(self, nodes: Iterable[str]) -> None:
        names = tuple(nodes)
        # Also of a node to itself: what it sends to its own advertised address. No cut names that.
        self._gates = {(a, b): _Gate() for a in names for b in names}
        self._cuts: dict[str, Cut] = {}

    def cut(self, links: Sequence[Link]) -> str:
        """Close these directions under a new cut; return its id.

        Raises:
            KeyError: a link names an unknown node, or a node and itself.
        """
        gates = [self._gates[_of_two(link)] for link in links]
        name = f"cut-{len(self._cuts)}"
        cut = Cut(tuple(links))
        self._cuts[name] = cut
        for gate in gates:
            if not gate.cuts:
                gate.opened = trio.Event()
            gate.cuts.add(name)
            for waiter in gate.waiting:
                cut.meet(waiter)
        return name

    def links_of(self, name: str) -> tuple[Link, ...]:
        """Return the directions that a cut still closes; none if it is healed or unknown."""
        cut = self._cuts.get(name)
        return () if cut is None or cut.is_healed else cut.links

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return tuple(name for name, cut in self._cuts.items() if not cut.is_healed)

    def heal(self, name: str) -> None:
        """Remove one cut; open the directions that no other cut closes. Idempotent."""
        cut = self._cuts.get(name)
        if cut is None or cut.is_healed:
            return
        cut.held_bytes += self._backlog_bytes(cut)
        cut.is_healed = True
        for link in cut.links:
            gate = self._gates[link]
            gate.cuts.discard(name)
            if not gate.cuts:
                gate.opened.set()

    def held(self, name: str) -> dict[str, int]:
        """Return what a cut has held so far: {"bytes": n, "connections": n}; zeros if unknown."""
        cut = self._cuts.get(name)
        if cut is None:
            return {"bytes": 0, "connections": 0}
        backlog_bytes = 0 if cut.is_healed else self._backlog_bytes(cut)
        return {"bytes": cut.held_bytes + backlog_bytes, "connections": len(cut.connections)}

    def is_open(self, link: Link) -> bool:
        """True while no cut closes this direction."""
        return not self._gates[link].cuts

    async def pass_through(self, link: Link, waiter: Waiter) -> None:
        """Wait until the direction is open; until then the cuts count the waiter.

        The direction is open when this returns, so the caller may act up to its next checkpoint.
        """
        gate = self._gates[link]
        if not gate.cuts:
            return
        gate.waiting.add(waiter)
        try:
            for name in gate.cuts:
                self._cuts[name].meet(waiter)
            while gate.cuts:
                await gate.opened.wait()
        finally:
            gate.waiting.discard(waiter)

    def count(self, link: Link, size_bytes: int) -> None:
        """Count bytes that crossed."""
        self._gates[link].forwarded_bytes += size_bytes

    def forwarded_bytes(self, link: Link) -> int:
        """Return how many bytes crossed in this direction so far."""
        return self._gates[link].forwarded_bytes

    def waiting_bytes(self, link: Link) -> int:
        """Return how many bytes this direction blocks now."""
        waiting = self._gates[link].waiting
        return sum(waiter.size_bytes + waiter.backlog_bytes() for waiter in waiting)

    def _backlog_bytes(self, cut: Cut) -> int:
        waiting = (waiter for link in cut.links for waiter in self._gates[link].waiting)
        return sum(waiter.backlog_bytes() for waiter in waiting)


def _of_two(link: Link) -> Link:
    """Return a link of two nodes. Raises KeyError if it is one of a node and itself."""
    if link[0] == link[1]:
        raise KeyError(link)
    return link


# ---- shapes of each direction, and what they did ------------------------------------------------
#
# Shapes have ids: those of one direction add up, and removing one leaves the others in place
# (DESIGN.md decision 10). Each counts its effects: the evidence that it took effect (decision 11).
# `Lane` applies them to a stream: everything arrives, in order, but late.
#
# Source: toxiproxy's toxics (latency, bandwidth); tc-netem(8), tc-tbf(8).

LATE_BYTES_MAX: Final = 1 << 20
"""The most that one direction of a connection delays; beyond that the sender feels back-pressure.
"""
PIECE_S: Final = 0.05
"""A slow link releases what it carries in this time, and no more at once."""
PIECE_BYTES_MIN: Final = 512
HEADER_BYTES: Final = 52
"""Of a packet with a chunk: IP and TCP with timestamps."""
LATE_MIN_S: Final = 0.001
"""A shorter delay is not counted as delayed: the proxy's own work takes time."""


@dataclass(slots=True)
class ShapeCounters:
    """What one shape did so far."""

    bytes: int = 0
    chunks: int = 0
    delayed: int = 0
    delay_ms: float = 0.0
    dropped: int = 0
    resets: int = 0
    half_open: int = 0
    unread: Callable[[], int] = field(default=lambda: 0)

    def to_json(self) -> Json:
        """Return it in the form of `ShapesLinks.shaped`."""
        return {
            "bytes": self.bytes,
            "chunks": self.chunks,
            "delayed": self.delayed,
            "delay_ms_mean": round(self.delay_ms / self.delayed, 3) if self.delayed else 0.0,
            "dropped": self.dropped,
            "resets": self.resets,
            "half_open": self.half_open,
            "unread": self.unread(),
        }


@dataclass(slots=True, eq=False)
class Applied:
    """One shape in force: its links, its random generator, when each slow link is free again."""

    name: str
    links: tuple[Link, ...]
    shape: LinkShape
    counters: ShapeCounters
    rng: Random
    free_s: dict[Link, float] = field(default_factory=dict)


class Shapes:
    """The shapes of all directions among `nodes`."""

    def __init__(self, nodes: Iterable[str]) -> None:
        names = tuple(nodes)
        self._on: dict[Link, tuple[Applied, ...]] = {(a, b): () for a in names for b in names}
        self._applied: dict[str, Applied] = {}
        self._counters: dict[str, ShapeCounters] = {}
        self._waits: dict[Link, set[trio.CancelScope]] = {link: set() for link in self._on}

    def add(self, links: Sequence[Link], shape: LinkShape) -> Applied:
        """Shape these directions from now on.

        Raises:
            KeyError: a link names an unknown node, or a node and itself.
        """
        for link in links:
            self._on[_of_two(link)]
        name = f"shape-{len(self._counters)}"
        counters = self._counters[name] = ShapeCounters()
        applied = Applied(name, tuple(links), shape, counters, Random(f"{shape.seed}/{name}"))
        self._applied[name] = applied
        for link in applied.links:
            self._on[link] = (*self._on[link], applied)
            self._wake(link)
        return applied

    def remove(self, name: str) -> Applied | None:
        """Remove one shape: data that only it delayed goes on. None if there is no such shape."""
        applied = self._applied.pop(name, None)
        for link in () if applied is None else applied.links:
            self._on[link] = tuple(other for other in self._on[link] if other is not applied)
            self._wake(link)
        return applied

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return tuple(self._applied)

    def shaped(self, name: str) -> Json:
        """Return what the shape did so far; zeros if it is unknown."""
        return self._counters.get(name, ShapeCounters()).to_json()

    def on(self, link: Link) -> tuple[Applied, ...]:
        """Return the shapes in force on a direction, oldest first."""
        return self._on[link]

    def delay_s(self, link: Link) -> float:
        """Draw the delay of a small message now, in seconds."""
        return sum(_delay_s(applied.shape, applied.rng.random()) for applied in self._on[link])

    @contextmanager
    def waiting(self, link: Link, until_s: float) -> Iterator[None]:
        """Limit the body of `with` to that time (trio's) or the link's next change of shapes."""
        with trio.CancelScope(deadline=until_s) as scope:
            self._waits[link].add(scope)
            try:
                yield
            finally:
                self._waits[link].discard(scope)

    def _wake(self, link: Link) -> None:
        for scope in self._waits[link]:
            scope.cancel()


@dataclass(slots=True)
class _Late:
    """A delayed chunk, when it came, and its share of any jitter (0 to 1)."""

    data: memoryview
    came_s: float
    share: float
    is_late: bool = False


class Lane:
    """One direction of one connection while its link is shaped: in order, bounded, delayed.

    The delay always follows the shapes in force: when the last one is removed, all data goes on.
    """

    def __init__(self, shapes: Shapes, link: Link) -> None:
        self._shapes = shapes
        self._link = link
        self._late: deque[_Late] = deque()
        self._bytes = 0
        self._last_s = -math.inf

    @property
    def is_empty(self) -> bool:
        """True if nothing is delayed."""
        return not self._late

    @property
    def is_full(self) -> bool:
        """True if no more should be read for now."""
        return self._bytes >= LATE_BYTES_MAX

    def put(self, data: bytes, now_s: float) -> None:
        """Take a chunk that just came; an empty one is the end of the stream."""
        on = self._shapes.on(self._link)
        share = on[0].rng.random() if on else 0.0
        self._late.append(_Late(memoryview(data), now_s, share))
        self._bytes += len(data)
        for applied in on:
            applied.counters.dropped += _is_too_large(data, applied.shape)

    def due_s(self) -> float:
        """Return when the next piece may go on (trio's time), by the shapes now in force."""
        assert self._late, "nothing is late"
        head, on = self._late[0], self._shapes.on(self._link)
        if any(_is_too_large(head.data, applied.shape) for applied in on):
            return math.inf  # it is sent again in vain, and all after it waits for it
        late_s = sum(_delay_s(applied.shape, head.share) for applied in on)
        free_s = (applied.free_s.get(self._link, -math.inf) for applied in self._slow())
        # Not before the previous piece: a stream stays in order whatever the jitter.
        return max(head.came_s + late_s, self._last_s, *free_s)

    def take(self, now_s: float) -> memoryview:
        """Remove and return the next piece, which is due; an empty one is the end of the stream."""
        head = self._late[0]
        slow = self._slow()
        size = len(head.data)
        if slow:
            rate = min(applied.shape.rate_bytes_s for applied in slow)
            size = min(size, max(PIECE_BYTES_MIN, int(rate * PIECE_S)))
        piece, head.data = head.data[:size], head.data[size:]
        self._count(head, size, now_s)
        for applied in slow:
            free_s = max(now_s, applied.free_s.get(self._link, 0.0))
            applied.free_s[self._link] = free_s + size / applied.shape.rate_bytes_s
        self._bytes -= size
        if not head.data:
            self._late.popleft()
            self._last_s = now_s
        return piece

    def _slow(self) -> list[Applied]:
        return [
            applied for applied in self._shapes.on(self._link) if applied.shape.rate_bytes_s > 0
        ]

    def _count(self, head: _Late, size: int, now_s: float) -> None:
        late_s = now_s - head.came_s
        for applied in self._shapes.on(self._link):
            counters = applied.counters
            counters.bytes += size
            counters.chunks += 1
            if late_s >= LATE_MIN_S:
                counters.delayed += 1
                counters.delay_ms += late_s * 1e3


def _is_too_large(data: bytes | memoryview, shape: LinkShape) -> bool:
    return 0 < shape.mtu_bytes < len(data) + HEADER_BYTES


def _delay_s(shape: LinkShape, share: float) -> float:
    return max(0.0, shape.delay_ms + shape.jitter_ms * (2 * share - 1)) / 1e3
