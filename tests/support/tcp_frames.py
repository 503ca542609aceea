"""Ethernet frames of TCP between nodes n0, n1, ..., made by hand for tests of the switch."""

from __future__ import annotations

import socket
import struct

from shaketable.harness.network import packet_links
from shaketable.harness.network.netns import hardware_address, node_address

ADDRESSES = {f"n{number}": socket.inet_aton(node_address(number)) for number in range(3)}
FIN, SYN, RST, ACK = packet_links.FIN, packet_links.SYN, packet_links.RST, packet_links.ACK


def hardware(node: str) -> bytes:
    return bytes.fromhex(hardware_address(int(node[1:])).replace(":", ""))


def frame(
    link: tuple[str, str],
    payload: bytes = b"",
    *,
    ports: tuple[int, int] = (4000, 10_001),
    sequence: int = 1000,
    acknowledges: int = 5000,
    flags: int = ACK,
) -> bytes:
    """A frame of link (a, b), with right checksums."""
    a, b = link
    addresses = ADDRESSES[a] + ADDRESSES[b]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 40 + len(payload), 7, 0, 64, 6, 0) + addresses
    header = header[:10] + struct.pack("!H", packet_links._sum(header)) + header[12:]
    segment = struct.pack("!HHIIBBHHH", *ports, sequence, acknowledges, 5 << 4, flags, 512, 0, 0)
    segment += payload
    checksum = packet_links._sum(packet_links._pseudo(addresses, len(segment)) + segment)
    segment = segment[:16] + struct.pack("!H", checksum) + segment[18:]
    return hardware(b) + hardware(a) + packet_links.IPV4 + header + segment


def numbers(data: bytes) -> tuple[int, int, int]:
    """(sequence, acknowledged, flags) of a frame."""
    sequence, acknowledged = struct.unpack_from("!II", data, 38)
    return sequence, acknowledged, data[47]
