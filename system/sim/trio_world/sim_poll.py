"""Which sockets of a simulated process have something to be read: its epoll instance."""

from __future__ import annotations

from functools import partial
from itertools import count

import trio

from shaketable.system.sim.trio_world.process import Park, Process
from shaketable.system.sim.trio_world.sim_socket import SimSocket


class SimPoll:
    """A `system.node.direct_socket.Poll` over simulated sockets, in the order they were added."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._sockets: dict[SimSocket, int] = {}
        """Each with its place in the order."""
        self._places = count()
        self._heard: set[SimSocket] = set()
        """Those that may be readable: all others are known not to be."""
        self._park = Park(process)

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket from now on."""
        assert isinstance(sock, SimSocket)
        self._sockets.setdefault(sock, next(self._places))
        sock.on_readable = partial(self._hear, sock)
        self._hear(sock)

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Watch it no longer."""
        assert isinstance(sock, SimSocket)
        if self._sockets.pop(sock, None) is not None:
            sock.on_readable = None
            self._heard.discard(sock)

    def _hear(self, sock: SimSocket) -> None:
        """Something has come of a socket."""
        self._heard.add(sock)
        self._park.wake()

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the sockets to be read."""
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while not (found := self._readable()):
            await self._park.wait()
            has_waited = True
        if not has_waited:
            await trio.lowlevel.cancel_shielded_checkpoint()
        return found

    def _readable(self) -> list[trio.socket.SocketType]:
        """Return the sockets to be read, and listen anew to those that are not."""
        self._heard = {sock for sock in self._heard if sock.is_readable()}
        return [*sorted(self._heard, key=self._sockets.__getitem__)]

    def close(self) -> None:
        """Watch nothing any more."""
        for sock in tuple(self._sockets):
            self.remove(sock)
