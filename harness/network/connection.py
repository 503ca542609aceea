"""One TCP connection through a proxy: two sockets, and a pump for each direction.

Source: as `harness.network.proxy`, whose links these connections cross.
"""

from __future__ import annotations

import array
import fcntl
import math
import socket
import struct
import termios
from contextlib import suppress
from functools import partial

import trio

from shaketable.harness.contracts.capabilities import Link
from shaketable.harness.contracts.plugins import Address
from shaketable.harness.network.links import Gates, Lane, Shapes, Waiter

BUFFER_BYTES = 64 * 1024
CONNECT_TIMEOUT_S = 10.0
RESET_GRACE_S = 1.0
"""How long data that a peer sent before it vanished may still be delivered."""

_LINGER_ZERO = struct.pack("ii", 1, 0)


class Connection:
    """One connection of a to b.

    `directions` are (a, b) and (b, a). `down` is the socket towards a, `up` towards b.
    """

    def __init__(
        self, number: int, link: Link, down: socket.socket, gates: Gates, shapes: Shapes
    ) -> None:
        self.directions = (link, (link[1], link[0]))
        self._number = number
        self._gates = gates
        self._shapes = shapes
        self._down = down
        self._up: socket.socket | None = None
        self._scope = trio.CancelScope()
        self._is_reset = False
        self._near: str | None = None  # if half-open: the node whose end stays open
        self._half_of = ""  # the shape that made it half-open
        self._notified = trio.Event()
        self._unread_max = 0
        self._broken: set[Link] = set()  # directions whose source is gone
        self._ended = {direction: trio.Event() for direction in self.directions}

    async def run(self, upstream: Address) -> None:
        """Connect to the upstream and forward until both ends are done, or one is reset."""
        onward, back = self.directions
        with self._scope:
            await trio.sleep(self._shapes.delay_s(onward))
            await self._pass(onward)
            self._up = await _connect(upstream)
            if self._up is None:
                await self._pass(back)  # a refusal is a message from b
                return
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, self._down, self._up, onward, back)
                nursery.start_soon(self._pump, self._up, self._down, back, onward)
        if self._is_reset or self._near is not None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._reset_side, self._down, back)
                nursery.start_soon(self._reset_side, self._up, onward)

    @property
    def is_whole(self) -> bool:
        """True while both ends are open and neither is about to close."""
        return self._up is not None and not self._is_reset and self._near is None

    def reset(self) -> None:
        """Reset the connection: each end sees it as soon as its direction is open."""
        self._is_reset = True
        self._notified.set()
        self._scope.cancel()

    def open_half(self, shape: str, near: str, links: set[Link]) -> bool:
        """Reset the far end if the connection crosses one of these links from `near`.

        `near` gets no notice, and what it sends is not read, until `close_half_open`.
        """
        crossed = [link for link in self.directions if link[0] == near]
        if not self.is_whole or links.isdisjoint(crossed):
            return False
        self._near, self._half_of = near, shape
        self._scope.cancel()
        return True

    def close_half_open(self, shape: str) -> None:
        """Reset the near end too, if this shape made the connection half-open."""
        if self._near is not None and self._half_of == shape:
            self.unread_bytes()
            self._notified.set()

    def unread_bytes(self) -> int:
        """Return how many bytes the near end of a half-open connection has sent unread."""
        if self._near is not None and not self._notified.is_set():
            side = self._down if self._near == self.directions[0][0] else self._up
            if side is not None:
                self._unread_max = max(self._unread_max, _unread_bytes(side))
        return self._unread_max

    def close(self) -> None:
        """Close both sockets."""
        self._down.close()
        if self._up is not None:
            self._up.close()

    async def _pump(
        self, source: socket.socket, sink: socket.socket, onward: Link, back: Link
    ) -> None:
        """Carry one direction of the connection until its end."""
        intake = _Intake(source, onward, self._shapes)
        while piece := await intake.next():
            if not await self._forward(source, sink, piece, onward):
                # The sink is gone. That notice travels in the other direction, after what the sink
                # sent before.
                self._broken.add(back)
                await self._pass(back)
                with trio.move_on_after(RESET_GRACE_S):
                    await self._ended[back].wait()
                self.reset()
                return
        await self._pass(onward)
        if piece is None or onward in self._broken:
            self.reset()
            return
        with suppress(OSError):  # the other end is gone
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
        if self._near == towards[1] and not self._is_reset:
            await self._notified.wait()
        await self._pass(towards)
        if side is not None:
            with suppress(OSError):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
            side.close()


class _Intake:
    """Reads a socket piece by piece, and releases each piece when the link's shapes allow it.

    An unshaped link costs nothing: data is forwarded from the read buffer without a copy.
    """

    def __init__(self, source: socket.socket, link: Link, shapes: Shapes) -> None:
        self._source = source
        self._link = link
        self._shapes = shapes
        self._lane = Lane(shapes, link)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._has_ended = False
        self._is_broken = False

    async def next(self) -> memoryview | None:
        """Return the next piece; an empty one at the end, None if the peer reset."""
        while True:
            if self._lane.is_empty and not self._has_ended and not self._shapes.on(self._link):
                size = await _receive(self._source, self._buffer)
                if size and not self._shapes.on(self._link):
                    return self._buffer[:size]
                self._put(size)
            due_s = math.inf if self._lane.is_empty else self._lane.due_s()
            now_s = trio.current_time()
            if due_s <= now_s:
                piece = self._lane.take(now_s)
                return piece if piece or not self._is_broken else None
            with self._shapes.waiting(self._link, due_s):
                if self._has_ended or self._lane.is_full:
                    await trio.sleep_forever()
                self._put(await _receive(self._source, self._buffer))

    def _put(self, size: int | None) -> None:
        """Take what was read; an empty piece is the end or a reset."""
        self._has_ended = not size
        self._is_broken = size is None
        self._lane.put(bytes(self._buffer[: size or 0]), trio.current_time())


def prepare(connection: socket.socket) -> None:
    """Make a socket non-blocking for trio, and disable Nagle's algorithm."""
    connection.setblocking(False)
    with suppress(OSError):  # the peer is gone: the first read reports it
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def _connect(address: Address) -> socket.socket | None:
    """Connect; None if refused or not connected within `CONNECT_TIMEOUT_S`."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    except OSError:  # no descriptor left: the same as refused
        return None
    prepare(connection)
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
    """Read at least a byte; 0 at the end, None if the peer reset."""
    while True:
        await trio.lowlevel.wait_readable(source)
        try:
            return source.recv_into(buffer)
        except BlockingIOError:
            continue
        except OSError:
            return None


def _unread_bytes(source: socket.socket) -> int:
    """Return how many unread bytes the kernel holds for this socket (FIONREAD)."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(source, termios.FIONREAD, count)
    except (OSError, ValueError):  # closed meanwhile
        return 0
    return count[0]


def _nothing() -> int:
    return 0
