"""User-space TCP proxies between the nodes, one for each ordered pair: links that can be cut.

Node a reaches node b at the proxy of link (a, b). On each connection through it, data from a
crosses the gate of direction (a, b), and the replies of b cross the gate of direction (b, a). So a
one-way cut of a -> b holds the requests on a's connections *and* the replies on b's, as a cut wire
would. A cut holds bytes and never drops one: the pump stops, what it has read stays in its single
buffer, the rest waits in the kernel, and the sender feels back-pressure. The end of a connection
(EOF, reset, refusal) travels in a direction as well, and does not cross a cut either. A new
connection is accepted, and connected to b once the direction is open.

A link can also be shaped (`harness.network.links`): its traffic is delayed or rate-limited,
but arrives complete and in order; its connections are reset now and then; or one end of each is
closed without notice to the other (half-open).

If nodes must know a peer by a single address, there is one proxy in front of each node instead, and
the caller's process determines the link (`harness.network.callers`).

Source: DESIGN.md decisions 8 and 10; HARNESSES.md section 5 (own task a link, peer-aware);
toxiproxy's toxics for the vocabulary.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random

import trio

from shaketable.harness.contracts.capabilities import Capability, Link, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, Json
from shaketable.harness.network.callers import Callers
from shaketable.harness.network.connection import Connection, prepare
from shaketable.harness.network.links import Applied, Gates, Shapes

CONNECTIONS_PER_LINK_MAX = 256
LISTEN_BACKLOG = 128
ACCEPT_RETRY_S = 0.1
"""Wait after a failed accept (out of file descriptors) before the next one."""
HEAL_MODES = ("deliver", "reset")
PACKET_CAPABILITIES = frozenset(
    {Capability.LOSS, Capability.DUPLICATE, Capability.REORDER, Capability.CORRUPT}
)
"""Capabilities that a stream cannot have."""


class ProxyNetwork:
    """The links among the nodes of one group.

    `upstreams` maps each node to the address at which it listens for its peers. The listening
    sockets exist from construction on, so addresses can be handed out before `run` starts. With
    `callers`, each node has one address for all others.

    Raises:
        HarnessError: a listening socket could not be opened.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Address],
        host: str = "127.0.0.1",
        callers: Callers | None = None,
    ) -> None:
        self._upstreams = dict(upstreams)
        self._callers = callers
        self._gates = Gates(self._upstreams)
        self._shapes = Shapes(self._upstreams)
        self._resets: dict[str, trio.CancelScope] = {}  # of shapes with periodic resets
        self._nursery: trio.Nursery | None = None
        self._connections: set[Connection] = set()
        self._numbers = itertools.count()
        self._listeners: dict[Link, socket.socket] = {}
        self._fronts: dict[str, socket.socket] = {}  # one for all callers
        try:
            if callers is not None:
                for node in self._upstreams:
                    self._fronts[node] = _listen(host)
            else:
                for link in itertools.permutations(self._upstreams, 2):
                    self._listeners[link] = _listen(host)
        except OSError as error:
            self.close()
            raise HarnessError(
                f"network: cannot open a proxy on {host}: {error}; raise the limit of open files"
                " (ulimit -n) or use fewer nodes"
            ) from error

    def address(self, a: str, b: str) -> Address:
        """Return the address at which node a reaches node b."""
        return self.advertised(b) if self._fronts else _address(self._listeners[a, b])

    def advertised(self, node: str) -> Address:
        """Return the address at which all others reach the node. Needs `callers`."""
        return _address(self._fronts[node])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward bytes until cancelled; then close every socket."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for link, listener in self._listeners.items():
                    nursery.start_soon(self._accept, _always(link), listener, nursery)
                for node, listener in self._fronts.items():
                    nursery.start_soon(
                        self._accept, partial(self._link_from_caller, node), listener, nursery
                    )
                task_status.started()
        finally:
            self._nursery = None
            self.close()

    def close(self) -> None:
        """Close the listening sockets (idempotent)."""
        for listener in (*self._listeners.values(), *self._fronts.values()):
            listener.close()

    def cut(self, links: Sequence[Link]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return the cut's id.

        Raises:
            KeyError: a link names an unknown node.
        """
        return self._gates.cut(links)

    def heal(self, cut: str, how: str) -> None:
        """Heal one cut: "deliver" what it held, in order, or "reset" its connections.

        Idempotent. A reset, too, reaches an end only when no other cut closes the direction to it.

        Raises:
            ValueError: `how` is neither.
        """
        if how not in HEAL_MODES:
            raise ValueError(f"mend: {how!r} is none of {', '.join(HEAL_MODES)}")
        if how == "reset":
            links = set(self._gates.links_of(cut))
            for connection in self._connections:
                if not links.isdisjoint(connection.directions):
                    connection.reset()  # before the gates open: no held byte may slip through
        self._gates.heal(cut)

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return self._gates.open_cuts()

    def held(self, cut: str) -> dict[str, int]:
        """Return what the cut has held so far: {"bytes": n, "connections": n}."""
        return self._gates.held(cut)

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `ShapesLinks.shape`.

        The end `a` of a half-open link gets no reset.

        Raises:
            KeyError: a link names an unknown node.
            ValueError: the shape needs packets.
        """
        if lacking := shape.capabilities & PACKET_CAPABILITIES:
            raise ValueError(f"shape: a stream has no {', '.join(sorted(lacking))}")
        applied = self._shapes.add(links, shape)
        if shape.half_open:
            self._open_half(applied)
        if shape.reset_every_ms and self._nursery is not None:
            self._resets[applied.name] = trio.CancelScope()
            self._nursery.start_soon(self._reset_now_and_then, applied)
        return applied.name

    def unshape(self, shape: str) -> None:
        """Remove a shape (idempotent): delayed data goes on, half-open connections are reset."""
        self._shapes.remove(shape)
        if shape in self._resets:
            self._resets.pop(shape).cancel()
        for connection in self._connections:
            connection.close_half_open(shape)

    def shaped(self, shape: str) -> Json:
        """Return what the shape did: `ShapesLinks.shaped`, plus "half_open" and "unread" bytes."""
        return self._shapes.shaped(shape)

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return self._shapes.open_shapes()

    def _open_half(self, applied: Applied) -> None:
        """Close the far end of connections on these links; count what the near ends still send."""
        halves = [
            connection
            for connection in self._connections
            for near, _ in applied.links
            if connection.open_half(applied.name, near, set(applied.links))
        ]
        applied.counters.half_open = len(halves)
        applied.counters.unread = partial(_unread_total, halves)

    async def _reset_now_and_then(self, applied: Applied) -> None:
        rng = Random(f"{applied.shape.seed}/resets")
        links = set(applied.links)
        with self._resets[applied.name]:
            while True:
                for connection in self._connections:
                    if connection.is_whole and not links.isdisjoint(connection.directions):
                        connection.reset()
                        applied.counters.resets += 1
                await trio.sleep(applied.shape.reset_every_ms / 1e3 * rng.uniform(0.5, 1.5))

    def forwarded_bytes(self, a: str, b: str) -> int:
        """Return how many bytes crossed from a to b so far."""
        return self._gates.forwarded_bytes((a, b))

    def waiting_bytes(self, a: str, b: str) -> int:
        """Return how many bytes from a to b are held now."""
        return self._gates.waiting_bytes((a, b))

    def _link_from_caller(self, called: str, accepted: socket.socket) -> Link | None:
        """Return the link from the calling node; None if the caller is not another node."""
        assert self._callers is not None, "there are no fronts without"
        caller = self._callers.who(accepted)
        return None if caller in (None, called) else (caller, called)

    async def _accept(
        self,
        link_of: Callable[[socket.socket], Link | None],
        listener: socket.socket,
        nursery: trio.Nursery,
    ) -> None:
        room = trio.Semaphore(CONNECTIONS_PER_LINK_MAX)
        while True:
            await room.acquire()
            await trio.lowlevel.wait_readable(listener)
            try:
                down, _ = listener.accept()
            except OSError:  # the peer is gone already, or no descriptor is left
                room.release()
                await trio.sleep(ACCEPT_RETRY_S)
                continue
            link = link_of(down)
            if link is None:
                down.close()
                room.release()
                continue
            prepare(down)
            connection = Connection(next(self._numbers), link, down, self._gates, self._shapes)
            self._connections.add(connection)
            nursery.start_soon(self._serve, connection, room)

    async def _serve(self, connection: Connection, room: trio.Semaphore) -> None:
        try:
            await connection.run(self._upstreams[connection.directions[0][1]])
        finally:
            self._connections.discard(connection)
            connection.close()
            room.release()


def _listen(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((host, 0))
        listener.listen(LISTEN_BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _address(listener: socket.socket) -> Address:
    host, port = listener.getsockname()
    return Address(host, port)


def _always(link: Link) -> Callable[[socket.socket], Link]:
    return lambda _: link


def _unread_total(halves: Sequence[Connection]) -> int:
    return sum(connection.unread_bytes() for connection in halves)
