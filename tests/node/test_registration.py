"""A broker stays registered: with every name server that lives, and at no cost of those dead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from shaketable.harness.runtime.processes.ports import find_free
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections.registration import Registration, RegistrationState
from shaketable.system.node.machine import SystemClock
from shaketable.system.node.name_server import NameServerNode
from shaketable.system.remoting.codes import RequestCode
from shaketable.system.remoting.command import Command
from shaketable.system.remoting.name_server_requests import (
    BrokerHeader,
    RegisterBrokerHeader,
    TopicConfig,
)

HOST = "127.0.0.1"
BROKER_PORT = 30_911
ADDRESS = f"{HOST}:{BROKER_PORT}"
STORY_TIMEOUT_S = 60.0
POLL_S = 0.005
CONFIG = NodeConfig(
    self_id="n1",
    group="g",
    peers={"n1": (HOST, 1)},
    listen_port=BROKER_PORT,
    store_root=Path("/nowhere"),
    cluster="c",
    broker_name="b",
    broker_id=2,
)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(STORY_TIMEOUT_S):
            await story()

    trio.run(bounded)


async def until(look: Callable[[], object]) -> None:
    while not look():
        await trio.sleep(POLL_S)


class RunningServer:
    """A name server in this process that remembers what it was asked."""

    def __init__(self, port: int, nursery: trio.Nursery) -> None:
        self.node = NameServerNode(HOST, port, SystemClock())
        self.asked: list[int] = []
        self.scope = trio.CancelScope()
        self._handle = self.node.server.handle
        self.node.server.handle = self.handle  # type: ignore[method-assign]
        nursery.start_soon(self._run)

    def handle(self, connection: int, request: Command, now_ms: float) -> Command | None:
        self.asked.append(request.code)
        return self._handle(connection, request, now_ms)

    async def _run(self) -> None:
        with self.scope:
            await self.node.run()

    def ids(self) -> dict[int, str]:
        data = self.node.server.registry.cluster_info().broker_addr_table.get("b")
        return {} if data is None else data.broker_addrs

    def topics(self) -> list[str]:
        return self.node.server.registry.topics()


class Broker:
    """What a broker shows of itself, changed by the tests."""

    def __init__(self, *ports: int, interval_ms: int = 600_000) -> None:
        self.state = RegistrationState(broker_id=2, term=1, topics_version=0)
        self.names = ["t", "u"]
        servers = tuple((HOST, port) for port in ports)
        config = replace(CONFIG, name_servers=servers, register_interval_ms=interval_ms)
        self.registration = Registration(
            config, SystemClock(), lambda: self.state, lambda: map(TopicConfig, self.names)
        )

    def become(self, **changes: int | None) -> None:
        self.state = replace(self.state, **changes)
        self.registration.refresh()

    @asynccontextmanager
    async def registering(self) -> AsyncIterator[None]:
        """Within the block it keeps registered; at its end it stops in order."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.registration.run)
            yield
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[tuple[list[RunningServer], trio.Nursery]]:
    async with trio.open_nursery() as nursery:
        yield [RunningServer(port, nursery) for port in find_free(count)], nursery
        nursery.cancel_scope.cancel()


def port_of(server: RunningServer) -> int:
    return server.node._port


def test_role_and_topics_reach_every_name_server() -> None:
    async def story() -> None:
        async with servers(2) as (both, _):
            broker = Broker(*map(port_of, both))
            async with broker.registering():
                await until(lambda: all(server.ids() == {2: ADDRESS} for server in both))
                assert not any(server.topics() for server in both)

                broker.become(broker_id=0, term=2)
                await until(lambda: all(server.ids() == {0: ADDRESS} for server in both))
                assert all(server.topics() == ["t", "u"] for server in both)

                broker.names.append("v")
                broker.become(topics_version=1)
                await until(lambda: all(server.topics() == ["t", "u", "v"] for server in both))

                broker.become(broker_id=2)
                await until(lambda: all(server.ids() == {2: ADDRESS} for server in both))
            for server in both:
                assert server.asked[-1] == RequestCode.UNREGISTER_BROKER
                assert server.ids() == {}

    run(story)


def test_who_is_no_member_is_in_no_route() -> None:
    async def story() -> None:
        async with servers(1) as ([server], _):
            broker = Broker(port_of(server), interval_ms=10)
            broker.become(broker_id=None)
            async with broker.registering():
                broker.become(term=2)
                broker.become(broker_id=2)
                await until(lambda: server.ids() == {2: ADDRESS})
                assert RequestCode.UNREGISTER_BROKER not in server.asked
                broker.become(broker_id=None)
                await until(lambda: server.ids() == {})
                asked = len(server.asked)
                broker.become(broker_id=0, term=3)
                await until(lambda: server.ids() == {0: ADDRESS})
                assert RequestCode.UNREGISTER_BROKER not in server.asked[asked:]

    run(story)


@pytest.mark.parametrize(("slave_port", "ha_address"), [(None, ""), (65_535, f"{HOST}:65535")])
def test_only_who_serves_slaves_registers_an_address_for_them(
    slave_port: int | None, ha_address: str
) -> None:
    registration = Broker().registration
    registration.listens(65_535, slave_port)
    header = RegisterBrokerHeader.from_ext(registration.register_request(0).ext)
    assert (header.broker_addr, header.ha_server_addr) == (f"{HOST}:65535", ha_address)
    left = BrokerHeader.from_ext(registration.unregister_request(0).ext)
    assert left.broker_addr == header.broker_addr


def test_it_registers_now_and_then_without_a_change() -> None:
    async def story() -> None:
        async with (
            servers(1) as ([server], _),
            Broker(port_of(server), interval_ms=10).registering(),
        ):
            await until(lambda: server.asked.count(RequestCode.REGISTER_BROKER) > 5)

    run(story)


async def serve_with(
    port: int, handle: Callable[[trio.SocketStream], Awaitable[None]], nursery: trio.Nursery
) -> None:
    async def guarded(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await handle(stream)

    await nursery.start(
        lambda task_status: trio.serve_tcp(guarded, port, host=HOST, task_status=task_status)
    )


async def never_answer(stream: trio.SocketStream) -> None:
    async for _ in stream:
        pass


async def answer_garbage(stream: trio.SocketStream) -> None:
    await stream.receive_some(100)
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_dead_silent_and_babbling_name_servers_cost_nothing() -> None:
    async def story() -> None:
        async with servers(1) as ([server], nursery):
            dead, silent, babbling = find_free(3)
            await serve_with(silent, never_answer, nursery)
            await serve_with(babbling, answer_garbage, nursery)
            broker = Broker(dead, silent, babbling, port_of(server))
            async with broker.registering():
                await until(lambda: server.ids() == {2: ADDRESS})
                for term in range(2, 8):
                    broker.become(broker_id=0 if term % 2 == 0 else 2, term=term)
                    expected = 0 if term % 2 == 0 else 2
                    await until(lambda expected=expected: server.ids() == {expected: ADDRESS})
            assert server.ids() == {}

    run(story)


def test_a_name_server_that_comes_back_is_told_again() -> None:
    async def story() -> None:
        async with servers(2) as ([first, second], nursery):
            broker = Broker(port_of(first), port_of(second))
            async with broker.registering():
                await until(lambda: first.ids() and second.ids())
                first.scope.cancel()
                broker.become(broker_id=0, term=2)
                await until(lambda: second.ids() == {0: ADDRESS})
                again = RunningServer(port_of(first), nursery)
                await until(lambda: again.ids() == {0: ADDRESS})
                assert again.topics() == ["t", "u"]

    run(story)


def test_who_is_refused_tries_again_as_what_it_is() -> None:
    async def story() -> None:
        async with servers(1) as ([server], _):
            other = Broker(port_of(server))
            other.registration._address = "127.0.0.1:1"
            other.become(broker_id=0, term=9)
            async with other.registering():
                await until(lambda: server.ids() == {0: "127.0.0.1:1"})
                deposed = Broker(port_of(server))
                deposed.become(broker_id=0, term=8)
                async with deposed.registering():
                    await until(lambda: server.asked.count(RequestCode.REGISTER_BROKER) >= 2)
                    assert server.ids() == {0: "127.0.0.1:1"}
                    deposed.become(broker_id=2, term=9)
                    await until(lambda: server.ids() == {0: "127.0.0.1:1", 2: ADDRESS})

    run(story)


def test_a_stop_waits_for_no_silent_name_server() -> None:
    """It would hang until the timeout if it did."""

    async def story() -> None:
        async with servers(1) as ([server], _):
            broker = Broker(port_of(server))
            async with broker.registering():
                await until(server.ids)
                server.node.server.handle = lambda *_: None  # type: ignore[method-assign]
            await until(lambda: not server.ids())  # the connection closed all the same

    run(story)


def test_a_registration_that_does_not_fit_is_left_out() -> None:
    async def story() -> None:
        async with servers(1) as ([server], _):
            broker = Broker(port_of(server))
            async with broker.registering():
                await until(server.ids)
                broker.names = ["\ud800"]
                broker.become(broker_id=0, topics_version=1)
                await trio.testing.wait_all_tasks_blocked(0.02)
                assert server.ids() == {2: ADDRESS}
                broker.names = ["t", "u"]
                broker.become(topics_version=2)
                await until(lambda: server.topics() == ["t", "u"])

    run(story)
