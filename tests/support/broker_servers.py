"""Serves a table group of brokers to real clients on the loopback interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import trio
from broker_group import HOST, BrokerGroup

from shaketable.system.remoting.command import FrameBuffer, encode_command
from shaketable.system.remoting.requests import SendRequest, decode_request

IDLE_S = 0.001


class BrokerServers:
    """A listener for each member; the group's time passes by itself, faster than ours."""

    def __init__(self, group: BrokerGroup) -> None:
        self.group = group
        self.addresses: dict[str, tuple[str, int]] = {}
        self.down: set[str] = set()
        self.asked: Counter[str] = Counter()
        self._numbers = count(1)
        self._streams: dict[tuple[str, int], trio.SocketStream] = {}

    @property
    def connected(self) -> int:
        """How many connections of clients are open."""
        return len(self._streams)

    async def listen(self, name: str, nursery: trio.Nursery) -> None:
        """Serve one member."""

        async def serve(stream: trio.SocketStream) -> None:
            await self._serve(name, stream)

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.addresses[name] = listeners[0].socket.getsockname()[:2]
        nursery.start_soon(trio.serve_listeners, serve, listeners)

    async def pass_time(self) -> None:
        """Let time pass until cancelled."""
        while True:
            self.group.pass_time(10)
            await self._send_replies()
            await trio.sleep(IDLE_S)

    async def _serve(self, name: str, stream: trio.SocketStream) -> None:
        number = next(self._numbers)
        self._streams[name, number] = stream
        buffer = FrameBuffer()
        try:
            while received := await stream.receive_some(65536):
                view = buffer.writable()
                view[: len(received)] = received
                buffer.received(len(received))
                requests = [decode_request(frame) for frame in buffer.frames()]
                if name in self.down:
                    return
                self._handle(name, number, requests)
                await self._send_replies()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            del self._streams[name, number]

    def _handle(self, name: str, number: int, requests: list[object]) -> None:
        group = self.group
        member = group.members[name]
        for request in requests:
            code = 310 if isinstance(request, SendRequest) else request.code
            self.asked[f"{name} {code}"] += 1
        member.broker.handle(number, HOST, requests, group.now_ms, group.wall_ms)
        member.pump()
        group.settle()

    async def _send_replies(self) -> None:
        for name, member in list(self.group.members.items()):
            replies, member.replies = member.replies, {}
            for number, commands in replies.items():
                stream = self._streams.get((name, number))
                if stream is not None:
                    await stream.send_all(b"".join(map(encode_command, commands)))


@asynccontextmanager
async def serving(group: BrokerGroup) -> AsyncIterator[tuple[BrokerServers, trio.Nursery]]:
    """Serve a group; everything ends with the block."""
    servers = BrokerServers(group)
    async with trio.open_nursery() as nursery:
        for name in group.members:
            await servers.listen(name, nursery)
        nursery.start_soon(servers.pass_time)
        yield servers, nursery
        nursery.cancel_scope.cancel()
