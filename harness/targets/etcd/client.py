"""What clients of the target etcd do, in JSON with etcd's gateway of gRPC."""

from __future__ import annotations

import contextlib
import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from shaketable.harness.described.client import Node

REFUSALS: Final = ("etcdserver: no leader", "etcdserver: too many requests")
"""What a server says before it proposes a write; after any other error it may take effect."""
ATTEMPTS_MAX: Final = 32
"""An increment or transaction that others come before so often is given up: it changed nothing."""


T = TypeVar("T")


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
    for _ in range(ATTEMPTS_MAX):
        with _nothing_written():
            found = _range(session, key=_text(key))
        before = int(_value(found[0])) if found else 0
        revision = found[0]["mod_revision"] if found else "0"
        same = {"target": "MOD", "mod_revision": revision}
        if _put_if(session, key, same, before + amount):
            return
    raise RefusedError(f"{ATTEMPTS_MAX} others came before")


def count(session: Session, key: str) -> str | None:
    """Return a counter's value."""
    return read(session, key)


def transact(session: Session, steps: list[list[Any]]) -> list[list[Any]]:
    """Do the steps of a transaction. A list is its elements as text."""

    def do(found: Mapping[str, str | None]) -> tuple[dict[str, str], list[list[Any]]]:
        lists = {key: (text or "").split() for key, text in found.items()}
        done: list[list[Any]] = []
        for f, key, value in steps:
            if f == "append":
                lists[key].append(str(value))
            done.append([f, key, list(lists[key]) if f == "r" else value])
        return {key: " ".join(lists[key]) for f, key, _ in steps if f == "append"}, done

    return _transaction(session, [key for _, key, _ in steps], do)


def transact_registers(session: Session, steps: list[list[Any]]) -> list[list[Any]]:
    """Do the steps of a transaction over registers."""

    def do(found: Mapping[str, str | None]) -> tuple[dict[str, str], list[list[Any]]]:
        values, written = dict(found), dict[str, str]()
        done: list[list[Any]] = []
        for f, key, value in steps:
            if f == "w":
                values[key] = written[key] = str(value)
            done.append([f, key, values[key] if f == "r" else value])
        return written, done

    return _transaction(session, [key for _, key, _ in steps], do)


def transfer(session: Session, source: str, destination: str, amount: int, opening: int) -> bool:
    """Move an amount between accounts, if the first has as much."""

    def do(found: Mapping[str, str | None]) -> tuple[dict[str, str], bool]:
        left = _balance(found[source], opening) - amount
        if left < 0:
            return {}, False
        more = _balance(found[destination], opening) + amount
        return {source: str(left), destination: str(more)}, True

    return _transaction(session, [source, destination], do)


def balances(session: Session, accounts: list[str], opening: int) -> list[int]:
    """Return the balances of accounts, all of one revision."""
    return _transaction(
        session, accounts, lambda found: ({}, [_balance(found[each], opening) for each in accounts])
    )


def _balance(found: str | None, opening: int) -> int:
    return opening if found is None else int(found)


def _transaction(
    session: Session,
    keys: Iterable[str],
    do: Callable[[Mapping[str, str | None]], tuple[dict[str, str], T]],
) -> T:
    """Read all keys, and write what `do` makes of them if none has changed, as etcd's STM does.

    All that is read is of one revision. `do` returns what to write, and the result.
    """
    names = list(dict.fromkeys(keys))
    ranges = [
        {"request_range": {"key": _text(name), "serializable": session.is_serializable}}
        for name in names
    ]
    for _ in range(ATTEMPTS_MAX):
        with _nothing_written():
            said = _ask(session, "txn", success=ranges).get("responses", [])
        found = [each["response_range"].get("kvs", []) for each in said]
        values = {
            name: _value(kvs[0]) if kvs else None for name, kvs in zip(names, found, strict=True)
        }
        written, result = do(values)
        revisions = [kvs[0]["mod_revision"] if kvs else "0" for kvs in found]
        same = [
            {"key": _text(name), "target": "MOD", "mod_revision": revision}
            for name, revision in zip(names, revisions, strict=True)
        ]
        puts = [
            {"request_put": {"key": _text(name), "value": _text(value)}}
            for name, value in written.items()
        ]
        if not puts or "succeeded" in _ask(session, "txn", compare=same, success=puts):
            return result
    raise RefusedError(f"{ATTEMPTS_MAX} others came before")


@contextlib.contextmanager
def _nothing_written() -> Iterator[None]:
    """Around a read that comes before a write: its errors are definite."""
    try:
        yield
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error


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
