"""Break TCP connections of this process: what a firewall or NAT that forgets them does to clients.

It works for every target: a client library's own sockets are found among the open files of its
process, and shut down in both directions. The node sees the connection close, with or without the
end of a request; the client sees it end. Source: shutdown(2), proc_pid_fd(5).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Final

from shaketable.harness.contracts.plugins import Address

OPEN_FILES: Final = Path("/proc/self/fd")
TCP: Final = (socket.AF_INET, socket.AF_INET6)


def break_connections(to: Iterable[Address]) -> int:
    """Shut down this process's TCP connections to these addresses; return how many there were."""
    ends = {end for address in to for end in _resolved(address)}
    count = 0
    for connection in _sockets():
        with connection, suppress(OSError):  # not connected, or its other end is gone already
            if connection.family in TCP and connection.type == socket.SOCK_STREAM:
                host, port = connection.getpeername()[:2]
                if (_plain(host), port) in ends:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of each open socket of this process."""
    for file in sorted(OPEN_FILES.iterdir()):
        with suppress(OSError):  # closed meanwhile, by another thread; or the listing's own
            if file.is_socket():
                yield socket.socket(fileno=os.dup(int(file.name)))


@cache
def _resolved(address: Address) -> frozenset[tuple[str, int]]:
    """Return the numeric ends of an address; none if its name has none."""
    with suppress(OSError):
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        return frozenset((_plain(str(end[0])), int(end[1])) for *_, end in found)
    return frozenset()


def _plain(host: str) -> str:
    """Return a numeric host as IPv4, if it is one mapped to IPv6."""
    ip = ip_address(host.partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return str(mapped or ip)
