"""The switch among nodes in network namespaces: a separate process between their veth pairs.

`python -m shaketable.harness.network.switch DESCRIPTOR NODE...` connects the nodes, reports that
over the socket of that descriptor, and carries frames until the other end of the socket is closed.
Requests over the socket are one JSON message each, and are answered at once. `packet_links` decides
what happens to a frame.

Source: packet(7); ADR 0020 (why not netem or NFQUEUE).
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final

from pyroute2 import IPRoute, NetlinkError

from shaketable.harness import namespaces
from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.controlled_process import MESSAGE_BYTES_MAX
from shaketable.harness.network.netns import (
    HARNESS,
    hardware_address,
    node_address,
    wire_ends,
)
from shaketable.harness.network.packet_links import PacketLinks

FRAME_BYTES_MAX: Final = 65_536
FRAMES_AT_ONCE_MAX: Final = 64
"""Frames of one port in a row, before the next port is served."""
_PACKET_STATISTICS: Final = 6
_SOL_PACKET: Final = 263


class Switch:
    """Carries frames among ports and answers requests."""

    def __init__(self, ports: Sequence[Port], control: socket.socket) -> None:
        self._ports = {port.node: port for port in ports}
        nodes = {
            port.node: socket.inet_aton(node_address(number)) for number, port in enumerate(ports)
        }
        self._links = PacketLinks(nodes)
        self._control = control
        self._sent = 0
        self._unsent = 0
        self._unread = 0
        self._tables: dict[int, tuple[Port, dict[bytes, tuple[tuple[str, str], socket.socket]]]] = {
            port.socket.fileno(): (port, self._table(port, ports)) for port in ports
        }
        self._answers: dict[str, Callable[[Json], Any]] = {
            "cut": lambda asked: self._links.cut(_links(asked)),
            "heal": lambda asked: self._links.heal(asked["name"], asked["how"], monotonic()),
            "open_cuts": lambda _: self._links.open_cuts(),
            "held": lambda asked: self._links.held(asked["name"]),
            "shape": self._shape,
            "unshape": lambda asked: self._links.unshape(asked["name"]),
            "open_shapes": lambda _: self._links.open_shapes(),
            "shaped": lambda asked: self._links.shaped(asked["name"]),
            "counts": lambda _: self.counts(),
        }

    def run(self) -> None:
        """Carry frames until the other end of the control socket is closed."""
        poll = select.epoll()
        poll.register(self._control, select.EPOLLIN)
        for number in self._tables:
            poll.register(number, select.EPOLLIN)
        while True:
            due_s = self._links.next_s()
            for number, _ in poll.poll(None if due_s is None else max(0.0, due_s - monotonic())):
                if number in self._tables:
                    self._carry(number)
                elif not self._answer():
                    return
            if due_s is not None or self._links.next_s() is not None:
                for (_, b), frame in self._links.due(monotonic()):
                    self._send(self._ports[b].socket, frame)

    def _carry(self, number: int) -> None:
        """Carry the frames that came in at one port."""
        port, table = self._tables[number]
        receive, take = port.socket.recv, self._links.take
        for _ in range(FRAMES_AT_ONCE_MAX):
            try:
                frame = receive(FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            way = table.get(frame[:6])
            if way is not None:  # the rest is IPv6 multicast
                link, sink = way
                for one in take(link, frame, monotonic()):
                    self._send(sink, one)

    def _send(self, sink: socket.socket, frame: bytes) -> None:
        try:
            sink.send(frame)
        except OSError:  # no room, or the node's namespace is being removed
            self._unsent += 1
        else:
            self._sent += 1

    def _answer(self) -> bool:
        """Answer one request; False if the control socket is closed."""
        try:
            message = self._control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            return False
        if not message:
            return False
        asked = json.loads(message)
        try:
            answer = {"answer": self._answers[asked["ask"]](asked)}
        except (KeyError, TypeError, ValueError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with suppress(OSError):
            self._control.send(json.dumps({"number": asked.get("number"), **answer}).encode())
        return True

    def _shape(self, asked: Json) -> str:
        return self._links.shape(_links(asked), LinkShape(**asked["shape"]), monotonic())

    def counts(self) -> Json:
        """Return the counts of frames sent, dropped for lack of room, and missed."""
        for port in self._ports.values():
            statistics = port.socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
            self._unread += struct.unpack("II", statistics)[1]
        return {"sent": self._sent, "unsent": self._unsent, "unread": self._unread}

    def _table(
        self, source: Port, ports: Sequence[Port]
    ) -> dict[bytes, tuple[tuple[str, str], socket.socket]]:
        """Return, for each hardware address, the link that leads to it, and its socket."""
        return {
            bytes.fromhex(hardware_address(number).replace(":", "")): (
                (source.node, port.node),
                port.socket,
            )
            for number, port in enumerate(ports)
            if port is not source
        }


def _links(asked: Json) -> list[tuple[str, str]]:
    return [(a, b) for a, b in asked["links"]]


# ---- the network namespaces of a run's nodes, and the veth pairs among them ---------------------
#
# Each node has a namespace with two interfaces: `peers`, a veth pair into the switch's namespace,
# for the traffic among nodes; and `clients`, a veth pair into the harness's namespace, which no
# fault touches. `harness.network.netns` defines their addresses. Neighbour entries are static,
# so nodes need no ARP.
#
# This process holds the namespaces by open files; they end with it and with the nodes in them.
# Frames on `peers` are segmented and have their checksums before they leave (`_without_offloads`);
# otherwise the switch would see frames of 64 KiB with unfinished checksums.
#
# Source: veth(4), packet(7), ethtool's ETHTOOL_STSO and others (linux/ethtool.h).

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


def build_fabric(nodes: Sequence[str]) -> list[Port]:
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
        namespaces.setns(home)
        with IPRoute() as harness:
            harness.addr("add", index=_index(harness, "lo"), address=HARNESS, prefixlen=32)
            spaces = [_wire(number, len(nodes), switch, harness) for number in range(len(nodes))]
        namespaces.setns(own)
        ports = [
            Port(node, space, _frames_of(f"s{number}"))
            for number, (node, space) in enumerate(zip(nodes, spaces, strict=True))
        ]
    namespaces.setns(home)
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
    namespaces.setns(here)
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
    namespaces.unshare(namespaces.CLONE_NEWNET)
    space = _namespace()
    try:
        yield space
    finally:
        os.close(space)


def main(arguments: Sequence[str]) -> int:
    """Connect the nodes, report that, and carry frames."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the harness decides when it is over
    control = socket.socket(fileno=int(arguments[0]))
    try:
        ports = build_fabric(arguments[1:])
    except (OSError, NetlinkError) as error:
        why = os.strerror(error.code) if isinstance(error, NetlinkError) else error.strerror
        control.send(json.dumps({"error": f"cannot wire the nodes: {why}"}).encode())
        return 1
    control.send(json.dumps({"answer": {port.node: port.namespace for port in ports}}).encode())
    switch = Switch(ports, control)
    switch.run()
    sys.stdout.write(f"frames: {json.dumps(switch.counts())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
