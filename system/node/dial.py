"""Connections that a node opens: to its peers, its master, its name servers."""

from __future__ import annotations

import errno
import socket
import struct

import trio

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which nothing of a closed connection waits in TIME_WAIT."""


async def dial(host: str, port: int) -> trio.SocketStream:
    """Connect to another process.

    While nobody listens at a port of the range that outgoing connections get theirs from, TCP may
    connect a socket to itself there (a simultaneous open of one side), and he whose port it is
    could not listen any more: such a connection is closed at once.

    Raises:
        OSError: no connection; ConnectionRefusedError for one to itself.
    """
    stream = await trio.open_tcp_stream(host, port)
    sock = stream.socket
    try:
        is_itself = sock.getsockname() == sock.getpeername()
    except OSError:  # reset already
        await trio.aclose_forcefully(stream)
        raise
    if is_itself:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        await trio.aclose_forcefully(stream)
        raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {host}:{port}")
    return stream
