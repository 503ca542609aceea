"""What the switch does with packets between nodes: pass, drop, delay, duplicate, corrupt. Pure.

Frames go in with the time and come out when they are due. Cuts and shapes have ids, as in `gates`
and `shapes`, but a cut holds nothing for later: what a cut or a loss drops is gone, and TCP has to
retransmit it.

Source: tc-netem(8), tc-tbf(8); DESIGN.md decision 10 (loss and reordering belong to packets).
"""

from __future__ import annotations

import heapq
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Final

from shaketable.harness.contracts.capabilities import Capability, Link, LinkShape
from shaketable.harness.contracts.plugins import Json

LATE_PACKETS_MAX: Final = 20_000
"""Limit of delayed packets on all links together: 30 MB of full frames. More are dropped."""
RATE_QUEUE_S: Final = 1.0
"""A slow link drops a packet that would wait longer than this, as a full queue does."""
OF_CONNECTIONS: Final = frozenset({Capability.RESET, Capability.HALF_OPEN})
"""Capabilities of shapes that act on connections, not on packets."""
OVERTAKEN_S: Final = 0.02
"""A reordered packet is delayed by this to twice this, so that others overtake it."""


@dataclass(slots=True, eq=False)
class Applied:
    """One shape in force."""

    name: str
    links: tuple[Link, ...]
    shape: LinkShape
    counters: ShapeCounters
    rng: Random
    free_s: dict[Link, float] = field(default_factory=dict)
    resets_at_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Direction:
    """One direction: the cuts and shapes in force, and the state of its queue."""

    link: Link
    cuts: dict[str, CutCounters] = field(default_factory=dict)
    shapes: list[Applied] = field(default_factory=list)
    last_due_s: float = 0.0
    taken: int = 0
    delivered: int = -1
    late: int = 0


@dataclass(slots=True, order=True)
class _Late:
    due_s: float
    number: int
    way: _Direction = field(compare=False)
    frame: bytes = field(compare=False)
    came_s: float = field(compare=False)
    place: int = field(compare=False)
    shapes: tuple[Applied, ...] = field(compare=False)


class PacketLinks:
    """All directions among nodes, which are identified by their addresses (4 bytes each).

    Args:
        addresses: the IPv4 address of each node.
    """

    def __init__(self, addresses: dict[str, bytes]) -> None:
        self._ways = {link: _Direction(link) for link in itertools.permutations(addresses, 2)}
        self._flows = Flows(addresses)
        self._cuts: dict[str, tuple[tuple[Link, ...], CutCounters]] = {}
        self._healed: set[str] = set()
        self._shapes: dict[str, Applied] = {}
        self._counters: dict[str, ShapeCounters] = {}
        self._late: list[_Late] = []
        self._numbers = itertools.count()

    # ---- packets -------------------------------------------------------------------------

    def take(self, link: Link, frame: bytes, now_s: float) -> Sequence[bytes]:
        """Take a frame from a to b; return the frames that b gets now. `due` returns the rest."""
        way = self._ways[link]
        flow = self._flows.note(frame)
        if flow is not None and (ended := self._flows.ended(flow, frame)) is not None:
            return self._drop_ended(way, ended, frame, now_s)
        if way.cuts:
            for counters in way.cuts.values():
                counters.meet(frame, flow)
            return ()
        if not way.shapes and not way.late:
            return (frame,)
        self._shape(way, frame, now_s)
        return ()

    def due(self, now_s: float) -> Iterator[tuple[Link, bytes]]:
        """Yield the frames that are due by now, in order."""
        self._reset_again(now_s)
        while self._late and self._late[0].due_s <= now_s:
            late = heapq.heappop(self._late)
            late.way.late -= 1
            self._deliver(late, now_s)
            yield late.way.link, late.frame

    def next_s(self) -> float | None:
        """Return when the next frame or reset is due; None if there is none."""
        times = [late.due_s for late in self._late[:1]]
        times += [one.resets_at_s for one in self._shapes.values() if one.shape.reset_every_ms]
        return min(times, default=None)

    # ---- cuts ----------------------------------------------------------------------------

    def cut(self, links: Sequence[Link]) -> str:
        """Drop all frames on these links from now on; return an id.

        Raises:
            KeyError: a link names an unknown node.
        """
        ways = [self._ways[link] for link in links]
        name = f"cut-{len(self._cuts)}"
        counters = CutCounters()
        self._cuts[name] = (tuple(links), counters)
        for way in ways:
            way.cuts[name] = counters
        return name

    def heal(self, cut: str, how: str, now_s: float) -> None:
        """Heal one cut (idempotent); "reset" ends the connections of which it dropped packets."""
        if cut not in self._cuts or cut in self._healed:
            return
        links, counters = self._cuts[cut]
        self._healed.add(cut)
        for link in links:
            del self._ways[link].cuts[cut]
        if how == "reset":
            for flow in counters.flows:
                self._send_resets(self._flows.reset(flow), now_s)

    def open_cuts(self) -> tuple[str, ...]:
        """Return the cuts that are not healed."""
        return tuple(name for name in self._cuts if name not in self._healed)

    def held(self, cut: str) -> Json:
        """Return what a cut dropped: {"bytes", "packets", "connections"}; zeros if unknown."""
        return (self._cuts[cut][1] if cut in self._cuts else CutCounters()).to_json()

    # ---- shapes --------------------------------------------------------------------------

    def shape(self, links: Sequence[Link], shape: LinkShape, now_s: float) -> str:
        """Shape these links from now on; return an id.

        Raises:
            KeyError: a link names an unknown node.
        """
        ways = [self._ways[link] for link in links]
        name = f"shape-{len(self._counters)}"
        counters = self._counters[name] = ShapeCounters()
        rng = Random(f"{shape.seed}/{name}")
        applied = Applied(name, tuple(links), shape, counters, rng, resets_at_s=now_s)
        self._shapes[name] = applied
        if shape.capabilities - OF_CONNECTIONS:
            for way in ways:
                way.shapes.append(applied)
        if shape.half_open:
            for flow in self._flows.between(links):
                counters.half_open += 1
                self._send_resets(self._flows.open_half(flow, name), now_s)
        return name

    def unshape(self, shape: str) -> None:
        """Remove one shape (idempotent). Delayed packets still arrive when they are due."""
        applied = self._shapes.pop(shape, None)
        for link in () if applied is None else applied.links:
            way = self._ways[link]
            way.shapes = [other for other in way.shapes if other is not applied]
        self._flows.close_half_open(shape)

    def open_shapes(self) -> tuple[str, ...]:
        """Return the shapes in force."""
        return tuple(self._shapes)

    def shaped(self, shape: str) -> Json:
        """Return what a shape did so far; zeros if it is unknown."""
        return self._counters.get(shape, ShapeCounters()).to_json()

    # ---- inside --------------------------------------------------------------------------

    def _shape(self, way: _Direction, frame: bytes, now_s: float) -> None:
        """Drop, corrupt, duplicate and delay one packet, by all shapes of the link together."""
        copies, late_s, overtaken_s = 1, 0.0, 0.0
        for one in way.shapes:
            shape, counters, random = one.shape, one.counters, one.rng.random
            counters.meet(frame)
            too_large = 0 < shape.mtu_bytes < len(frame) - ETHERNET_BYTES
            if too_large or (shape.loss and random() < shape.loss):
                counters.dropped += 1
                return
            if shape.corrupt and random() < shape.corrupt:
                counters.corrupted += 1
                frame = with_bit_flipped(frame, random())
            if shape.duplicate and random() < shape.duplicate:
                counters.duplicated += 1
                copies += 1
            if shape.delay_ms or shape.jitter_ms:
                late_s += max(0.0, shape.delay_ms + shape.jitter_ms * (2 * random() - 1)) / 1e3
            if shape.reorder and random() < shape.reorder:
                overtaken_s += OVERTAKEN_S * (1 + random())
        due_s = now_s + late_s + overtaken_s
        for _ in range(copies):
            self._queue(way, frame, now_s, due_s, may_be_overtaken=overtaken_s > 0)

    def _queue(
        self, way: _Direction, frame: bytes, now_s: float, due_s: float, *, may_be_overtaken: bool
    ) -> None:
        wanted_s = due_s
        free_s: list[tuple[Applied, float]] = []
        for one in way.shapes:
            # A slow link is a queue with one server: a packet starts when the link is free, and
            # occupies it for its length divided by the rate (tc-tbf without a burst).
            if rate := one.shape.rate_bytes_s:
                begins_s = max(due_s, one.free_s.get(way.link, 0.0))
                if begins_s - wanted_s > RATE_QUEUE_S:
                    one.counters.dropped += 1
                    return
                due_s = begins_s + len(frame) / rate
                free_s.append((one, due_s))
        if len(self._late) >= LATE_PACKETS_MAX:
            for one in way.shapes:
                one.counters.dropped += 1
            return
        for one, until_s in free_s:  # only now: a packet that is dropped occupies no link
            one.free_s[way.link] = until_s
        # First in, first out: jitter alone must not reorder. Only packets that were chosen for
        # reordering may be overtaken.
        if not may_be_overtaken:
            way.last_due_s = due_s = max(due_s, way.last_due_s)
        way.taken += 1
        way.late += 1
        late = _Late(due_s, next(self._numbers), way, frame, now_s, way.taken, tuple(way.shapes))
        heapq.heappush(self._late, late)

    def _deliver(self, late: _Late, now_s: float) -> None:
        is_overtaken = late.place < late.way.delivered
        late.way.delivered = max(late.way.delivered, late.place)
        for one in late.shapes:
            one.counters.deliver(now_s - late.came_s, is_overtaken=is_overtaken)

    def _drop_ended(
        self, way: _Direction, answer: tuple[str, bytes | None], frame: bytes, now_s: float
    ) -> Sequence[bytes]:
        """Drop a packet of a connection that was ended here; its sender may get a reset."""
        shape, reset = answer
        if reset is not None:
            self._send_resets([reset], now_s)
        elif shape in self._counters:
            self._counters[shape].unread += len(frame)
        return ()

    def _reset_again(self, now_s: float) -> None:
        for one in self._shapes.values():
            every_ms = one.shape.reset_every_ms
            if every_ms and one.resets_at_s <= now_s:
                one.resets_at_s = now_s + every_ms / 1e3 * one.rng.uniform(0.5, 1.5)
                for flow in self._flows.between(one.links):
                    one.counters.resets += 1
                    self._send_resets(self._flows.reset(flow), now_s)

    def _send_resets(self, frames: Iterable[bytes], now_s: float) -> None:
        """Send forged resets at once, past cuts and shapes: they are the harness's own."""
        for frame in frames:
            link = self._flows.link_of(frame)
            if link is not None:
                late = _Late(now_s, next(self._numbers), self._ways[link], frame, now_s, 0, ())
                late.way.late += 1
                heapq.heappush(self._late, late)


# The TCP connections that a switch has seen, and those that it has ended. Pure.
#
# A connection that was reset is over for both ends: any packet of it is answered with a reset. A
# half-open connection is over for one end: what the other end sends is dropped silently, until
# `close_half_open`. Both are known by their flows (`Flow`).

FLOWS_MAX: Final = 4096
"""Limit of known connections; the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class _Ended:
    """A flow that is over. With `sends_reset` its sender gets a reset, else nothing."""

    sends_reset: bool
    shape: str = ""


class Flows:
    """Connections among nodes, by the nodes' addresses."""

    def __init__(self, addresses: Mapping[str, bytes]) -> None:
        self._links: dict[bytes, Link] = {
            addresses[a] + addresses[b]: (a, b) for a, b in permutations(addresses, 2)
        }
        self._last: dict[Flow, bytes] = {}  # the last frame of each flow
        self._ended: dict[Flow, _Ended] = {}

    def note(self, frame: bytes) -> Flow | None:
        """Remember a frame as the last of its flow; return the flow, None if it has none."""
        flow = flow_of(frame)
        if flow is not None:
            if flow not in self._last and len(self._last) >= FLOWS_MAX:
                del self._last[next(iter(self._last))]
            self._last[flow] = frame
        return flow

    def ended(self, flow: Flow, frame: bytes) -> tuple[str, bytes | None] | None:
        """Return how to answer a frame of an ended flow; None if the flow is not ended.

        Returns (the shape that ended it, the reset for its sender; None if it gets none).
        """
        end = self._ended.get(flow)
        if end is None:
            return None
        flags = tcp_flags(frame)
        if flags & SYN:  # the same ports again: a new connection
            self._forget(flow)
            return None
        if end.sends_reset:
            return "", None if flags & RST else reset_back(frame)
        return end.shape, None

    def link_of(self, frame: bytes) -> Link | None:
        """Return the link that a frame takes, by its addresses."""
        return self._links.get(frame[26:34])

    def between(self, links: Sequence[Link]) -> list[Flow]:
        """Return the live connections that cross one of these links, by their flow over it."""
        crossed = {pair for pair, link in self._links.items() if link in links}
        found: dict[Flow, None] = {}
        for flow, frame in self._last.items():
            is_known = reverse(flow) in found
            if flow[:8] in crossed and not is_known and self._is_live(flow, frame):
                found[flow] = None
        return list(found)

    def reset(self, flow: Flow) -> list[bytes]:
        """End a connection for both ends; return the resets to send."""
        back = reverse(flow)
        resets = [reset_onward(self._last[one]) for one in (flow, back) if one in self._last]
        self._end(flow, _Ended(sends_reset=True))
        self._end(back, _Ended(sends_reset=True))
        return resets

    def open_half(self, flow: Flow, shape: str) -> list[bytes]:
        """End a connection for the receiver of this flow only; return the reset to send."""
        self._end(flow, _Ended(sends_reset=False, shape=shape))
        self._end(reverse(flow), _Ended(sends_reset=True))
        return [reset_onward(self._last[flow])]

    def close_half_open(self, shape: str) -> None:
        """Forget the connections that this shape made half-open.

        The far end's kernel answers the near end's next packet with a reset, as it has no such
        connection.
        """
        for flow in [one for one, end in self._ended.items() if end.shape == shape]:
            self._forget(flow)

    def _is_live(self, flow: Flow, frame: bytes) -> bool:
        """True if neither end has closed the connection, as far as was seen."""
        over = FIN | RST
        other = self._last.get(reverse(flow))
        is_over = tcp_flags(frame) & over or (other is not None and tcp_flags(other) & over)
        return flow not in self._ended and not is_over

    def _end(self, flow: Flow, how: _Ended) -> None:
        if len(self._ended) >= FLOWS_MAX:
            del self._ended[next(iter(self._ended))]
        self._ended[flow] = how

    def _forget(self, flow: Flow) -> None:
        for one in (flow, reverse(flow)):
            self._ended.pop(one, None)
            self._last.pop(one, None)


# What cuts and shapes did to packets so far: the evidence that they took effect (DESIGN.md decision
# 11).

LATE_MIN_S: Final = 0.001
"""A shorter delay is not counted as delayed: the switch's own work takes time."""


@dataclass(slots=True)
class CutCounters:
    """What one cut dropped, and of which connections (by one of their two flows)."""

    size_bytes: int = 0
    packets: int = 0
    flows: set[Flow] = field(default_factory=set)

    def meet(self, frame: bytes, flow: Flow | None) -> None:
        """Count a frame that was dropped."""
        self.size_bytes += len(frame)
        self.packets += 1
        if flow is not None:
            self.flows.add(min(flow, reverse(flow)))

    def to_json(self) -> Json:
        """Return it in the form of `World.held`, plus "packets"."""
        return {"bytes": self.size_bytes, "packets": self.packets, "connections": len(self.flows)}


@dataclass(slots=True)
class ShapeCounters:
    """What one shape did."""

    size_bytes: int = 0
    packets: int = 0
    delayed: int = 0
    delay_s: float = 0.0
    dropped: int = 0
    duplicated: int = 0
    reordered: int = 0
    corrupted: int = 0
    resets: int = 0
    half_open: int = 0
    unread: int = 0

    def meet(self, frame: bytes) -> None:
        """Count a frame that met the shape."""
        self.size_bytes += len(frame)
        self.packets += 1

    def deliver(self, late_s: float, *, is_overtaken: bool) -> None:
        """Count a frame that was sent on, and its delay."""
        if late_s >= LATE_MIN_S:
            self.delayed += 1
            self.delay_s += late_s
        self.reordered += is_overtaken

    def to_json(self) -> Json:
        """Return it in the form of `ShapesLinks.shaped`."""
        return {
            "bytes": self.size_bytes,
            "packets": self.packets,
            "delayed": self.delayed,
            "delay_ms_mean": round(self.delay_s * 1e3 / self.delayed, 3) if self.delayed else 0.0,
            "dropped": self.dropped,
            "duplicated": self.duplicated,
            "reordered": self.reordered,
            "corrupted": self.corrupted,
            "resets": self.resets,
            "half_open": self.half_open,
            "unread": self.unread,
        }


# Ethernet frames with IPv4 and TCP in them, as bytes: which connection, and a forged reset. Pure.
#
# A switch cannot close a connection as a proxy can, so it sends each end the reset that the other
# could have sent. A receiver accepts a reset only if it has exactly the next expected sequence
# number. To any other number in its window it answers with a challenge ACK, which names the
# expected one.
#
# Source: RFC 791, RFC 9293 section 3.10.7.4, RFC 5961 section 3.2 (challenge ACK).

ETHERNET_BYTES: Final = 14
IPV4: Final = b"\x08\x00"
TCP: Final = 6
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
_HEADERS_BYTES: Final = ETHERNET_BYTES + 20 + 20
_NO_OPTIONS: Final = 0x45
_TTL: Final = 64

Flow = bytes
"""One direction of a connection: source and destination addresses and ports, as in a frame."""


def flow_of(frame: bytes) -> Flow | None:
    """Return the flow that a frame belongs to; None if it is not TCP over plain IPv4."""
    is_tcp = (
        len(frame) >= _HEADERS_BYTES
        and frame[12:14] == IPV4
        and frame[14] == _NO_OPTIONS
        and frame[23] == TCP
    )
    return frame[26:38] if is_tcp else None


def reverse(flow: Flow) -> Flow:
    """Return the other direction of the same connection."""
    return flow[4:8] + flow[0:4] + flow[10:12] + flow[8:10]


def tcp_flags(frame: bytes) -> int:
    """Return the flags of a TCP frame."""
    return frame[47]


def next_sequence(frame: bytes) -> int:
    """Return the sequence number after a TCP frame: the next one that its receiver expects."""
    (total,) = struct.unpack_from("!H", frame, 16)
    (sequence,) = struct.unpack_from("!I", frame, 38)
    payload = total - 20 - (frame[46] >> 4) * 4
    flags = frame[47]
    # SYN and FIN occupy one sequence number each (RFC 9293 section 3.4).
    following: int = (sequence + payload + bool(flags & SYN) + bool(flags & FIN)) & 0xFFFFFFFF
    return following


def acknowledged(frame: bytes) -> int:
    """Return the acknowledgement number of a TCP frame: the next one that its sender expects."""
    number: int = struct.unpack_from("!I", frame, 42)[0]
    return number


def reset_onward(frame: bytes) -> bytes:
    """Forge the reset that the sender of a TCP frame could send after it."""
    return _reset(frame[:12], frame[26:38], next_sequence(frame), acknowledged(frame))


def reset_back(frame: bytes) -> bytes:
    """Forge the reset with which the receiver of a TCP frame could answer."""
    flow = reverse(frame[26:38])
    return _reset(frame[6:12] + frame[:6], flow, acknowledged(frame), next_sequence(frame))


def with_bit_flipped(frame: bytes, place: float) -> bytes:
    """Flip one bit after the Ethernet header, at `place` (0 to 1) of the rest."""
    at = int(place * (len(frame) - ETHERNET_BYTES) * 8)
    changed = bytearray(frame)
    changed[ETHERNET_BYTES + at // 8] ^= 1 << (at % 8)
    return bytes(changed)


def checksum_is_right(frame: bytes) -> bool:
    """True if the IPv4 and TCP checksums are correct."""
    (total,) = struct.unpack_from("!H", frame, 16)
    header, segment = frame[14:34], frame[34 : ETHERNET_BYTES + total]
    return _sum(header) == 0 and _sum(_pseudo(frame[26:34], len(segment)) + segment) == 0


def _reset(ethernet: bytes, flow: Flow, sequence: int, acknowledges: int) -> bytes:
    addresses, ports = flow[:8], flow[8:]
    header = struct.pack("!BBHHHBBH", _NO_OPTIONS, 0, 40, 0, 0, _TTL, TCP, 0) + addresses
    header = header[:10] + struct.pack("!H", _sum(header)) + header[12:]
    segment = ports + struct.pack("!IIBBHHH", sequence, acknowledges, 5 << 4, RST | ACK, 0, 0, 0)
    total = _sum(_pseudo(addresses, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", total) + segment[18:]
    return ethernet + IPV4 + header + segment


def _pseudo(addresses: bytes, size: int) -> bytes:
    return addresses + struct.pack("!BBH", 0, TCP, size)


def _sum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071); 0 if `data` includes its own correct checksum."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
