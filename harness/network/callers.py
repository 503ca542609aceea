"""Find the node at the other end of a local connection, by the kernel's tables.

For nodes that must all know a peer by one address: the address does not identify the caller, so the
process that holds the other end does.

Source: sock_diag(7) for a single socket; /proc/net/tcp where the kernel lacks it (it lists all
sockets, which takes a thousand times as long); proc(5), /proc/PID/fd.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROC = Path("/proc")
INODE_FIELD = 9
"""The field of a line of /proc/net/tcp."""
NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST = 1
ANY = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ASKED = struct.Struct("=BBBxI")  # inet_diag_req_v2: family, protocol, extensions, states
_SOCKET = struct.Struct("!HH4s12x4s12x")  # inet_diag_sockid: ports and addresses
_REST = struct.Struct("=I2I")  # and its interface and cookie
_INODE = struct.Struct("=I")
_INODE_AT = _HEADER.size + 4 + _SOCKET.size + _REST.size + 16  # in an inet_diag_msg
DIAG_TIMEOUT_S = 0.5
"""The kernel answers at once, or not at all."""

Endpoint = tuple[str, int]


class Callers:
    """Identifies nodes by the connections that they hold.

    `pids` returns the process of each running node. It leads its own session, and its child
    processes count as the node too.
    """

    def __init__(self) -> None:
        self.pids: Callable[[], Mapping[str, int]] = dict

    def who(self, accepted: socket.socket) -> str | None:
        """Return the node at the other end of an IPv4 connection; None if it is not a node.

        Also None if that end is closed already, or the lookup fails: the caller then connects
        again.
        """
        try:
            return self._who(accepted)
        except OSError:
            return None

    def _who(self, accepted: socket.socket) -> str | None:
        here, there = accepted.getsockname(), accepted.getpeername()
        inode = _inode_from_netlink(there, here) or _inode_from_proc(there, here)
        if inode is None:  # it is closed already
            return None
        node_of = {pid: node for node, pid in self.pids().items()}
        wanted = f"socket:[{inode}]"
        for pid in _processes():
            node = node_of.get(_session(pid))
            if node is not None and wanted in _open_files(pid):
                return node
        return None


def _inode_from_netlink(local: Endpoint, remote: Endpoint) -> int | None:
    """Ask the kernel for the inode of the socket with these ends; None if there is none."""
    places = (local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0]))
    question = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, ANY)
    question += _SOCKET.pack(*places) + _REST.pack(0, ANY, ANY)
    size = _HEADER.size + len(question)
    header = _HEADER.pack(size, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(DIAG_TIMEOUT_S)
            kernel.send(header + question)
            answer = kernel.recv(4096)
    except OSError:
        return None
    if _HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    inode: int = _INODE.unpack_from(answer, _INODE_AT)[0]
    return inode or None


def _inode_from_proc(local: Endpoint, remote: Endpoint) -> int | None:
    """Find the inode in the list of all sockets."""
    wanted = [_hex(local), _hex(remote)]
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1:3] == wanted:
            return int(fields[INODE_FIELD]) or None
    return None


def _hex(place: Endpoint) -> str:
    """Format an address as /proc/net/tcp does: "0100007F:1F90"."""
    return f"{int.from_bytes(socket.inet_aton(place[0]), sys.byteorder):08X}:{place[1]:04X}"


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit())  # noqa: PTH208 - by name


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _open_files(pid: int) -> Iterator[str]:
    folder = PROC / str(pid) / "fd"
    try:
        names = os.listdir(folder)  # noqa: PTH208 - by name
    except OSError:
        return
    for name in names:
        try:
            yield str((folder / name).readlink())
        except OSError:  # closed meanwhile
            continue
