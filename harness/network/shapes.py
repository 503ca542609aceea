"""The shapes of each direction between nodes, and what they did. Counting only, no sockets.

Shapes have ids: those of one direction add up, and removing one leaves the others in place
(DESIGN.md decision 10). Each counts its effects: the evidence that it took effect (decision 11).
`Lane` applies them to a stream: everything arrives, in order, but late.

Source: toxiproxy's toxics (latency, bandwidth); tc-netem(8), tc-tbf(8).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from shaketable.harness.contracts.capabilities import Link, LinkShape
from shaketable.harness.contracts.plugins import Json

LATE_BYTES_MAX: Final = 1 << 20
"""The most that one direction of a connection delays; beyond that the sender feels back-pressure.
"""
PIECE_S: Final = 0.05
"""A slow link releases what it carries in this time, and no more at once."""
PIECE_BYTES_MIN: Final = 512
LATE_MIN_S: Final = 0.001
"""A shorter delay is not counted as delayed: the proxy's own work takes time."""


@dataclass(slots=True)
class ShapeCounters:
    """What one shape did so far."""

    bytes: int = 0
    chunks: int = 0
    delayed: int = 0
    delay_ms: float = 0.0
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
        self._on: dict[Link, tuple[Applied, ...]] = {
            (a, b): () for a in names for b in names if a != b
        }
        self._applied: dict[str, Applied] = {}
        self._counters: dict[str, ShapeCounters] = {}
        self._waits: dict[Link, set[trio.CancelScope]] = {link: set() for link in self._on}

    def add(self, links: Sequence[Link], shape: LinkShape) -> Applied:
        """Shape these directions from now on.

        Raises:
            KeyError: a link names an unknown node, or a node and itself.
        """
        for link in links:
            self._on[link]
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

    def due_s(self) -> float:
        """Return when the next piece may go on (trio's time), by the shapes now in force."""
        assert self._late, "nothing is late"
        head, on = self._late[0], self._shapes.on(self._link)
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


def _delay_s(shape: LinkShape, share: float) -> float:
    return max(0.0, shape.delay_ms + shape.jitter_ms * (2 * share - 1)) / 1e3
