"""One TCP connection in the node: a bounded buffer out, a reusable buffer in.

What is sent goes out at once; a task of its own writes what the socket had no room for
(THROUGHPUT.md rules 1, 2, 5).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable

import trio

from shaketable.system.node.machine import DirectSocket, KernelSocket
from shaketable.system.remoting.frame import Frame, FrameBuffer

KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""After a minute a machine that lost its power holds no place among the connections any more."""


class Link:
    """A connected trio socket with an outgoing buffer of at most `out_bytes_max` bytes."""

    def __init__(self, sock: trio.socket.SocketType, out_bytes_max: int) -> None:
        self.sock = sock
        self.on_close: Callable[[], None] = _nothing
        """Called when this side closes the link."""
        self._direct = sock if isinstance(sock, DirectSocket) else KernelSocket(sock)
        self._out_bytes_max = out_bytes_max
        self._out: list[bytes | memoryview] = []
        self._out_bytes = 0
        self._wake = trio.Event()
        self._failure: OSError | None = None
        self._is_closed = False
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in KEEPALIVE_OPTIONS:
            sock.setsockopt(*option)

    def send(self, data: bytes) -> bool:
        """Send bytes, or queue them; False (and nothing is queued) where the buffer is full.

        That the connection is broken is for `write` to say.
        """
        size = len(data)
        if self._out_bytes + size > self._out_bytes_max:
            return False
        if self._is_closed or self._failure is not None:
            return True
        rest: bytes | memoryview = data
        if not self._out_bytes:
            try:
                sent = self._direct.send_now(data)
            except OSError as error:
                self._failure = error
                self._wake.set()
                return True
            if sent == size:
                return True
            rest = memoryview(data)[sent:]
        self._out.append(rest)
        self._out_bytes += len(rest)
        self._wake.set()
        return True

    def recv_now(self, buffer: memoryview) -> int | None:
        """Receive what is there; see `DirectSocket.recv_now`. A closed link is at its end."""
        return 0 if self._is_closed else self._direct.recv_now(buffer)

    async def write(self) -> None:
        """Send what is queued, as there is room. Raises OSError when the connection breaks."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if self._failure is not None:
                raise self._failure
            batch, self._out = self._out, []
            data = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
            while data:
                sent = await self.sock.send(data)
                self._out_bytes -= sent
                data = data[sent:]

    async def read(self, on_frames: Callable[[list[Frame]], None]) -> None:
        """Hand over all complete frames of each read, until the other side closes.

        Raises OSError when the connection breaks, FrameError for what is no frame.
        """
        buffer = FrameBuffer()
        while count := await self.sock.recv_into(buffer.writable()):
            buffer.received(count)
            if frames := buffer.frames():
                on_frames(frames)

    def close(self) -> None:
        """Close the socket; reading and writing end."""
        if not self._is_closed:
            self._is_closed = True
            self.sock.close()
            self.on_close()


def _nothing() -> None:
    """Nobody wants to know."""


# Connections that a node opens: to its peers, its master, its name servers.

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which nothing of a closed connection waits in TIME_WAIT."""


async def dial(host: str, port: int) -> trio.SocketStream:
    """Connect to another process.

    While nobody listens at a port of the range that outgoing connections get theirs from, TCP may
    connect a socket to itself there (a simultaneous open of one side), and he whose port it is
    could not listen any more: such a connection is closed at once.

    Raises:
        OSError: no connection; ConnectionRefusedError for one to itself.
    """
    stream = await trio.open_tcp_stream(host, port)
    sock = stream.socket
    try:
        is_itself = sock.getsockname() == sock.getpeername()
    except OSError:  # reset already
        await trio.aclose_forcefully(stream)
        raise
    if is_itself:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        await trio.aclose_forcefully(stream)
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
    return stream
