"""What is wrong with each direction between nodes, and what that did: counting, without sockets.

Shapes are counted by id: those of one direction add up, and to take one away leaves the others as
they are (DESIGN.md decision 10). Each keeps an account of what it did, which is the proof that it
bit (decision 11). `Lane` is what a stream does with them: everything comes, in order, but late.

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
"""What one direction of one connection holds back; behind that its sender feels it."""
PIECE_S: Final = 0.05
"""A slow link lets through what it takes in this time, and no more at once."""
PIECE_BYTES_MIN: Final = 512
LATE_MIN_S: Final = 0.001
"""What is late by less is not counted as delayed: our own work takes time, too."""


@dataclass(slots=True)
class Account:
    """What one shape did so far."""

    bytes: int = 0
    chunks: int = 0
    delayed: int = 0
    delay_ms: float = 0.0
    resets: int = 0
    half_open: int = 0
    unread: Callable[[], int] = field(default=lambda: 0)

    def to_json(self) -> Json:
        """As `ShapesLinks.shaped` answers."""
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
    """One shape in force: its links, its dice, when each of its slow links is free again."""

    name: str
    links: tuple[Link, ...]
    shape: LinkShape
    account: Account
    dice: Random
    free_s: dict[Link, float] = field(default_factory=dict)


class Shapes:
    """The shapes of all directions among `nodes`."""

    def __init__(self, nodes: Iterable[str]) -> None:
        names = tuple(nodes)
        self._on: dict[Link, tuple[Applied, ...]] = {
            (a, b): () for a in names for b in names if a != b
        }
        self._applied: dict[str, Applied] = {}
        self._accounts: dict[str, Account] = {}
        self._waits: dict[Link, set[trio.CancelScope]] = {link: set() for link in self._on}

    def add(self, links: Sequence[Link], shape: LinkShape) -> Applied:
        """Shape these directions from now on.

        Raises:
            KeyError: a link names an unknown node, or a node's way to itself.
        """
        for link in links:
            self._on[link]
        name = f"shape-{len(self._accounts)}"
        account = self._accounts[name] = Account()
        applied = Applied(name, tuple(links), shape, account, Random(f"{shape.seed}/{name}"))
        self._applied[name] = applied
        for link in applied.links:
            self._on[link] = (*self._on[link], applied)
            self._wake(link)
        return applied

    def remove(self, name: str) -> Applied | None:
        """Take one shape away: what is late because of it alone goes on. None if it is gone."""
        applied = self._applied.pop(name, None)
        for link in () if applied is None else applied.links:
            self._on[link] = tuple(other for other in self._on[link] if other is not applied)
            self._wake(link)
        return applied

    def open_shapes(self) -> tuple[str, ...]:
        """The shapes in force."""
        return tuple(self._applied)

    def shaped(self, name: str) -> Json:
        """What that shape did so far; zeros if it is unknown."""
        return self._accounts.get(name, Account()).to_json()

    def on(self, link: Link) -> tuple[Applied, ...]:
        """What is in force on a direction, in the order in which it came."""
        return self._on[link]

    def delay_s(self, link: Link) -> float:
        """Draw how late something small is now, in seconds."""
        return sum(_delay_s(applied.shape, applied.dice.random()) for applied in self._on[link])

    @contextmanager
    def waiting(self, link: Link, until_s: float) -> Iterator[None]:
        """Wait inside until that time (trio's), or until a shape of the link comes or goes."""
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
    """A chunk, when it came, and its share of any jitter (0 to 1)."""

    data: memoryview
    came_s: float
    share: float
    is_late: bool = False


class Lane:
    """One direction of one connection while its link is shaped: in order, bounded, late.

    How late is always asked of the shapes in force: with the last one gone all goes on at once.
    """

    def __init__(self, shapes: Shapes, link: Link) -> None:
        self._shapes = shapes
        self._link = link
        self._late: deque[_Late] = deque()
        self._bytes = 0
        self._last_s = -math.inf

    @property
    def is_empty(self) -> bool:
        """True if nothing is late."""
        return not self._late

    @property
    def is_full(self) -> bool:
        """True if no more should be read for now."""
        return self._bytes >= LATE_BYTES_MAX

    def put(self, data: bytes, now_s: float) -> None:
        """Take a chunk that came just now; an empty one is the end of the stream."""
        on = self._shapes.on(self._link)
        share = on[0].dice.random() if on else 0.0
        self._late.append(_Late(memoryview(data), now_s, share))
        self._bytes += len(data)

    def due_s(self) -> float:
        """When the next piece may go on (trio's time); asks the shapes as they are now."""
        assert self._late, "nothing is late"
        head, on = self._late[0], self._shapes.on(self._link)
        late_s = sum(_delay_s(applied.shape, head.share) for applied in on)
        free_s = (applied.free_s.get(self._link, -math.inf) for applied in self._slow())
        return max(head.came_s + late_s, self._last_s, *free_s)

    def take(self, now_s: float) -> memoryview:
        """Take the next piece, which is due; an empty one is the end of the stream."""
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
            account = applied.account
            account.bytes += size
            account.chunks += 1
            if late_s >= LATE_MIN_S:
                account.delayed += 1
                account.delay_ms += late_s * 1e3


def _delay_s(shape: LinkShape, share: float) -> float:
    return max(0.0, shape.delay_ms + shape.jitter_ms * (2 * share - 1)) / 1e3
