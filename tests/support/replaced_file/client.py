"""What clients of the store do."""

from __future__ import annotations

import socket
from typing import BinaryIO

from shaketable.harness.described.client import Node


def open(node: Node) -> BinaryIO:  # noqa: A001 - the name of the operation
    """Connect."""
    connection = socket.create_connection((node.host, node.port), node.timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    file: BinaryIO = connection.makefile("rwb", buffering=0)
    connection.close()  # the file keeps it
    return file


def close(session: BinaryIO) -> None:
    """Disconnect."""
    session.close()


def read(session: BinaryIO, key: str) -> str | None:
    """Read a register."""
    answer = _ask(session, f"read {key}")
    return None if answer == "none" else answer


def write(session: BinaryIO, key: str, value: int) -> None:
    """Write a register."""
    _ask(session, f"write {key} {value}")


def _ask(session: BinaryIO, request: str) -> str:
    session.write(f"{request}\n".encode())
    answer = session.readline().decode()
    if not answer.endswith("\n"):
        raise ConnectionError("the server has gone")
    return answer.strip()
