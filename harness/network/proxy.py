"""User-space TCP proxies between the nodes, one for each ordered pair: links that can be cut.

Node a reaches node b at the proxy of link (a, b). On each connection through it, what a
sends crosses the gate of direction (a, b), and what b answers crosses the gate of
direction (b, a): so a one-way cut of a -> b holds requests on a's connections *and* replies
on b's, as a cut wire would. A cut holds bytes, it never drops one: the pump stops, what it
has read stays in its one buffer, the rest waits in the kernel, and the sender feels
back-pressure. News of an end (EOF, reset, refusal) flows in a direction too and does not
cross a cut either. New connections are accepted and connected on when the way is open.

Source: DESIGN.md decisions 8 and 10; HARNESSES.md section 5 (own task a link, peer-aware);
toxiproxy's toxics for the vocabulary.
"""

from __future__ import annotations

import array
import fcntl
import itertools
import socket
import struct
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import trio

from harness.errors import HarnessError
from harness.network.gates import Gates, Link, Waiter
from harness.plugins import Address

BUFFER_BYTES = 64 * 1024
CONNECTIONS_PER_LINK_MAX = 256
LISTEN_BACKLOG = 128
CONNECT_TIMEOUT_S = 10.0
ACCEPT_RETRY_S = 0.1
"""How long to wait after a failed accept (no file descriptor left) before the next one."""
RESET_GRACE_S = 1.0
"""How long what a peer sent before it vanished may still be delivered."""
MEND_MODES = ("deliver", "reset")

_LINGER_ZERO = struct.pack("ii", 1, 0)


class ProxyNetwork:
    """The links among the nodes of one group.

    `upstreams` maps each node to the address where it really listens for its peers.
    Listening sockets exist from construction on, so that addresses can be handed out
    before `run` starts.

    Raises:
        HarnessError: a listening socket could not be opened.
    """

    def __init__(self, upstreams: Mapping[str, Address], host: str = "127.0.0.1") -> None:
        self._upstreams = dict(upstreams)
        self._gates = Gates(self._upstreams)
        self._connections: set[_Connection] = set()
        self._numbers = itertools.count()
        self._listeners: dict[Link, socket.socket] = {}
        try:
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
        host, port = self._listeners[a, b].getsockname()
        return Address(host, port)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Forward bytes until cancelled; then close every socket."""
        try:
            async with trio.open_nursery() as nursery:
                for link, listener in self._listeners.items():
                    nursery.start_soon(self._accept, link, listener, nursery)
                task_status.started()
        finally:
            self.close()

    def close(self) -> None:
        """Close the listening sockets (idempotent)."""
        for listener in self._listeners.values():
            listener.close()

    def cut(self, links: Sequence[Link]) -> str:
        """Hold all bytes that flow from a to b, for each (a, b); return the cut's id.

        Raises:
            KeyError: a link names an unknown node.
        """
        return self._gates.cut(links)

    def mend(self, cut: str, how: str) -> None:
        """Mend one cut: "deliver" what it held, in order, or "reset" what crossed it.

        Mending twice is mending once. A reset, too, reaches a side only when no other
        cut closes the direction towards it.

        Raises:
            ValueError: `how` is neither.
        """
        if how not in MEND_MODES:
            raise ValueError(f"mend: {how!r} is none of {', '.join(MEND_MODES)}")
        if how == "reset":
            links = set(self._gates.links_of(cut))
            for connection in self._connections:
                if not links.isdisjoint(connection.directions):
                    connection.reset()  # before the gates open: nothing held may slip through
        self._gates.mend(cut)

    def open_cuts(self) -> tuple[str, ...]:
        """The cuts that are not mended."""
        return self._gates.open_cuts()

    def held(self, cut: str) -> dict[str, int]:
        """What that cut has held so far: {"bytes": n, "connections": n}."""
        return self._gates.held(cut)

    def forwarded_bytes(self, a: str, b: str) -> int:
        """How many bytes crossed from a to b so far."""
        return self._gates.forwarded_bytes((a, b))

    def waiting_bytes(self, a: str, b: str) -> int:
        """How many bytes are held on the way from a to b now."""
        return self._gates.waiting_bytes((a, b))

    async def _accept(self, link: Link, listener: socket.socket, nursery: trio.Nursery) -> None:
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
            _prepare(down)
            connection = _Connection(next(self._numbers), link, down, self._gates)
            self._connections.add(connection)
            nursery.start_soon(self._serve, connection, room)

    async def _serve(self, connection: _Connection, room: trio.Semaphore) -> None:
        try:
            await connection.run(self._upstreams[connection.directions[0][1]])
        finally:
            self._connections.discard(connection)
            connection.close()
            room.release()


class _Connection:
    """One connection of a to b: two sockets, two pumps.

    `directions` are (a, b) and (b, a). `down` is the socket towards a, `up` towards b.
    """

    def __init__(self, number: int, link: Link, down: socket.socket, gates: Gates) -> None:
        self.directions = (link, (link[1], link[0]))
        self._number = number
        self._gates = gates
        self._down = down
        self._up: socket.socket | None = None
        self._scope = trio.CancelScope()
        self._is_reset = False
        self._broken: set[Link] = set()  # directions whose source turned out to be gone
        self._ended = {direction: trio.Event() for direction in self.directions}

    async def run(self, upstream: Address) -> None:
        """Connect on and forward until both sides are done, or one is reset."""
        onward, back = self.directions
        with self._scope:
            await self._pass(onward)
            self._up = await _connect(upstream)
            if self._up is None:
                await self._pass(back)  # the refusal is news from b
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, self._down, self._up, onward, back)
                nursery.start_soon(self._pump, self._up, self._down, back, onward)
        if self._is_reset:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reset_side, self._down, back)
                nursery.start_soon(self._reset_side, self._up, onward)

    def reset(self) -> None:
        """End the connection: each side sees a reset once news can reach it."""
        self._is_reset = True
        self._scope.cancel()

    def close(self) -> None:
        """Close both sockets."""
        self._down.close()
        if self._up is not None:
            self._up.close()

    async def _pump(
        self, source: socket.socket, sink: socket.socket, onward: Link, back: Link
    ) -> None:
        """Carry one direction of the connection until its end."""
        buffer = memoryview(bytearray(BUFFER_BYTES))
        while size := await _receive(source, buffer):
            if not await self._forward(source, sink, buffer[:size], onward):
                # The sink is gone, which is news in the other direction; what it sent
                # before goes first.
                self._broken.add(back)
                await self._pass(back)
                with trio.move_on_after(RESET_GRACE_S):
                    await self._ended[back].wait()
                self.reset()
                return
        await self._pass(onward)
        if size is None or onward in self._broken:
            self.reset()
            return
        with suppress(OSError):  # the other side is gone: nobody to tell
            sink.shutdown(socket.SHUT_WR)
        self._ended[onward].set()

    async def _forward(
        self, source: socket.socket, sink: socket.socket, data: memoryview, link: Link
    ) -> bool:
        """Write `data` through the gate; False if the sink is gone."""
        while data:
            if not self._gates.is_open(link):
                waiter = Waiter(self._number, len(data), partial(_unread_bytes, source))
                await self._gates.pass_through(link, waiter)
            try:
                sent = sink.send(data)
            except BlockingIOError:
                await trio.lowlevel.wait_writable(sink)
                continue
            except OSError:
                return False
            self._gates.count(link, sent)
            data = data[sent:]
        return True

    async def _pass(self, link: Link) -> None:
        await self._gates.pass_through(link, Waiter(self._number, 0, _nothing))

    async def _reset_side(self, side: socket.socket | None, towards: Link) -> None:
        await self._pass(towards)
        if side is not None:
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            side.close()


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


def _prepare(connection: socket.socket) -> None:
    connection.setblocking(False)
    with suppress(OSError):  # the peer is gone already: the first read will say so
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _connect(address: Address) -> socket.socket | None:
    """Connect; None if refused or not done in `CONNECT_TIMEOUT_S`."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:  # no descriptor is left: as good as refused
        return None
    _prepare(connection)
    is_connected = False
    try:
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            with suppress(BlockingIOError):
                connection.connect((address.host, address.port))
            await trio.lowlevel.wait_writable(connection)
            is_connected = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    except OSError:
        return None
    finally:
        if not is_connected:
            connection.close()
    return connection if is_connected else None


async def _receive(source: socket.socket, buffer: memoryview) -> int | None:
    """Read what there is, at least a byte; 0 at the end, None if the peer reset."""
    while True:
        await trio.lowlevel.wait_readable(source)
        try:
            return source.recv_into(buffer)
        except BlockingIOError:
            continue
        except OSError:
            return None


def _unread_bytes(source: socket.socket) -> int:
    """How many bytes the kernel holds for this socket."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(source, termios.FIONREAD, count)
    except (OSError, ValueError):  # closed meanwhile
        return 0
    return count[0]


def _nothing() -> int:
    return 0
