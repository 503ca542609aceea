"""The switch among nodes in network namespaces: a separate process between their veth pairs.

`python -m shaketable.harness.network.switch DESCRIPTOR NODE...` connects the nodes (`fabric`),
reports that over the socket of that descriptor, and carries frames until the other end of the
socket is closed. Requests over the socket are one JSON message each, and are answered at once.
`packet_links` decides what happens to a frame.

Source: packet(7); ADR 0020 (why not netem or NFQUEUE).
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from pyroute2 import NetlinkError

from shaketable.harness.contracts.capabilities import LinkShape
from shaketable.harness.contracts.plugins import Json
from shaketable.harness.network import addresses, fabric
from shaketable.harness.network.fabric import Port
from shaketable.harness.network.packet_links import PacketLinks

MESSAGE_BYTES_MAX: Final = 64 * 1024
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
            port.node: socket.inet_aton(addresses.node_address(number))
            for number, port in enumerate(ports)
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
            "mend": lambda asked: self._links.heal(asked["name"], asked["how"], monotonic()),
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
            bytes.fromhex(addresses.hardware_address(number).replace(":", "")): (
                (source.node, port.node),
                port.socket,
            )
            for number, port in enumerate(ports)
            if port is not source
        }


def _links(asked: Json) -> list[tuple[str, str]]:
    return [(a, b) for a, b in asked["links"]]


def main(arguments: Sequence[str]) -> int:
    """Connect the nodes, report that, and carry frames."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the harness decides when it is over
    control = socket.socket(fileno=int(arguments[0]))
    try:
        ports = fabric.build(arguments[1:])
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
