"""One direction of a simulated TCP connection: in order, bounded, late; cut and reset.

Unlike the members' messages of the core world, bytes of TCP are never lost alone, doubled or
overtaken: a lost segment is late by a retransmission, a cut holds everything until it is
mended, and what cannot be delivered any more ends the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Protocol

from shaketable.system.sim.network import Link
from shaketable.system.sim.trio_world.heap_clock import HeapClock

WINDOW_BYTES_MAX = 256 * 1024
"""Sent and not yet read by the other side: past this, sending waits."""
SEGMENT_BYTES_MAX = 64 * 1024
RETRANSMISSION_MS = 200.0
"""Linux' least retransmission timeout: how late a lost segment is, each time it is lost."""
LOSSES_MAX = 4
"""How often one segment is lost at most; no back-off, so that a mended link is well soon."""
SPLIT_CHANCE = 0.05
"""How often one send arrives in two pieces, so that frames come apart."""
CHOP_CHANCE = 0.5
"""How often the sockets of a connection that is chopped take, or hand over, a part only."""


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
        """Take the next segment."""
        ...

    def reset(self) -> None:
        """The connection is broken, both ways."""
        ...

    def refuse(self) -> None:
        """A segment came for a socket that nobody holds."""
        ...


class Pipe:
    """Bytes from one socket to another.

    `random` draws for this connection's direction alone; `chops`, where its sockets take and hand
    over what a full buffer would let them, says where they stop.
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
        """Bytes that went into nothing since the far side ended without this one being told."""

    def room_for(self, size: int) -> int:
        """Return how many of so many bytes may be sent now, before somebody reads.

        All of them, or a whole segment, or none: no window opens for the few bytes that were just
        read. Source: RFC 9293, section 3.8.6.2 (the silly window syndrome).
        """
        wanted = min(size, SEGMENT_BYTES_MAX)
        return wanted if wanted <= WINDOW_BYTES_MAX - self.in_flight - len(self.unread) else 0

    def part(self, size: int) -> int:
        """Return how many of so many bytes are taken, or handed over, at once."""
        chops = self._chops
        if chops is None or size < 2 or chops() >= CHOP_CHANCE:
            return size
        return 1 + int(chops() * (size - 1))

    def send(self, segment: Segment) -> None:
        """Put bytes, or the end, on their way."""
        if isinstance(segment, bytes):
            self.in_flight += len(segment)
            if len(segment) > 1 and self._random() < SPLIT_CHANCE:
                at = 1 + int(self._random() * (len(segment) - 1))
                self._start(segment[:at])
                segment = segment[at:]
        self._start(segment)

    def release(self) -> None:
        """The cut is mended: what it held comes through with the next retransmission."""
        self._clock.after(RETRANSMISSION_MS * self._random(), self._deliver_held)

    def drop(self) -> None:
        """Forget everything: the connection is over."""
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
            delay_ms += self._queue_ms(_size(segment), delay_ms)
            for note in link.notes:
                note(_size(segment), delay_ms - sound_ms, losses, is_overtaken)
        self._last_ms = max(self._last_ms, self._clock.now_ms + delay_ms)
        self._clock.heap.push(self._last_ms, self._arrive, segment)

    def _queue_ms(self, size: int, delay_ms: float) -> float:
        """How long a segment waits for a narrow link, behind those of all connections there."""
        link = self.link
        if not link.bytes_per_ms:
            return 0.0
        at_ms = self._clock.now_ms + delay_ms
        link.free_ms = max(at_ms, link.free_ms) + size / link.bytes_per_ms
        return link.free_ms - at_ms

    def _arrive(self, segment: Segment) -> None:
        if self.link.is_cut or self.held:
            self.held.append(segment)
            self.held_bytes += _size(segment)
        else:
            self._deliver(segment)

    def _deliver_held(self) -> None:
        if not self.link.is_cut:
            held, self.held, self.held_bytes = self.held, [], 0
            for segment in held:
                self._deliver(segment)

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
