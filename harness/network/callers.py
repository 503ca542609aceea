"""Which node called: the other end of a connection on this machine, by the kernel's own tables.

For nodes that must all know a peer by one address: then the address does not say who calls, and
the process that holds the other end does.

Source: proc(5), /proc/net/tcp and /proc/PID/fd.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROC = Path("/proc")
INODE_FIELD = 9
"""Of a line of /proc/net/tcp."""


class Callers:
    """Tells nodes by the connections that they hold.

    `pids` says which process each running node has. It leads a session of its own: what it starts
    counts as the node, too.
    """

    def __init__(self) -> None:
        self.pids: Callable[[], Mapping[str, int]] = dict

    def who(self, accepted: socket.socket) -> str | None:
        """Return the node at the other end of an IPv4 connection; None if it is none of them."""
        here, there = accepted.getsockname(), accepted.getpeername()
        inode = _inode(_hex(there), _hex(here))
        if inode is None:  # it has gone again
            return None
        node_of = {pid: node for node, pid in self.pids().items()}
        wanted = f"socket:[{inode}]"
        for pid in _processes():
            node = node_of.get(_session(pid))
            if node is not None and wanted in _open_files(pid):
                return node
        return None


def _hex(address: tuple[str, int]) -> str:
    """Write an address as /proc/net/tcp does: "0100007F:1F90"."""
    return f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"


def _inode(local: str, remote: str) -> str | None:
    """The inode of the socket with these ends."""
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1] == local and fields[2] == remote:
            return fields[INODE_FIELD]
    return None


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
