"""Ethernet frames with IPv4 and TCP in them, as bytes: which connection, and a forged reset. Pure.

A switch cannot close a connection as a proxy can: it sends each side the reset that the other
could have sent. A receiver takes one only if it has exactly the sequence number that it waits for;
to any other near it, it answers with an acknowledgement that names that number.

Source: RFC 791, RFC 9293 section 3.10.7.4, RFC 5961 section 3.2 (challenge ACK).
"""

from __future__ import annotations

import struct
from typing import Final

ETHERNET_BYTES: Final = 14
IPV4: Final = b"\x08\x00"
TCP: Final = 6
FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10
_HEADERS_BYTES: Final = ETHERNET_BYTES + 20 + 20
_NO_OPTIONS: Final = 0x45
_TTL: Final = 64

Flow = bytes
"""One direction of a connection: addresses and ports, from and to, as they stand in a frame."""


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
    """The flags of a TCP frame."""
    return frame[47]


def next_sequence(frame: bytes) -> int:
    """The sequence number behind a TCP frame: what its receiver waits for, once it has it."""
    (total,) = struct.unpack_from("!H", frame, 16)
    (sequence,) = struct.unpack_from("!I", frame, 38)
    payload = total - 20 - (frame[46] >> 4) * 4
    flags = frame[47]
    behind: int = (sequence + payload + bool(flags & SYN) + bool(flags & FIN)) & 0xFFFFFFFF
    return behind


def acknowledged(frame: bytes) -> int:
    """The sequence number that the sender of a TCP frame waits for."""
    number: int = struct.unpack_from("!I", frame, 42)[0]
    return number


def reset_onward(frame: bytes) -> bytes:
    """Forge the reset that the sender of a TCP frame could send behind it."""
    return _reset(frame[:12], frame[26:38], next_sequence(frame), acknowledged(frame))


def reset_back(frame: bytes) -> bytes:
    """Forge the reset that the receiver of a TCP frame could answer with."""
    flow = reverse(frame[26:38])
    return _reset(frame[6:12] + frame[:6], flow, acknowledged(frame), next_sequence(frame))


def with_bit_flipped(frame: bytes, place: float) -> bytes:
    """Flip one bit behind the Ethernet header; `place` (0 to 1) says where."""
    at = int(place * (len(frame) - ETHERNET_BYTES) * 8)
    changed = bytearray(frame)
    changed[ETHERNET_BYTES + at // 8] ^= 1 << (at % 8)
    return bytes(changed)


def checksum_is_right(frame: bytes) -> bool:
    """True if the checksums of IPv4 and of TCP are those of what the frame carries."""
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
    """The Internet checksum (RFC 1071); 0 of what has its own in it."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
