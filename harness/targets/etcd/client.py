"""What clients of the target etcd do, in JSON with etcd's gateway of gRPC."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode, b64encode
from typing import Any, Final, NamedTuple

from shaketable.harness.described.client import Node

REFUSALS: Final = ("etcdserver: no leader", "etcdserver: too many requests")
"""What a server says before it proposes a write; after any other error it may take effect."""
INCREMENTS_MAX: Final = 32
"""An increment that other clients come before so often is given up: it has changed nothing."""


class RefusedError(Exception):
    """The write was not proposed, and never will be."""


DEFINITE = (RefusedError,)


class Session(NamedTuple):
    """A connection, and whether reads on it are serializable."""

    connection: http.client.HTTPConnection
    is_serializable: bool


def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    connection = http.client.HTTPConnection(node.host, node.port, timeout=node.timeout_s)
    connection.connect()
    return Session(connection, node.options["reads"] == "serializable")


def close(session: Session) -> None:
    """Close the connection."""
    session.connection.close()


def read(session: Session, key: str) -> str | None:
    """Read a register."""
    found = _range(session, key=_text(key))
    return _value(found[0]) if found else None


def write(session: Session, key: str, value: int) -> None:
    """Write a register."""
    _ask(session, "put", key=_text(key), value=_text(value))


def cas(session: Session, key: str, expected: int | None, value: int) -> bool:
    """Write a register, in a transaction, if it holds `expected` (None: if it has no value)."""
    absent = {"target": "VERSION", "version": "0"}
    holds = absent if expected is None else {"target": "VALUE", "value": _text(expected)}
    return _put_if(session, key, holds, value)


def add(session: Session, key: str, value: int) -> None:
    """Add to a set: each element is a key."""
    _ask(session, "put", key=_text(f"{key}/{value}"), value=_text(value))


def elements(session: Session, key: str) -> list[str]:
    """Return a set's elements: all keys with its prefix."""
    found = _range(session, key=_text(f"{key}/"), range_end=_text(f"{key}0"))  # 0 comes after /
    return [_value(each) for each in found]


def increment(session: Session, key: str, amount: int) -> None:
    """Add to a counter: read it, and write it if it is still the same revision."""
    for _ in range(INCREMENTS_MAX):
        found = _range(session, key=_text(key))
        before = int(_value(found[0])) if found else 0
        revision = found[0]["mod_revision"] if found else "0"
        same = {"target": "MOD", "mod_revision": revision}
        if _put_if(session, key, same, before + amount):
            return
    raise RefusedError(f"{INCREMENTS_MAX} others came before")


def count(session: Session, key: str) -> str | None:
    """Return a counter's value."""
    return read(session, key)


def _put_if(session: Session, key: str, holds: dict[str, str], value: int) -> bool:
    put = {"request_put": {"key": _text(key), "value": _text(value)}}
    compare = [{"key": _text(key), **holds}]
    return "succeeded" in _ask(session, "txn", compare=compare, success=[put])


def _range(session: Session, **wanted: str) -> list[Any]:
    said = _ask(session, "range", serializable=session.is_serializable, **wanted)
    found: list[Any] = said.get("kvs", [])  # the gateway leaves out what is empty
    return found


def _ask(session: Session, what: str, **body: object) -> Any:
    session.connection.request("POST", f"/v3/kv/{what}", json.dumps(body))
    answer = session.connection.getresponse()
    said = json.loads(answer.read())
    if answer.status == http.client.OK:
        return said
    error = str(said.get("error", said))
    raise (RefusedError if error.endswith(REFUSALS) else RuntimeError)(error)


def _text(value: object) -> str:
    return b64encode(str(value).encode()).decode()


def _value(found: dict[str, str]) -> str:
    return b64decode(found["value"]).decode()
