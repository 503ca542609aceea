"""Which directions between nodes are open, and what each cut held. Counting only, no sockets.

A direction is an ordered pair (a, b): all traffic from a to b. A direction is open only while no
cut names it, so healing one fault never heals another (DESIGN.md decision 10). Each cut counts the
bytes and connections that it blocked: the evidence that it took effect (decision 11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import trio

Link = tuple[str, str]
"""An ordered pair of nodes: the direction in which bytes flow."""


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
        self._gates = {(a, b): _Gate() for a in names for b in names if a != b}
        self._cuts: dict[str, Cut] = {}

    def cut(self, links: Sequence[Link]) -> str:
        """Close these directions under a new cut; return its id.

        Raises:
            KeyError: a link names an unknown node, or a node and itself.
        """
        gates = [self._gates[link] for link in links]
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
