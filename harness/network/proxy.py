"""User-space TCP proxies between the nodes, one for each ordered pair: links that can be cut.

Node a reaches node b at the proxy of link (a, b). On each connection through it, what a
sends crosses the gate of direction (a, b), and what b answers crosses the gate of
direction (b, a): so a one-way cut of a -> b holds requests on a's connections *and* replies
on b's, as a cut wire would. A cut holds bytes, it never drops one: the pump stops, what it
has read stays in its one buffer, the rest waits in the kernel, and the sender feels
back-pressure. News of an end (EOF, reset, refusal) flows in a direction too and does not
cross a cut either. New connections are accepted and connected on when the way is open.

A link can also be shaped (`harness.network.shapes`): what crosses it is late, or waits for a slow
link, but comes whole and in order; its connections are reset now and then; or one side of each is
closed and the other not told (half-open).

Where nodes must know a peer by one address, a proxy stands before each node instead, and the link
is that of whoever called (`harness.network.callers`).

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

from shaketable.harness.contracts.capabilities import Capability, LinkShape
from shaketable.harness.contracts.errors import HarnessError
from shaketable.harness.contracts.plugins import Address, Json
from shaketable.harness.network.callers import Callers
from shaketable.harness.network.connection import Connection, prepare
from shaketable.harness.network.gates import Gates, Link
from shaketable.harness.network.shapes import Applied, Shapes

CONNECTIONS_PER_LINK_MAX = 256
LISTEN_BACKLOG = 128
ACCEPT_RETRY_S = 0.1
"""How long to wait after a failed accept (no file descriptor left) before the next one."""
HEAL_MODES = ("deliver", "reset")
PACKET_CAPABILITIES = frozenset(
    {Capability.LOSS, Capability.DUPLICATE, Capability.REORDER, Capability.CORRUPT}
)
"""What has no meaning for a stream."""


class ProxyNetwork:
    """The links among the nodes of one group.

    `upstreams` maps each node to the address where it really listens for its peers.
    Listening sockets exist from construction on, so that addresses can be handed out
    before `run` starts. With `callers` each node has one address for all others.

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
        self._resets: dict[str, trio.CancelScope] = {}  # of shapes that reset now and then
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
        """Where node a reaches node b."""
        return self.advertised(b) if self._fronts else _address(self._listeners[a, b])

    def advertised(self, node: str) -> Address:
        """Where all others reach the node, if there is one such address."""
        return _address(self._fronts[node])

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward bytes until cancelled; then close every socket."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for link, listener in self._listeners.items():
                    nursery.start_soon(self._accept, _always(link), listener, nursery)
                for node, listener in self._fronts.items():
                    nursery.start_soon(self._accept, partial(self._told, node), listener, nursery)
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
        """Mend one cut: "deliver" what it held, in order, or "reset" what crossed it.

        Mending twice is mending once. A reset, too, reaches a side only when no other
        cut closes the direction towards it.

        Raises:
            ValueError: `how` is neither.
        """
        if how not in HEAL_MODES:
            raise ValueError(f"mend: {how!r} is none of {', '.join(HEAL_MODES)}")
        if how == "reset":
            links = set(self._gates.links_of(cut))
            for connection in self._connections:
                if not links.isdisjoint(connection.directions):
                    connection.reset()  # before the gates open: nothing held may slip through
        self._gates.heal(cut)

    def open_cuts(self) -> tuple[str, ...]:
        """The cuts that are not mended."""
        return self._gates.open_cuts()

    def held(self, cut: str) -> dict[str, int]:
        """What that cut has held so far: {"bytes": n, "connections": n}."""
        return self._gates.held(cut)

    def shape(self, links: Sequence[Link], shape: LinkShape) -> str:
        """Shape these links; see `ShapesLinks.shape`.

        The end `a` of a half-open link gets no reset.

        Raises:
            KeyError: a link names an unknown node.
            ValueError: the shape is one of packets.
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
        """Take a shape away (idempotent): what is late goes on, half-open connections are reset."""
        self._shapes.remove(shape)
        if shape in self._resets:
            self._resets.pop(shape).cancel()
        for connection in self._connections:
            connection.tell_half(shape)

    def shaped(self, shape: str) -> Json:
        """What that shape did so far: `ShapesLinks.shaped`, with "half_open" and "unread" bytes."""
        return self._shapes.shaped(shape)

    def open_shapes(self) -> tuple[str, ...]:
        """The shapes in force."""
        return self._shapes.open_shapes()

    def _open_half(self, applied: Applied) -> None:
        """Close the far side of what crosses these links; count what near sides go on writing."""
        halves = [
            connection
            for connection in self._connections
            for near, _ in applied.links
            if connection.open_half(applied.name, near, set(applied.links))
        ]
        applied.account.half_open = len(halves)
        applied.account.unread = partial(_most, halves)

    async def _reset_now_and_then(self, applied: Applied) -> None:
        dice = Random(f"{applied.shape.seed}/resets")
        links = set(applied.links)
        with self._resets[applied.name]:
            while True:
                for connection in self._connections:
                    if connection.is_whole and not links.isdisjoint(connection.directions):
                        connection.reset()
                        applied.account.resets += 1
                await trio.sleep(applied.shape.reset_every_ms / 1e3 * dice.uniform(0.5, 1.5))

    def forwarded_bytes(self, a: str, b: str) -> int:
        """How many bytes crossed from a to b so far."""
        return self._gates.forwarded_bytes((a, b))

    def waiting_bytes(self, a: str, b: str) -> int:
        """How many bytes are held on the way from a to b now."""
        return self._gates.waiting_bytes((a, b))

    def _told(self, called: str, accepted: socket.socket) -> Link | None:
        """The link from whoever called that node; None if it is none of the other nodes."""
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
            except OSError:  # the peer went away again, or no descriptor is left
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


def _most(halves: Sequence[Connection]) -> int:
    return sum(connection.unread_bytes() for connection in halves)
