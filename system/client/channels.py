"""Connections by address, and routes from name servers: shared by producers and consumers.

Source: RocketMQ's NettyRemotingClient and MQClientInstance; DLEDGER.md D.4. Unlike there, a
route is refreshed as soon as a broker refuses or cannot be reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import trio

from shaketable.system.client.connection import Connection, OutcomeUnknownError, RefusedError
from shaketable.system.client.routes import Route, parse_address, parse_addresses
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError
from shaketable.system.remoting.name_server_requests import (
    ClusterInfo,
    TopicRoute,
    decode_cluster_info,
    decode_route,
)

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
