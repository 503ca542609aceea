"""The network namespaces of a run's nodes, and the veth pairs among them.

Each node has a namespace with two interfaces: `peers`, a veth pair into the switch's namespace, for
the traffic among nodes; and `clients`, a veth pair into the harness's namespace, which no fault
touches. `addresses` defines their addresses. Neighbour entries are static, so nodes need no ARP.

This process holds the namespaces by open files; they end with it and with the nodes in them. Frames
on `peers` are segmented and have their checksums before they leave (`_without_offloads`); otherwise
the switch would see frames of 64 KiB with unfinished checksums.

Source: veth(4), packet(7), ethtool's ETHTOOL_STSO and others (linux/ethtool.h).
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyroute2 import IPRoute

from shaketable.harness.network import enter
from shaketable.harness.network.addresses import (
    HARNESS,
    hardware_address,
    node_address,
    wire_ends,
)

NODES_MAX: Final = 200
MTU_BYTES: Final = 1500
RECEIVE_BUFFER_BYTES: Final = 8 << 20
"""Room for frames that wait for the switch."""
_ETH_P_ALL: Final = 3
_PACKET_IGNORE_OUTGOING: Final = 23
_SO_RCVBUFFORCE: Final = 33
_SIOCETHTOOL: Final = 0x8946
_OFFLOADS: Final = (0x17, 0x19, 0x1F, 0x24, 0x2C)  # tx checksums, scatter-gather, TSO, GSO, GRO
_PERMANENT: Final = 0x80


@dataclass(frozen=True, slots=True)
class Port:
    """A node's port at the switch: its namespace (an open file), and a packet socket."""

    node: str
    namespace: int
    socket: socket.socket


def build(nodes: Sequence[str]) -> list[Port]:
    """Make and connect the namespaces of these nodes, from within the harness's namespace.

    This process is back in it afterwards. A failure leaves nothing: all of it ends with this
    process.

    Raises:
        OSError: the kernel refuses.
        pyroute2.NetlinkError: likewise.
    """
    assert len(nodes) <= NODES_MAX
    home = _namespace()
    with _in_new() as own, IPRoute() as switch:
        enter.setns(home)
        with IPRoute() as harness:
            harness.addr("add", index=_index(harness, "lo"), address=HARNESS, prefixlen=32)
            spaces = [_wire(number, len(nodes), switch, harness) for number in range(len(nodes))]
        enter.setns(own)
        ports = [
            Port(node, space, _frames_of(f"s{number}"))
            for number, (node, space) in enumerate(zip(nodes, spaces, strict=True))
        ]
    enter.setns(home)
    os.close(home)
    return ports


def _wire(number: int, count: int, switch: IPRoute, harness: IPRoute) -> int:
    """Make one node's namespace and both its veth pairs; return the namespace's open file."""
    here = _namespace()
    with _in_new() as space, IPRoute() as node:
        node.link("set", index=_index(node, "lo"), state="up")
        _pair(switch, f"s{number}", "peers", space, hardware_address(number))
        _pair(harness, f"c{number}", "clients", space)
        _without_offloads("peers")
        peers, clients = _index(node, "peers"), _index(node, "clients")
        ours, theirs = wire_ends(number)
        node.addr("add", index=peers, address=node_address(number), prefixlen=24)
        node.addr("add", index=clients, address=theirs, prefixlen=24)
        for index in (peers, clients):
            node.link("set", index=index, state="up")
        for other in range(count):
            if other != number:
                node.neigh(
                    "add",
                    dst=node_address(other),
                    lladdr=hardware_address(other),
                    ifindex=peers,
                    state=_PERMANENT,
                )
        harness.addr("add", index=_index(harness, f"c{number}"), address=ours, prefixlen=24)
        harness.route("add", dst=f"{node_address(number)}/32", gateway=theirs)
        node.route("add", dst="default", gateway=ours)
        kept = os.dup(space)
    enter.setns(here)
    os.close(here)
    return kept


def _pair(at: IPRoute, name: str, peer: str, space: int, hardware: str | None = None) -> None:
    """Make a veth pair between a namespace and another one, given by its open file."""
    far: dict[str, object] = {"ifname": peer, "net_ns_fd": f"/proc/self/fd/{space}"}
    if hardware is not None:
        far["address"] = hardware
    at.link("add", ifname=name, kind="veth", mtu=MTU_BYTES, peer=far)
    at.link("set", index=_index(at, name), state="up")


def _frames_of(interface: str) -> socket.socket:
    """Open a packet socket for all frames that come in at an interface of this namespace."""
    _without_offloads(interface)
    frames = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    frames.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    try:
        frames.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
    except PermissionError:
        frames.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
    frames.bind((interface, _ETH_P_ALL))
    frames.setblocking(False)
    return frames


_SOL_PACKET: Final = 263


def _without_offloads(interface: str) -> None:
    """Turn off offloads of an interface, so that it sends whole frames with checksums."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for offload in _OFFLOADS:
            value = array.array("I", [offload, 0])
            request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def _index(at: IPRoute, name: str) -> int:
    index: int = at.link_lookup(ifname=name)[0]
    return index


def _namespace() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _in_new() -> Iterator[int]:
    """Enter a new namespace within the body of `with`; yield its open file."""
    enter.unshare(enter.CLONE_NEWNET)
    space = _namespace()
    try:
        yield space
    finally:
        os.close(space)
