"""TCP connections of a node: one with a bounded outgoing buffer, dialling, listening, serving.

`Link.send` writes to the socket at once; a separate task writes what the socket did not take
(THROUGHPUT.md rules 1, 2, 5).
"""

from __future__ import annotations

import errno
import logging
import signal
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence

import trio

from shaketable.system.node.machine import DirectSocket, KernelSocket, Poll
from shaketable.system.remoting.command import CommandError, Frame, FrameBuffer, FrameError

KEEPALIVE_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""With these the connections of a machine that lost power are closed after one minute."""


class Link:
    """A connected trio socket with an outgoing buffer of at most `out_bytes_max` bytes."""

    def __init__(self, sock: trio.socket.SocketType, out_bytes_max: int) -> None:
        self.sock = sock
        self.on_close: Callable[[], None] = _nothing
        """Called when `close` closes the link."""
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
        """Send or queue bytes; return False, and queue nothing, if the buffer is full.

        Never raises: `write` raises the error of a broken connection.
        """
        size = len(data)
        if self._out_bytes + size > self._out_bytes_max:
            return False
        if self._is_closed or self._failure is not None:
            return True
        rest: bytes | memoryview = data
        if not self._out_bytes:
            try:
                sent = self._direct.send_nowait(data)
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

    def recv_nowait(self, buffer: memoryview) -> int | None:
        """Receive without blocking, as `DirectSocket.recv_nowait`; return 0 on a closed link."""
        return 0 if self._is_closed else self._direct.recv_nowait(buffer)

    async def write(self) -> None:
        """Send queued bytes until cancelled. Raises OSError when the connection breaks."""
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
        """Call `on_frames` with the complete frames of each read, until the other side closes.

        Raises OSError when the connection breaks, FrameError for a malformed frame.
        """
        buffer = FrameBuffer()
        while count := await self.sock.recv_into(buffer.writable()):
            buffer.received(count)
            if frames := buffer.frames():
                on_frames(frames)

    def close(self) -> None:
        """Close the socket, which ends reading and writing."""
        if not self._is_closed:
            self._is_closed = True
            self.sock.close()
            self.on_close()


def _nothing() -> None:
    """Do nothing."""


# Outgoing connections: to peers, the master, name servers.

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""Value of SO_LINGER that resets a connection at close, so that it does not stay in TIME_WAIT."""


async def dial(host: str, port: int) -> trio.SocketStream:
    """Connect to another process.

    If the target port is in the ephemeral range and no process listens there, TCP can connect a
    socket to itself (simultaneous open). That would block the port for the process it belongs to,
    so such a connection is reset at once.

    Raises:
        OSError: no connection; ConnectionRefusedError if the socket connected to itself.
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
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"nothing listens on {host}:{port}")
    return stream


# Listening, and serving connections so that an error in one ends only that one.
#
# Used by nodes and name servers.

log = logging.getLogger("shaketable.node")


class PortInUseError(Exception):
    """The process cannot listen on a port. The message is one line that names it."""


async def listen(host: str, port: int, clients: str) -> list[trio.SocketListener]:
    """Listen on a port; `clients` names the clients in errors. Raises PortInUseError."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        raise PortInUseError(
            f"cannot listen on {host}:{port} for {clients}: "
            f"{getattr(error, 'strerror', None) or error}; choose another port or end what holds it"
        ) from None


def port_of(listeners: Sequence[trio.SocketListener]) -> int:
    """Return the port that is listened on: the system's choice where port 0 was asked for."""
    port: int = listeners[0].socket.getsockname()[1]
    return port


def guarded(
    serve: Callable[[trio.SocketStream], Awaitable[None]], connections_max: int
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Wrap `serve` so that an error in a connection closes only that connection.

    At most `connections_max` are served at once. Each listener has its own limit, so that clients
    cannot lock out the peers.
    """
    open_now = 0

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal open_now
        if open_now >= connections_max:
            log.warning("event=too_many_connections limit=%d", connections_max)
            stream.socket.close()
            return
        open_now += 1
        try:
            await serve(stream)
        except* (FrameError, CommandError) as group:
            error = next(iter(flatten(group)))
            log.warning("event=bad_bytes from=%s error=%s action=closed", _peer_name(stream), error)
        except* (OSError, trio.ClosedResourceError):
            pass  # the other side disconnected
        finally:
            open_now -= 1
            stream.socket.close()

    return handle


async def write_until_broken(link: Link) -> None:
    """Send what is queued until the connection breaks; then close it, so that reading ends."""
    try:
        await link.write()
    except (OSError, trio.ClosedResourceError):
        link.close()


async def end_on_signal(
    end: Callable[[], None], scope: trio.CancelScope, log: logging.Logger
) -> None:
    """Call `end` at the first SIGTERM or SIGINT; cancel at the second."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            end()
            break
        async for _ in signals:
            scope.cancel()
            return


async def cancel_on_signal(scope: trio.CancelScope, log: logging.Logger) -> None:
    """Cancel at the first SIGTERM or SIGINT, for a clean stop."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            scope.cancel()
            return


def flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors of a nested group, outermost first."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from flatten(error)
        else:
            yield error


def _peer_name(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "a closed connection"
    return f"{host}:{port}"


# Reads all connections of a node in one task.
#
# Requests of many clients are read in one round, so that they share a batch, a push to each
# follower and an fsync (THROUGHPUT.md rules 1, 2 and 9: with small requests, wake-ups dominate
# the cost).


class Reception:
    """Reads links on behalf of the tasks that serve them; `run` must run concurrently with those.

    `after_round` is called after all readable links of a round were read.
    """

    def __init__(self, poll: Poll, after_round: Callable[[], None] | None = None) -> None:
        self.is_reading = False
        """Whether a round is in progress: `after_round` will be called in this scheduler step."""
        self._poll = poll
        self._after_round = after_round
        self._readers: dict[trio.socket.SocketType, _LinkReader] = {}

    async def run(self) -> None:
        """Read links until cancelled."""
        readers = self._readers
        try:
            while True:
                found = await self._poll.wait()
                self.is_reading = True
                for sock in found:
                    reader = readers.get(sock)
                    if reader is not None and not reader.done.is_set():
                        reader.read()
                self.is_reading = False
                if self._after_round is not None:
                    self._after_round()
        finally:
            self._poll.close()

    async def read(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        """Call `on_frames` with the complete frames of each read, until either side closes.

        Raises OSError when the connection breaks, FrameError for a malformed frame, and any error
        of `on_frames`.
        """
        sock = link.sock
        reader = self._readers[sock] = _LinkReader(link, on_frames)
        link.on_close = reader.done.set
        try:
            self._poll.add(sock)
            await reader.done.wait()
        finally:
            del self._readers[sock]
            self._poll.remove(sock)
        if reader.error is not None:
            raise reader.error


class _LinkReader:
    """One link and the callback for its frames."""

    __slots__ = ("_buffer", "_link", "_on_frames", "done", "error")

    def __init__(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None
        self._link = link
        self._on_frames = on_frames
        self._buffer = FrameBuffer()

    def read(self) -> None:
        """Read what is available; keep an error for the task that serves the link to raise."""
        buffer = self._buffer
        try:
            count = self._link.recv_nowait(buffer.writable())
            if count:
                buffer.received(count)
                if frames := buffer.frames():
                    self._on_frames(frames)
            elif count is not None:
                self.done.set()
        except Exception as error:  # raised by `Reception.read`
            self.error = error
            self.done.set()
