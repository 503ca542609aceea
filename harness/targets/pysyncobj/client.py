"""What clients of the target pysyncobj do: each operation is a request to its server."""

from __future__ import annotations

import http.client
import json
from typing import Any, Final

from shaketable.harness.described.client import Node

BEFORE_THE_LOG: Final = ("MISSING_LEADER", "QUEUE_FULL")
"""Reasons that PySyncObj gives before a command is in any log; others may come after."""


class RefusedError(Exception):
    """The command was not put into the log, and never will be."""


DEFINITE = (RefusedError,)


def open(node: Node) -> http.client.HTTPConnection:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    connection = http.client.HTTPConnection(node.host, node.port, timeout=node.timeout_s)
    connection.connect()
    return connection


def close(session: http.client.HTTPConnection) -> None:
    """Close the connection."""
    session.close()


def read(session: http.client.HTTPConnection, key: str) -> Any:
    """Read a register."""
    return _ask(session, "read", key)


def write(session: http.client.HTTPConnection, key: str, value: int) -> None:
    """Write a register."""
    _ask(session, "write", key, value)


def cas(session: http.client.HTTPConnection, key: str, expected: int | None, value: int) -> Any:
    """Write a register if it holds `expected`."""
    return _ask(session, "cas", key, expected, value)


def append(session: http.client.HTTPConnection, key: str, value: int) -> Any:
    """Append to a log."""
    return _ask(session, "append", key, value)


def read_at(session: http.client.HTTPConnection, key: str, offset: int) -> Any:
    """Read a log's value at an offset."""
    return _ask(session, "read_at", key, offset)


def end(session: http.client.HTTPConnection, key: str) -> Any:
    """Return a log's end."""
    return _ask(session, "end", key)


def add(session: http.client.HTTPConnection, key: str, value: int) -> None:
    """Add to a set."""
    _ask(session, "add", key, value)


def elements(session: http.client.HTTPConnection, key: str) -> Any:
    """Return a set's elements."""
    return _ask(session, "elements", key)


def increment(session: http.client.HTTPConnection, key: str, amount: int) -> None:
    """Add to a counter."""
    _ask(session, "increment", key, amount)


def count(session: http.client.HTTPConnection, key: str) -> Any:
    """Return a counter's value."""
    return _ask(session, "count", key)


def _ask(session: http.client.HTTPConnection, method: str, *arguments: object) -> Any:
    session.request("POST", f"/{method}", json.dumps(arguments))
    answer = session.getresponse()
    said = json.loads(answer.read())
    if answer.status == http.client.OK:
        return said
    if said in BEFORE_THE_LOG:
        raise RefusedError(said)
    raise RuntimeError(said)
