"""Loopback ports for nodes: free ones found by binding, or a range that the campaign names.

Free ports are taken from below the kernel's ephemeral range. A port in that range may become the
source port of another connection while its node is down, and then the node could not come back.

The ports of `find_free` stay reserved: a bound socket that does not listen keeps the port from
every other caller of `find_free`, in this process and in others, while a server, which sets
SO_REUSEADDR before it binds, may listen on it. Without that, two concurrent runs may choose the
same port.
"""

from __future__ import annotations

import atexit
import errno
import socket
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from random import SystemRandom

from shaketable.harness.contracts.errors import HarnessError

HOST = "127.0.0.1"
PORT_MIN = 10_000
PORT_MAX = 65_535
EPHEMERAL_DEFAULT = 32_768
TRIES_MAX = 2_000
RESERVED_MAX = 512
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")

# The newest reservations; the oldest are dropped as newer ones come, and all end with this process.
_reserved: deque[socket.socket] = deque()


def is_free(port: int) -> bool:
    """True if a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def find_free(count: int) -> list[int]:
    """Return `count` different free ports, reserved for this process.

    Raises:
        HarnessError: there are not that many.
    """
    drawn = SystemRandom()  # not from the seed: two concurrent runs must not want the same ports
    limit = _ephemeral_min()
    found: list[int] = []
    for _ in range(TRIES_MAX):
        if len(found) == count:
            return found
        port = drawn.randrange(PORT_MIN, limit)
        if _reserve(port):
            found.append(port)
    raise HarnessError(
        f"ports: found {len(found)} of {count} free ports between {PORT_MIN} and {limit};"
        " end what holds them"
    )


def take_from(base_port: int, owners: Iterable[str]) -> list[int]:
    """Return the ports base_port, base_port + 1, ... for `owners`, all of them free.

    Raises:
        HarnessError: one is in use or no port number; the message names it and its owner.
    """
    ports = []
    for port, owner in enumerate(owners, base_port):
        if not 0 < port <= PORT_MAX:
            raise HarnessError(f"ports: {port} for {owner} is no port; choose a lower base_port")
        if not is_free(port):
            raise HarnessError(in_use(port, owner))
        ports.append(port)
    return ports


def in_use(port: int, owner: str) -> str:
    """Return a one-line error: another program has this port, and what to do."""
    return (
        f"port {port} for {owner} is in use by another process; end that process"
        f" (ss -ltnp 'sport = :{port}' shows it) or choose other ports (base_port)"
    )


def _reserve(port: int) -> bool:
    """Bind a port that no socket has bound; False if one has."""
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR the kernel refuses a port that another socket holds or listens on; if
        # it is set afterwards, a server may listen beside this socket, which never listens.
        holder.bind((HOST, port))
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        holder.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise
    _reserved.append(holder)
    while len(_reserved) > RESERVED_MAX:
        _reserved.popleft().close()
    return True


@atexit.register
def _release() -> None:
    while _reserved:
        _reserved.popleft().close()


def _ephemeral_min() -> int:
    try:
        low = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return EPHEMERAL_DEFAULT
    return low if low > PORT_MIN + TRIES_MAX else PORT_MAX
