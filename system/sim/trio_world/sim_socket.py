"""A socket of a simulated process, as trio's own code sees it.

Source: trio.socket.SocketType (the documented way to put in another network).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from shaketable.system.sim.rules.stream_invariants import OwedBytes
from shaketable.system.sim.rules.violation import Violated
from shaketable.system.sim.trio_world.process import Park, Process
from shaketable.system.sim.trio_world.tcp_pipe import Flag, Pipe, Segment

if TYPE_CHECKING:
    from shaketable.system.sim.trio_world.tcp_network import TcpNetwork

BACKLOG_MAX = 128
FIRST_FILENO = 100_000

Address = tuple[str, int]


def failure(number: int) -> OSError:
    """Return the operating system's error of that number."""
    return OSError(number, os.strerror(number))


class SimSocket(trio.socket.SocketType):
    """A TCP socket over `TcpNetwork`. It belongs to one process and dies with it."""

    def __init__(self, network: TcpNetwork, process: Process, number: int) -> None:
        self.process = process
        self.number = number
        self.local: Address = (process.address, 0)
        self.remote: Address | None = None
        self.outgoing: Pipe | None = None
        self.incoming: Pipe | None = None
        self.accepted: list[SimSocket] = []
        self.is_listening = False
        self._network = network
        self._is_closed = False
        self._is_reset = False
        self._has_ended = False  # the other side sent its FIN
        self._has_shut = False
        self._owed = OwedBytes()
        self._connect_error: int | None = None  # 0: connected
        self._readable = Park(process)
        self._writable = Park(process)
        self.on_readable: Callable[[], None] | None = None
        """Called when there may be something to be read, beside whoever waits for it here."""

    # trio keeps sockets in sets, whose order must be the same in every run.
    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"<simulated socket {self.number} of {self.process.host}>"

    # ---- what does not wait -------------------------------------------------------------

    @property
    def family(self) -> socket.AddressFamily:
        """IPv4, always."""
        return socket.AF_INET

    @property
    def type(self) -> socket.SocketKind:
        """A stream, always."""
        return socket.SOCK_STREAM

    @property
    def proto(self) -> int:
        """TCP, always."""
        return socket.IPPROTO_TCP

    @property
    def did_shutdown_SHUT_WR(self) -> bool:  # noqa: N802 - trio's name
        """Whether this side has said that it sends nothing more."""
        return self._has_shut

    def fileno(self) -> int:
        """Return a number that no real file has; -1 once closed."""
        return -1 if self._is_closed else FIRST_FILENO + self.number

    def getsockname(self) -> Any:
        """Return this side's address."""
        self._check_open()
        return self.local

    def getpeername(self) -> Any:
        """Return the other side's address. Raises OSError where there is none."""
        self._check_open()
        if self.remote is None or self._connect_error != 0:
            raise failure(errno.ENOTCONN)
        return self.remote

    def getsockopt(self, level: int, optname: int, buflen: int | None = None) -> Any:
        """Know SO_ACCEPTCONN, which trio asks for."""
        assert buflen is None
        return int(level == socket.SOL_SOCKET and optname == socket.SO_ACCEPTCONN)

    def setsockopt(self, level: int, optname: int, value: Any, optlen: int | None = None) -> None:
        """Accept every option; none matters here."""

    def listen(self, backlog: int = BACKLOG_MAX) -> None:
        """Accept connections from now on."""
        self._check_open()
        self.is_listening = True
        self._network.listen(self)

    def shutdown(self, flag: int) -> None:
        """Say that this side sends nothing more."""
        self._check_open()
        assert flag == socket.SHUT_WR
        assert self.outgoing is not None
        if not self._has_shut:
            self._has_shut = True
            self.outgoing.send(Flag.FIN)

    def recv_now(self, buffer: memoryview) -> int | None:
        """Receive what has come; 0 at the other side's end, None where nothing has."""
        self._check_open()
        pipe = self.incoming
        assert pipe is not None
        if pipe.unread:
            count = pipe.part(min(len(pipe.unread), len(buffer)))
            buffer[:count] = pipe.unread[:count]
            del pipe.unread[:count]
            self._network.read(self)
            return count
        if self._is_reset:
            raise failure(errno.ECONNRESET)
        return 0 if self._has_ended else None

    def send_now(self, data: bytes | memoryview) -> int:
        """Send some of the bytes, none while the window is full."""
        self._check_open()
        pipe = self.outgoing
        if pipe is None or self._has_shut or self._is_reset:
            raise failure(errno.EPIPE)
        room = pipe.room_for(len(data))
        if room <= 0:
            return 0
        size = pipe.part(room)
        view = memoryview(data)
        try:
            self._owed.sent(view, size)
        except Violated as found:
            found.node = self.process.host
            self._network.report(found)
        segment = bytes(view[:size])
        pipe.send(segment)
        return len(segment)

    def is_readable(self) -> bool:
        """Whether `recv_now` has bytes, an end or an error to tell."""
        has_bytes = self.incoming is not None and bool(self.incoming.unread)
        return has_bytes or self._is_reset or self._has_ended or not self.is_open

    def close(self) -> None:
        """Close: the other side reads what was sent and then the end, or a reset.

        A reset where bytes were left unread, as Linux does it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._network.forget(self)
        for waiting in self.accepted:
            waiting.close()
        if self.outgoing is not None and self.incoming is not None and not self._is_reset:
            if self.incoming.unread:
                self.outgoing.send(Flag.RST)
            elif not self._has_shut:
                self.outgoing.send(Flag.FIN)
            self.incoming.unread.clear()
        self._wake_reader()
        self._writable.wake()

    def vanish(self) -> None:
        """The machine lost its power: nobody says anything to the other side."""
        self._is_closed = True
        self._network.forget(self)
        for waiting in self.accepted:
            waiting.vanish()

    # ---- what waits ---------------------------------------------------------------------

    async def bind(self, address: Any) -> None:
        """Take an address of this host. Raises OSError where it is taken."""
        await trio.lowlevel.checkpoint()
        self._check_open()
        self.local = self._network.free_address(self.process, address[1])

    async def accept(self) -> tuple[trio.socket.SocketType, Any]:
        """Wait for a connection."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self.accepted:
            self._check_waiting()
            await self._readable.wait()
        self._check_waiting()
        found = self.accepted.pop(0)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found, found.remote

    async def connect(self, address: Any) -> None:
        """Connect. Raises OSError; a host that is cut off or down answers nothing."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        self.remote = (address[0], address[1])
        try:
            self._network.connect(self)
            while self._connect_error is None:
                await self._writable.wait()
                self._check_waiting()
        except trio.Cancelled:
            self.close()  # as trio: half an attempt cannot be taken up again
            raise
        if self._connect_error:
            raise failure(self._connect_error)

    async def recv(self, buflen: int, flags: int = 0, /) -> bytes:
        """Receive at most `buflen` bytes, none at the other side's end."""
        data = bytearray(buflen)
        count = await self.recv_into(data)
        return bytes(data[:count])

    async def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive into a buffer; 0 at the other side's end."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        view = memoryview(buffer).cast("B")[: nbytes or None]
        has_waited = False
        while (count := self.recv_now(view)) is None:
            await self._readable.wait()
            self._check_waiting()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return count

    async def send(self, data: Any, flags: int = 0, /) -> int:
        """Send some of the bytes; wait while the window is full."""
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_open()
        view = memoryview(data).cast("B")
        has_waited = False
        while not (count := self.send_now(view)):
            await self._writable.wait()
            self._check_waiting()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return count

    async def wait_writable(self) -> None:
        """Return at once: `send` waits by itself."""
        await trio.lowlevel.checkpoint()

    # ---- what the network does to it ----------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether its process still holds it."""
        return not self._is_closed

    @property
    def is_whole(self) -> bool:
        """Whether it is connected, and neither closed nor reset."""
        return self.is_open and not self._is_reset and self.outgoing is not None

    def joined(self, outgoing: Pipe, incoming: Pipe) -> None:
        """The connection stands."""
        self.outgoing, self.incoming = outgoing, incoming
        self._connect_error = 0
        self._writable.wake()

    def refused(self, number: int) -> None:
        """Nobody listens there."""
        self._connect_error = number
        self._writable.wake()

    def offered(self, connection: SimSocket) -> None:
        """A connection came in."""
        self.accepted.append(connection)
        self._readable.wake()

    def arrived(self, segment: Segment) -> None:
        """Take the next segment (bytes are in the pipe already)."""
        if segment is Flag.RST:
            self.reset()
        elif segment is Flag.FIN:
            self._has_ended = True
        self._wake_reader()

    def refuse(self) -> None:
        """A segment came, and this socket is gone: its machine answers with a reset."""
        self._network.refuse(self)

    def reset(self) -> None:
        """The connection is broken, both ways."""
        self._is_reset = True
        for pipe in (self.incoming, self.outgoing):
            if pipe is not None:
                pipe.drop()
        self._wake_reader()
        self._writable.wake()

    def may_send(self) -> None:
        """The other side has read."""
        self._writable.wake()

    def _wake_reader(self) -> None:
        self._readable.wake()
        if self.on_readable is not None:
            self.on_readable()

    def _check_open(self) -> None:
        if self._is_closed or not self.process.is_alive:
            raise failure(errno.EBADF)

    def _check_waiting(self) -> None:
        if self._is_closed or not self.process.is_alive:
            raise trio.ClosedResourceError("the socket was closed by another task")
