"""What a node is given of the machine it runs on: disk, clock, dice and a place for disk work.

A process gets the real ones (`system.node.__main__`, `system.node.disks.disk_threads`), a simulated
node those of its world; the node itself is the same (DESIGN.md decision 9).
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar, runtime_checkable

import trio

from shaketable.system.node.clock import Clock
from shaketable.system.raft.protocol import Message
from shaketable.system.store.disk import Disk

Result = TypeVar("Result")


# Sockets asked without waiting, and one place that knows which of many have something to say.
#
# trio waits for one socket a task, at some 30 us a wake-up. A broker whose clients send one
# message at a time has as many wake-ups as messages, so it waits for all of them at once: the
# kernel's epoll instance is itself a file that trio can wait for.
# Source: epoll(7); trio.lowlevel.wait_readable.


@runtime_checkable
class DirectSocket(Protocol):
    """A connected socket that is asked without waiting."""

    def recv_now(self, buffer: memoryview) -> int | None:
        """Receive into `buffer`: how many bytes, 0 at the other side's end, None: nothing yet.

        Raises OSError when the connection is broken.
        """
        ...

    def send_now(self, data: bytes | memoryview) -> int:
        """Send as much as there is room for, perhaps nothing; return how many bytes.

        Raises OSError when the connection is broken.
        """
        ...


class Poll(Protocol):
    """Knows which of its sockets have bytes, an end or an error to be read."""

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket from now on."""
        ...

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Watch it no longer; it may be closed already."""
        ...

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the sockets to be read, after at least one turn of the scheduler."""
        ...

    def close(self) -> None:
        """Watch nothing any more."""
        ...


class KernelSocket:
    """A socket of the operating system, as `DirectSocket`; not to be used once it is closed."""

    __slots__ = ("_number",)

    def __init__(self, sock: trio.socket.SocketType) -> None:
        self._number = sock.fileno()

    def recv_now(self, buffer: memoryview) -> int | None:
        """Receive without waiting."""
        try:
            return os.readv(self._number, (buffer,))
        except BlockingIOError:
            return None

    def send_now(self, data: bytes | memoryview) -> int:
        """Send without waiting."""
        try:
            return os.write(self._number, data)
        except BlockingIOError:
            return 0


class KernelPoll:
    """The operating system's `Poll`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._numbers: dict[trio.socket.SocketType, int] = {}
        self._sockets: dict[int, trio.socket.SocketType] = {}

    def add(self, sock: trio.socket.SocketType) -> None:
        """Watch a socket from now on; once closed, whoever is still let in has nothing to read."""
        number = sock.fileno()
        if not self._epoll.closed:
            self._epoll.register(number, select.EPOLLIN)
        self._numbers[sock] = number
        self._sockets[number] = sock

    def remove(self, sock: trio.socket.SocketType) -> None:
        """Watch it no longer.

        The kernel forgets a closed one by itself, and its number may be another socket's by now.
        """
        number = self._numbers.pop(sock, None)
        if number is None or self._sockets.get(number) is not sock:
            return
        del self._sockets[number]
        if sock.fileno() == number and not self._epoll.closed:
            self._epoll.unregister(number)

    async def wait(self) -> list[trio.socket.SocketType]:
        """Return the sockets to be read."""
        await trio.lowlevel.wait_readable(self._epoll.fileno())
        sockets = self._sockets
        return [sockets[number] for number, _ in self._epoll.poll(0) if number in sockets]

    def close(self) -> None:
        """Give the epoll instance back."""
        self._epoll.close()


class DiskWork(Protocol):
    """Runs functions that wait for the disk, one after the other, off the hot path."""

    async def __call__(self, work: Callable[[], Result]) -> Result:
        """Run `work` and return what it returns, or raise what it raises."""
        ...


@dataclass(frozen=True, slots=True)
class Machine:
    """A node's surroundings.

    `dice` makes a stream of random numbers for a named purpose, `new_poll` what watches many
    connections at once. `on_message`, if there is one, is told of each message to another member
    before it goes.
    """

    disk: Disk
    clock: Clock
    dice: Callable[[str], Random]
    run_disk_work: DiskWork
    new_poll: Callable[[], Poll] = KernelPoll
    on_message: Callable[[Message], None] | None = None
