"""A node's interface to its machine: disk, clock, random generators, disk threads and polling.

A process gets the real ones (`system.node.__main__`, `system.node.disks.real_disk`), a simulated
node gets simulated ones; the node's code is the same (DESIGN.md decision 9).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar, runtime_checkable

import trio

from shaketable.system.raft.protocol import Message
from shaketable.system.store.disk import Disk

# The clock. Only this file reads the machine's clocks: all of a node's timers use this one, so a
# clock that runs fast, slow or jumps affects all of them.


class Clock(Protocol):
    """A node's source of time."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970: store times, delays and expiry use it, consensus does not."""
        ...

    def move_on_at(self, due_ms: float) -> AbstractContextManager[trio.CancelScope]:
        """Cancel the `with` body when this clock shows `due_ms` (monotonic milliseconds)."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def now_ms(self) -> float:
        """Monotonic milliseconds."""
        return time.monotonic_ns() / 1e6

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def move_on_at(self, due_ms: float) -> AbstractContextManager[trio.CancelScope]:
        """Cancel the `with` body when this clock shows `due_ms`."""
        return trio.move_on_after(max(0.0, due_ms - self.now_ms()) / 1000)


async def sleep(clock: Clock, pause_ms: float) -> None:
    """Sleep for `pause_ms` of that clock."""
    with clock.move_on_at(clock.now_ms() + pause_ms):
        await trio.sleep_forever()


Result = TypeVar("Result")


# Non-blocking sockets, and a poll over many of them.
#
# In trio each task waits for one socket, at about 30 us per wake-up. If each client sends one
# message at a time, that is one wake-up per message. So a broker waits for all of its sockets at
# once: an epoll instance is itself a file descriptor that trio can wait for.
# Source: epoll(7); trio.lowlevel.wait_readable.


@runtime_checkable
class DirectSocket(Protocol):
    """A connected non-blocking socket."""

    def recv_nowait(self, buffer: memoryview) -> int | None:
        """Receive into `buffer`; return the number of bytes, 0 at end of stream, None if none yet.

        Raises OSError when the connection is broken.
        """
        ...

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send as much as the socket takes now, perhaps nothing; return the number of bytes.

        Raises OSError when the connection is broken.
        """
        ...


class Poll(Protocol):
    """Watches many sockets for readability: bytes, end of stream or an error."""

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket."""
        ...

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Stop watching a socket, which may be closed already."""
        ...

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the readable sockets, after at least one scheduler checkpoint."""
        ...

    def close(self) -> None:
        """Stop watching all sockets."""
        ...


class KernelSocket:
    """A `DirectSocket` of the operating system. Must not be used after it is closed."""

    __slots__ = ("_number",)

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._number = sock.fileno()

    def recv_nowait(self, buffer: memoryview) -> int | None:
        """Receive without blocking."""
        try:
            return os.readv(self._number, (buffer,))
        except BlockingIOError:
            return None

    def send_nowait(self, data: bytes | memoryview) -> int:
        """Send without blocking."""
        try:
            return os.write(self._number, data)
        except BlockingIOError:
            return 0


class KernelPoll:
    """A `Poll` by epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._numbers: dict[trio.socket.SocketType, int] = {}
        self._sockets: dict[int, trio.socket.SocketType] = {}

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket. After `close` this is allowed, but nothing is watched."""
        number = sock.fileno()
        if not self._epoll.closed:
            self._epoll.register(number, select.EPOLLIN)
        self._numbers[sock] = number
        self._sockets[number] = sock

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Stop watching a socket.

        The kernel removes a closed socket itself, and its descriptor may have been reused by now.
        """
        number = self._numbers.pop(sock, None)
        if number is None or self._sockets.get(number) is not sock:
            return
        del self._sockets[number]
        if sock.fileno() == number and not self._epoll.closed:
            self._epoll.unregister(number)

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the readable sockets."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        sockets = self._sockets
        return [sockets[number] for number, _ in self._epoll.poll(0) if number in sockets]

    def close(self) -> None:
        """Close the epoll instance."""
        self._epoll.close()


class DiskWork(Protocol):
    """Runs blocking disk operations off the event loop."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return what it returns, or raise what it raises."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node uses of its machine.

    `rng` creates a random generator for a named purpose, `new_poll` a poll over many connections.
    `on_message`, if set, is called for each message to another member before it is sent.
    `unsynced` returns for a folder which files' bytes a loss of power would cost: path -> from
    where on; nothing where that is not known.
    """

    disk: Disk
    clock: Clock
    rng: Callable[[str], Random]
    run_disk_work: DiskWork
    new_poll: Callable[[], Poll] = KernelPoll
    on_message: Callable[[Message], None] | None = None
    unsynced: Callable[[str], dict[str, int]] = lambda _: {}
