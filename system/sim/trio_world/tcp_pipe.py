"""One direction of a simulated TCP connection: in order, bounded, delayed; cut and reset.

Unlike the core world's messages, bytes of TCP are never lost alone, duplicated or reordered: a lost
segment is delayed by a retransmission, a cut holds everything until it is healed, and what can no
longer be delivered ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from itertools import takewhile
from typing import Protocol

from shaketable.system.invariants.violated import Violated
from shaketable.system.sim.network import Link
from shaketable.system.sim.trio_world.clocks import HeapClock

WINDOW_BYTES_MAX = 256 * 1024
"""The window: bytes sent and not yet read by the remote end. Beyond it, sending waits."""
SEGMENT_BYTES_MAX = 64 * 1024
RETRANSMISSION_MS = 200.0
"""Linux's minimum retransmission timeout: the delay of each loss of a segment."""
LOSSES_MAX = 4
"""Most losses of one segment; there is no back-off, so that a healed link recovers soon."""
HEADER_BYTES = 52
"""Of each segment's packet: IP and TCP with timestamps."""
SPLIT_CHANCE = 0.05
"""Probability that a send arrives in two pieces, so that frames are split."""
CHOP_CHANCE = 0.5
"""Probability that a socket of a chopped connection takes or returns only a part."""


class Flag(Enum):
    """What travels besides bytes."""

    FIN = "fin"
    RST = "rst"


Segment = bytes | Flag


class Receiver(Protocol):
    """The socket at a pipe's far end."""

    @property
    def is_open(self) -> bool:
        """Whether a process still holds it."""
        ...

    def arrived(self, segment: Segment) -> None:
        """Receive the next segment."""
        ...

    def reset(self) -> None:
        """Reset the connection, both ways."""
        ...

    def refuse(self) -> None:
        """A segment came for a closed socket."""
        ...


class Pipe:
    """Bytes from one socket to another.

    `random` is for this direction alone; `chops`, if set, limits how much its sockets take or
    return at once, as a full buffer would.
    """

    __slots__ = (
        "_chops",
        "_clock",
        "_last_ms",
        "_random",
        "_trace",
        "held",
        "held_bytes",
        "in_flight",
        "link",
        "receiver",
        "swallowed",
        "unread",
    )

    def __init__(
        self,
        clock: HeapClock,
        link: Link,
        random: Callable[[], float],
        receiver: Receiver,
        trace: Callable[[Segment], None],
        chops: Callable[[], float] | None = None,
    ) -> None:
        self._chops = chops
        self._clock = clock
        self._random = random
        self._trace = trace
        self._last_ms = 0.0
        self.link = link
        self.receiver = receiver
        self.in_flight = 0
        self.unread = bytearray()
        self.held: list[Segment] = []
        self.held_bytes = 0
        self.swallowed: int | None = None
        """Bytes lost since the far side vanished without this side being notified; None: it has
        not."""

    def room_for(self, size: int) -> int:
        """Return how many of `size` bytes may be sent now, before the remote end reads more.

        All of them, or a whole segment, or none: the window does not open for a few bytes. Source:
        RFC 9293, section 3.8.6.2 (silly window syndrome).
        """
        wanted = min(size, SEGMENT_BYTES_MAX)
        return wanted if wanted <= WINDOW_BYTES_MAX - self.in_flight - len(self.unread) else 0

    def part(self, size: int) -> int:
        """Return how many of `size` bytes are taken, or returned, at once."""
        chops = self._chops
        if chops is None or size < 2 or chops() >= CHOP_CHANCE:
            return size
        return 1 + int(chops() * (size - 1))

    def send(self, segment: Segment) -> None:
        """Send bytes, or a flag."""
        if isinstance(segment, bytes):
            self.in_flight += len(segment)
            if len(segment) > 1 and self._random() < SPLIT_CHANCE:
                at = 1 + int(self._random() * (len(segment) - 1))
                self._start(segment[:at])
                segment = segment[at:]
        self._start(segment)

    def release(self) -> None:
        """The cut is healed: what it held arrives with the next retransmission."""
        self._clock.after(RETRANSMISSION_MS * self._random(), self._deliver_held)

    def drop(self) -> None:
        """Drop everything: the connection is over."""
        self.in_flight = 0
        self.held.clear()
        self.held_bytes = 0
        self.unread.clear()

    def _start(self, segment: Segment) -> None:
        link, random = self.link, self._random
        sound_ms = delay_ms = link.delay_ms + link.jitter_ms * random()
        if link.is_wrong:
            delay_ms += link.slow_ms
            is_overtaken = bool(link.reorder) and random() < link.reorder
            if is_overtaken:
                delay_ms += link.late_ms * random()
            losses = 0
            while losses < LOSSES_MAX and link.loss and random() < link.loss:
                delay_ms += RETRANSMISSION_MS
                losses += 1
            losses += self._is_stuck(segment)
            delay_ms += self._queue_ms(_size(segment), delay_ms)
            for note in link.notes:
                note(_size(segment), delay_ms - sound_ms, losses, is_overtaken)
        self._last_ms = max(self._last_ms, self._clock.now_ms + delay_ms)
        self._clock.heap.push(self._last_ms, self._arrive, segment)

    def _queue_ms(self, size: int, delay_ms: float) -> float:
        """Return how long a segment waits for a narrow link that all connections share."""
        link = self.link
        if not link.bytes_per_ms:
            return 0.0
        at_ms = self._clock.now_ms + delay_ms
        link.free_ms = max(at_ms, link.free_ms) + size / link.bytes_per_ms
        return link.free_ms - at_ms

    def _arrive(self, segment: Segment) -> None:
        if self._is_stuck(segment) or self.held:
            self.held.append(segment)
            self.held_bytes += _size(segment)
        else:
            self._deliver(segment)

    def _deliver_held(self) -> None:
        passing = [*takewhile(lambda segment: not self._is_stuck(segment), self.held)]
        self.held = self.held[len(passing) :]
        self.held_bytes = sum(map(_size, self.held))
        for segment in passing:
            self._deliver(segment)

    def _is_stuck(self, segment: Segment) -> bool:
        """Return whether a segment does not get through, however often it is sent again."""
        return self.link.is_cut or _size(segment) + HEADER_BYTES > self.link.mtu_bytes

    def _deliver(self, segment: Segment) -> None:
        self._trace(segment)
        self.in_flight = max(0, self.in_flight - _size(segment))
        if self.swallowed is not None:
            self.swallowed += _size(segment)
            return
        if self.receiver.is_open:
            if isinstance(segment, bytes):
                self.unread += segment
            self.receiver.arrived(segment)
        elif segment is not Flag.RST:
            self.receiver.refuse()


def _size(segment: Segment) -> int:
    return len(segment) if isinstance(segment, bytes) else 0


# Invariants of connections' bytes, which no simulated network ever damages by itself.
#
# Clients seldom detect that a sender garbles its stream: the other side closes the connection or
# waits for the rest of a frame, and an operation is indeterminate, as after many faults. Source:
# send(2), recv(2): both may transfer only a part; RFC 9293 section 3.7.


class UnsentBytes:
    """What one side of a connection tried to send, and must continue with."""

    __slots__ = ("_rest", "_taken", "at")

    def __init__(self) -> None:
        self._rest = b""
        self._taken = 0  # bytes of `_rest` sent so far, so that it is not copied each time
        self.at = 0
        """Number of bytes sent before."""

    def sent(self, data: memoryview, count: int) -> None:
        """The socket took the first `count` bytes of `data`. Raises Violated."""
        left = len(self._rest) - self._taken
        common = min(left, count)
        if self._rest[self._taken : self._taken + common] != bytes(data[:common]):
            rest = self._rest[self._taken : self._taken + 16]
            raise Violated(
                "partial-sends-are-continued",
                f"of {left} bytes that a socket did not take at byte {self.at}, what is"
                f" sent next is not the start, but {bytes(data[:16])!r} for {rest!r}",
            )
        if len(data) > left and count < len(data):
            self._rest, self._taken = bytes(data[count:]), 0
        else:
            self._taken += common
        self.at += count


def bad_frame(problem: str, node: str) -> Violated:
    """Return the violation for bytes that a node or a client cannot parse as a frame."""
    return Violated("streams-are-understood", f"it receives what is {problem}", node)
