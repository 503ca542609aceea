"""Nodes that listen, the proxies among them, and connections through these."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio
import trio.testing

from shaketable.harness.contracts.plugins import Address
from shaketable.harness.network.proxy import ProxyNetwork

PATIENCE_S = 30


class Peer:
    """One end of a connection that keeps what it got."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.got = bytearray()
        self.end: str | None = None
        self._news = trio.Event()

    async def collect(self) -> None:
        try:
            while data := await self.stream.receive_some():
                self.got += data
                self._tell()
            self.end = "eof"
        except trio.BrokenResourceError:
            self.end = "reset"
        except trio.ClosedResourceError:
            self.end = "closed here"
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def until(self, is_there: Callable[["Peer"], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not is_there(self):
                await self._news.wait()


class Rig:
    """Nodes that listen, the proxies among them, and connections through these."""

    def __init__(self, nursery: trio.Nursery, nodes: tuple[str, ...]) -> None:
        self.nursery = nursery
        self.arrivals = {node: trio.open_memory_channel[Peer](100) for node in nodes}
        self.peers: list[Peer] = []
        self.network: ProxyNetwork

    async def listen(self) -> dict[str, Address]:
        addresses = {}
        for node in self.arrivals:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            addresses[node] = Address("127.0.0.1", listener.socket.getsockname()[1])
            self.nursery.start_soon(self._serve, node, listener)
        return addresses

    async def _serve(self, node: str, listener: trio.SocketListener) -> None:
        async def arrive(stream: trio.SocketStream) -> None:
            peer = self._meet(stream)
            self.arrivals[node][0].send_nowait(peer)
            await peer.collect()
            await trio.sleep_forever()  # serve_listeners would close it

        await trio.serve_listeners(arrive, [listener])

    def _meet(self, stream: trio.SocketStream) -> Peer:
        peer = Peer(stream)
        self.peers.append(peer)
        return peer

    async def dial(self, a: str, b: str) -> Peer:
        address = self.network.address(a, b)
        peer = self._meet(await trio.open_tcp_stream(address.host, address.port))
        self.nursery.start_soon(peer.collect)
        return peer

    async def arrival(self, node: str) -> Peer:
        with trio.fail_after(PATIENCE_S):
            return await self.arrivals[node][1].receive()

    async def pair(self, a: str, b: str) -> tuple[Peer, Peer]:
        dialled = await self.dial(a, b)
        return dialled, await self.arrival(b)


@asynccontextmanager
async def rig(*nodes: str) -> AsyncIterator[Rig]:
    async with trio.open_nursery() as nursery:
        made = Rig(nursery, nodes)
        made.network = ProxyNetwork(await made.listen())
        await nursery.start(made.network.run)
        try:
            yield made
        finally:
            nursery.cancel_scope.cancel()
            for peer in made.peers:
                peer.stream.socket.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(PATIENCE_S):
            await scenario()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        raise first_leaf(group) from None


def first_leaf(error: BaseException) -> BaseException:
    return first_leaf(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)
