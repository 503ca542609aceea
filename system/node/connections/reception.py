"""One task reads all connections of a node.

What many clients sent is taken in one turn, so that it shares a batch, a push to each follower
and an fsync (THROUGHPUT.md rules 1, 2 and 9: with sparse traffic, wake-ups are what costs).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from shaketable.system.node.connections.link import Link
from shaketable.system.node.machine import Poll
from shaketable.system.remoting.frame import Frame, FrameBuffer


class Reception:
    """Reads links for the tasks that serve them. `run` is to run beside those tasks.

    `after_each` is called when all that were found readable have been read.
    """

    def __init__(self, poll: Poll, after_each: Callable[[], None] | None = None) -> None:
        self.is_reading = False
        """True while links are being read: `after_each` comes in the same turn."""
        self._poll = poll
        self._after_each = after_each
        self._guests: dict[trio.socket.SocketType, _Guest] = {}

    async def run(self) -> None:
        """Read whatever comes, until cancelled."""
        guests = self._guests
        try:
            while True:
                found = await self._poll.wait()
                self.is_reading = True
                for sock in found:
                    guest = guests.get(sock)
                    if guest is not None and not guest.over.is_set():
                        guest.read()
                self.is_reading = False
                if self._after_each is not None:
                    self._after_each()
        finally:
            self._poll.close()

    async def read(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        """Hand over all complete frames of each read, until either side closes.

        Raises OSError when the connection breaks, FrameError for what is no frame, and whatever
        `on_frames` raises.
        """
        sock = link.sock
        guest = self._guests[sock] = _Guest(link, on_frames)
        link.on_close = guest.over.set
        try:
            self._poll.add(sock)
            await guest.over.wait()
        finally:
            del self._guests[sock]
            self._poll.remove(sock)
        if guest.error is not None:
            raise guest.error


class _Guest:
    """One link that is being read."""

    __slots__ = ("_buffer", "_link", "_on_frames", "error", "over")

    def __init__(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        self.over = trio.Event()
        self.error: Exception | None = None
        self._link = link
        self._on_frames = on_frames
        self._buffer = FrameBuffer()

    def read(self) -> None:
        """Take what is there; what is wrong with it is the serving task's to raise."""
        buffer = self._buffer
        try:
            count = self._link.recv_now(buffer.writable())
            if count:
                buffer.received(count)
                if frames := buffer.frames():
                    self._on_frames(frames)
            elif count is not None:
                self.over.set()
        except Exception as error:  # raised by `Reception.read`
            self.error = error
            self.over.set()
