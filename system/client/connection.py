"""One connection to a broker: many requests in flight, one reader task.

Source: RocketMQ's NettyRemotingClient (opaque numbers, response table); THROUGHPUT.md
rule 1 (no task for each message).
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from itertools import count

import trio

from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import (
    ONEWAY_FLAG,
    Command,
    CommandError,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.frame import FrameBuffer, FrameError

REQUESTS_UNDER_WAY_MAX = 10_000


class RefusedError(Exception):
    """The request certainly had no effect. `leader` is the leader named by the broker, if any."""

    def __init__(self, code: int, remark: str, leader: str | None = None) -> None:
        super().__init__(f"refused with code {code}: {remark}")
        self.code = code
        self.leader = leader


class OutcomeUnknownError(Exception):
    """The request may have taken effect, or may still do so."""


class DamagedResponseError(OutcomeUnknownError):
    """The broker's response cannot be decoded.

    An append may have taken effect; a read was answered wrongly, which is a finding.
    """


class PendingCall:
    """A request in flight."""

    __slots__ = ("done", "response")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Command | None = None


class Connection:
    """Requests and responses on one socket. Created by `open`, closed by `close`."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._sock = stream.socket
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._calls: dict[int, PendingCall] = {}
        self._opaque = count(1)
        self._sending = trio.Lock()
        self.is_open = True
        self.on_request: Callable[[Command], None] | None = None
        """Called with each request from the broker; nothing is answered."""

    @classmethod
    async def open(cls, host: str, port: int, timeout_s: float) -> Connection:
        """Connect. Raises OSError; TimeoutError if it takes longer than `timeout_s`."""
        with trio.move_on_after(max(0.0, timeout_s)) as scope:
            stream = await trio.open_tcp_stream(host, port)
        if scope.cancelled_caught:
            raise TimeoutError(f"no connection to {host}:{port} within {timeout_s:g} s")
        connection = cls(stream)
        # A system task: it belongs to the connection, not to the caller's scope, which may be a
        # timeout. It always ends when the socket is closed.
        trio.lowlevel.spawn_system_task(connection._read)
        return connection

    def close(self) -> None:
        """Close the socket; the outcome of requests in flight is unknown."""
        self.is_open = False
        self._sock.close()
        for call in self._calls.values():
            call.done.set()

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Send a request and return the response.

        Raises RefusedError if it was never sent (it may not even fit the wire format),
        OutcomeUnknownError if it was sent and no response came, or none in time.
        """
        if not self.is_open or len(self._calls) >= REQUESTS_UNDER_WAY_MAX:
            raise RefusedError(-1, "the connection is closed or has too many requests under way")
        if timeout_s <= 0:  # the caller's deadline has passed already
            raise RefusedError(-1, "no time was left to send the request")
        command.opaque = next(self._opaque) & 0x7FFFFFFF
        try:
            data = encode_command(command)
        except (CommandError, FrameError) as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"not sent: {error}") from None
        call = self._calls[command.opaque] = PendingCall()
        try:
            with trio.move_on_after(timeout_s) as scope:
                await self._send(data)
                await call.done.wait()
        except (OSError, trio.ClosedResourceError) as error:
            self.close()
            raise OutcomeUnknownError(f"the connection broke: {error}") from None
        finally:
            del self._calls[command.opaque]
        if call.response is not None:
            return call.response
        if scope.cancelled_caught:
            raise OutcomeUnknownError(f"no answer within {timeout_s:g} s")
        raise OutcomeUnknownError("the connection closed before the answer")

    def _call_for(self, response: Command) -> PendingCall | None:
        """Return the call that a response belongs to, None if it has timed out."""
        return self._calls.get(response.opaque)

    async def send_oneway(self, command: Command, timeout_s: float) -> None:
        """Send a one-way request: it gets no response, and may be lost.

        Raises RefusedError if it was certainly not sent.
        """
        if not self.is_open:
            raise RefusedError(-1, "the connection is closed")
        command.opaque = next(self._opaque) & 0x7FFFFFFF
        command.flag |= ONEWAY_FLAG
        try:
            data = encode_command(command)
        except (CommandError, FrameError) as error:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"not sent: {error}") from None
        try:
            with trio.move_on_after(timeout_s):
                await self._send(data)
        except (OSError, trio.ClosedResourceError):
            self.close()

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            view = memoryview(data)
            try:
                while view:
                    view = view[await self._sock.send(view) :]
            except trio.Cancelled:
                # Part of a frame may be sent: the stream is unusable.
                if len(view) != len(data):
                    self.close()
                raise

    async def _read(self) -> None:
        buffer = FrameBuffer()
        try:
            while size := await self._sock.recv_into(buffer.writable()):
                buffer.received(size)
                for frame in buffer.frames():
                    response = decode_command(frame)
                    if not response.is_response:
                        if self.on_request is not None:
                            response.body = bytes(response.body)
                            self.on_request(response)
                        continue
                    call = self._call_for(response)
                    if call is not None:
                        response.body = bytes(response.body)
                        call.response = response
                        call.done.set()
        except (OSError, trio.ClosedResourceError, FrameError, CommandError):
            pass  # close() wakes the waiting calls
        finally:
            self.close()
