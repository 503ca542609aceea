"""Connections to brokers, each with many requests in flight and one reader task.

Source: RocketMQ's NettyRemotingClient (opaque numbers, response table); THROUGHPUT.md
rule 1 (no task for each message).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import ClassVar

import trio

from shaketable.system.client.routes import Route, parse_address, parse_addresses
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    ONEWAY_FLAG,
    Command,
    CommandError,
    FrameBuffer,
    FrameError,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.name_server_requests import (
    ClusterInfo,
    TopicRoute,
    decode_cluster_info,
    decode_route,
)

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


# Connections by address, and routes from name servers: shared by producers and consumers.
#
# Source: RocketMQ's NettyRemotingClient and MQClientInstance; DLEDGER.md D.4. Unlike there, a
# route is refreshed as soon as a broker refuses or cannot be reached.

CONNECT_TIMEOUT_S = 1.0
NAME_SERVER_TIMEOUT_S = 3.0
ROUTE_AGE_MAX_S = 30.0
"""An older route is refreshed; RocketMQ's pollNameServerInterval."""
UNREACHABLE = -1
"""The code of a RefusedError for a request that was never sent."""

OnRequest = Callable[[str, Command], None]
"""Called with (address, request) for a broker's request to the client; it gets no response."""


class Channels:
    """One connection for each address, opened on demand."""

    connection_type: ClassVar[type[Connection]] = Connection

    def __init__(self, on_request: OnRequest | None = None) -> None:
        self._connections: dict[str, Connection] = {}
        self._on_request = on_request

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        """Send a request. Raises as `Connection.call`; RefusedError if it is unreachable."""
        start_s = trio.current_time()
        connection = await self._connection(address, timeout_s)
        return await connection.call(command, timeout_s - (trio.current_time() - start_s))

    async def send_oneway(self, address: str, command: Command, timeout_s: float) -> None:
        """Send a one-way request. Raises RefusedError if the address is unreachable."""
        connection = await self._connection(address, timeout_s)
        await connection.send_oneway(command, timeout_s)

    async def _connection(self, address: str, timeout_s: float) -> Connection:
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        host, port = parse_address(address)
        try:
            connection = await self.connection_type.open(
                host, port, min(timeout_s, CONNECT_TIMEOUT_S)
            )
        except OSError as error:
            raise RefusedError(UNREACHABLE, f"{address} cannot be reached: {error}") from None
        other = self._connections.get(address)
        if other is not None and other.is_open:  # another task connected meanwhile
            connection.close()
            return other
        if self._on_request is not None:
            handler = self._on_request
            connection.on_request = lambda request: handler(address, request)
        self._connections[address] = connection
        return connection

    def close(self) -> None:
        """Close all connections; the outcome of requests in flight is unknown."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()


class NameService:
    """Queries name servers. Any one will do; they are independent of each other."""

    def __init__(self, channels: Channels, addresses: str | Sequence[str]) -> None:
        self._channels = channels
        self._addresses = list(parse_addresses(addresses))
        self._routes: dict[str, tuple[float, Route]] = {}

    async def route(self, topic: str, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> Route:
        """Return a topic's route, at most ROUTE_AGE_MAX_S old.

        Raises RefusedError: TOPIC_NOT_EXIST if no broker has the topic, UNREACHABLE if no name
        server answers and no route is cached.
        """
        known = self._routes.get(topic)
        if known is not None and trio.current_time() - known[0] < ROUTE_AGE_MAX_S:
            return known[1]
        try:
            body = (await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, timeout_s, topic=topic)).body
        except RefusedError as error:
            if known is not None and error.code == UNREACHABLE:
                return known[1]  # all are down: the cached route may still be right
            raise
        try:
            route = Route(topic, decode_route(body) if body else TopicRoute())
        except CommandError as error:
            raise RefusedError(UNREACHABLE, f"a name server sent a bad route: {error}") from None
        self._routes[topic] = (trio.current_time(), route)
        return route

    def forget(self, topic: str) -> None:
        """Refresh a topic's route before its next use; keep it in case no name server answers."""
        known = self._routes.get(topic)
        if known is not None:
            self._routes[topic] = (-ROUTE_AGE_MAX_S, known[1])

    async def cluster(self, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> ClusterInfo:
        """Return all brokers that a name server knows. Raises RefusedError."""
        answer = await self.ask(RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s)
        try:
            return decode_cluster_info(answer.body)
        except CommandError as error:
            raise RefusedError(UNREACHABLE, f"a name server sent a bad list: {error}") from None

    async def delete_topic(self, topic: str, timeout_s: float = NAME_SERVER_TIMEOUT_S) -> None:
        """Delete a topic at every name server, since they are independent of each other.

        Raises RefusedError, OutcomeUnknownError at the first one that fails.
        """
        for address in tuple(self._addresses):
            command = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, ext={"topic": topic})
            answer = await self._channels.call(address, command, timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                raise RefusedError(answer.code, answer.remark or f"{address} refused")
        self._routes.pop(topic, None)

    async def ask(self, code: RequestCode, timeout_s: float, **ext: str) -> Command:
        """Query one name server after the other until one answers.

        Raises RefusedError: with the answer's code, or UNREACHABLE if none answers.
        """
        failures = []
        for address in tuple(self._addresses):
            share_s = timeout_s / len(self._addresses)
            try:
                command = Command(code, ext=dict(ext))
                answer = await self._channels.call(address, command, share_s)
            except (RefusedError, OutcomeUnknownError) as error:
                failures.append(f"{address}: {error}")
                self._addresses.remove(address)  # try it last the next time
                self._addresses.append(address)
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise RefusedError(answer.code, answer.remark or f"{address} refused")
            return answer
        raise RefusedError(UNREACHABLE, f"no name server answers: {'; '.join(failures)}")


# Lists the brokers that name servers know.
#
# Source: RocketMQ's clusterList of MQAdminStartup; DLEDGER.md A.2.


async def brokers(
    name_servers: str | Sequence[str], timeout_s: float = 3.0
) -> Mapping[str, Mapping[int, str]]:
    """Return "host:port" by broker id (0: the master) by broker name.

    Raises RefusedError if no name server answers.
    """
    channels = Channels()
    try:
        found = await NameService(channels, name_servers).cluster(timeout_s)
    finally:
        channels.close()
    return {name: data.broker_addrs for name, data in found.broker_addr_table.items()}
