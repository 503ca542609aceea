"""Which sockets of a simulated process have something to be read: its epoll instance."""

from __future__ import annotations

import trio

from system.sim.trio_world.process import Park, Process
from system.sim.trio_world.sim_socket import SimSocket


class SimPoll:
    """A `system.node.direct_socket.Poll` over simulated sockets, in the order they were added."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sockets: dict[SimSocket, None] = {}
        self._park = Park(process)

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket from now on."""
        assert isinstance(sock, SimSocket)
        self._sockets[sock] = None
        sock.on_readable = self._park.wake
        self._park.wake()

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Watch it no longer."""
        assert isinstance(sock, SimSocket)
        if self._sockets.pop(sock, sock) is None:
            sock.on_readable = None

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the sockets to be read."""
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while not (found := [sock for sock in self._sockets if sock.is_readable()]):
            await self._park.wait()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return list(found)

    def close(self) -> None:
        """Watch nothing any more."""
        self._sockets.clear()
