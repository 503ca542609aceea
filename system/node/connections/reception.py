"""Reads all connections of a node in one task.

Requests of many clients are read in one round, so that they share a batch, a push to each follower
and an fsync (THROUGHPUT.md rules 1, 2 and 9: with small requests, wake-ups dominate the cost).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from shaketable.system.node.connections.link import Link
from shaketable.system.node.machine import Poll
from shaketable.system.remoting.frame import Frame, FrameBuffer


class Reception:
    """Reads links on behalf of the tasks that serve them; `run` must run concurrently with those.

    `after_round` is called after all readable links of a round were read.
    """

    def __init__(self, poll: Poll, after_round: Callable[[], None] | None = None) -> None:
        self.is_reading = False
        """Whether a round is in progress: `after_round` will be called in this scheduler step."""
        self._poll = poll
        self._after_round = after_round
        self._readers: dict[trio.socket.SocketType, _LinkReader] = {}

    async def run(self) -> None:
        """Read links until cancelled."""
        readers = self._readers
        try:
            while True:
                found = await self._poll.wait()
                self.is_reading = True
                for sock in found:
                    reader = readers.get(sock)
                    if reader is not None and not reader.done.is_set():
                        reader.read()
                self.is_reading = False
                if self._after_round is not None:
                    self._after_round()
        finally:
            self._poll.close()

    async def read(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        """Call `on_frames` with the complete frames of each read, until either side closes.

        Raises OSError when the connection breaks, FrameError for a malformed frame, and any error
        of `on_frames`.
        """
        sock = link.sock
        reader = self._readers[sock] = _LinkReader(link, on_frames)
        link.on_close = reader.done.set
        try:
            self._poll.add(sock)
            await reader.done.wait()
        finally:
            del self._readers[sock]
            self._poll.remove(sock)
        if reader.error is not None:
            raise reader.error


class _LinkReader:
    """One link and the callback for its frames."""

    __slots__ = ("_buffer", "_link", "_on_frames", "done", "error")

    def __init__(self, link: Link, on_frames: Callable[[list[Frame]], None]) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None
        self._link = link
        self._on_frames = on_frames
        self._buffer = FrameBuffer()

    def read(self) -> None:
        """Read what is available; keep an error for the task that serves the link to raise."""
        buffer = self._buffer
        try:
            count = self._link.recv_nowait(buffer.writable())
            if count:
                buffer.received(count)
                if frames := buffer.frames():
                    self._on_frames(frames)
            elif count is not None:
                self.done.set()
        except Exception as error:  # raised by `Reception.read`
            self.error = error
            self.done.set()
