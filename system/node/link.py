"""One TCP connection in the node: a bounded buffer out, a reusable buffer in.

One task reads, one writes, whatever the number of messages (THROUGHPUT.md rules 1, 2, 5).
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import trio

from system.remoting.frame import Frame, FrameBuffer

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
        self._sock = sock
        self._out_bytes_max = out_bytes_max
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._wake = trio.Event()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for option in KEEPALIVE_OPTIONS:
            sock.setsockopt(*option)

    def send(self, data: bytes) -> bool:
        """Queue bytes; False (and nothing is queued) where the buffer is full."""
        if self._out_bytes + len(data) > self._out_bytes_max:
            return False
        self._out.append(data)
        self._out_bytes += len(data)
        self._wake.set()
        return True

    async def write(self) -> None:
        """Send what is queued, as it comes. Raises OSError when the connection breaks."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            batch, self._out = self._out, []
            data = memoryview(batch[0] if len(batch) == 1 else b"".join(batch))
            while data:
                sent = await self._sock.send(data)
                self._out_bytes -= sent
                data = data[sent:]

    async def read(self, on_frames: Callable[[list[Frame]], None]) -> None:
        """Hand over all complete frames of each read, until the other side closes.

        Raises OSError when the connection breaks, FrameError for what is no frame.
        """
        buffer = FrameBuffer()
        while count := await self._sock.recv_into(buffer.writable()):
            buffer.received(count)
            if frames := buffer.frames():
                on_frames(frames)

    def close(self) -> None:
        """Close the socket; reading and writing end."""
        self._sock.close()
