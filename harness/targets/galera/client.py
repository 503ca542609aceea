"""What clients of the target galera do: a row for each key, and transactions.

A session is a connection to one node. The library, PyMySQL, is installed with the servers: it is
imported when a session is opened.

What errors mean (MariaDB's error codes; Galera's certification):

- A statement that fails with one of REFUSALS changed nothing: a deadlock (1213) is also what
  certification answers to the transaction that comes second.
- Before COMMIT is sent a transaction has changed nothing, and never will: the server rolls it back
  if the connection ends.
- After that, any other error is indefinite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from shaketable.harness.described.client import Node

NOT_READY: Final = 1047
"""WSREP has not yet prepared the node for application use: it is in no primary component."""
DEADLOCK: Final = 1213
LOCK_WAIT_TIMEOUT: Final = 1205
CHANGED_SINCE_READ: Final = 1020
"""Of innodb_snapshot_isolation: the row has changed since the transaction's snapshot."""
REFUSALS: Final = (NOT_READY, DEADLOCK, LOCK_WAIT_TIMEOUT, CHANGED_SINCE_READ)


class RefusedError(Exception):
    """The statement or transaction changed nothing, and never will."""


DEFINITE = (RefusedError,)


SELECTS: Final = {
    "plain": (
        "SELECT elements FROM lists WHERE name = %s",
        "SELECT value FROM registers WHERE name = %s",
    ),
    "for-update": (
        "SELECT elements FROM lists WHERE name = %s FOR UPDATE",
        "SELECT value FROM registers WHERE name = %s FOR UPDATE",
    ),
}
"""How transactions read lists and registers, by the option `reads`."""


class Session:
    """A connection, and how transactions read on it."""

    def __init__(self, connection: Any, select_list: str, select_value: str) -> None:
        self.connection = connection
        self.select_list = select_list
        self.select_value = select_value

    def ask(self, statement: str, *values: object) -> tuple[int, list[tuple[Any, ...]]]:
        """Run a statement; return how many rows it changed, and those that it returned."""
        from pymysql.err import MySQLError  # noqa: PLC0415 - it is in the target's folder

        try:
            with self.connection.cursor() as cursor:
                return cursor.execute(statement, values), list(cursor.fetchall())
        except MySQLError as error:
            if error.args and error.args[0] in REFUSALS:
                raise RefusedError(f"{error.args[0]}: {error.args[-1]}") from error
            raise


def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    import pymysql  # noqa: PLC0415 - as in Session.ask

    limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), node.timeout_s)
    flags = pymysql.constants.CLIENT.FOUND_ROWS  # else a cas to the same value counts as none
    connection = pymysql.connect(
        host=node.host, port=node.port, user="root", database="kv", autocommit=True,
        client_flag=flags, ssl_disabled=True,  # a context for TLS takes 50 ms of a core to make
        **limits,
    )  # fmt: skip
    session = Session(connection, *SELECTS[node.options["reads"]])
    try:
        session.ask(f"SET SESSION TRANSACTION ISOLATION LEVEL {node.options['isolation']}")
        session.ask(f"SET SESSION wsrep_sync_wait = {int(node.options['sync_wait'])}")
    except BaseException:
        connection.close()
        raise
    return session


def close(session: Session) -> None:
    """Close the connection."""
    session.connection.close()


def read(session: Session, key: str) -> int | None:
    """Read a register."""
    _, rows = session.ask("SELECT value FROM registers WHERE name = %s", key)
    return rows[0][0] if rows else None


def write(session: Session, key: str, value: int) -> None:
    """Write a register."""
    session.ask(
        "INSERT INTO registers VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)",
        key, value,
    )  # fmt: skip


def cas(session: Session, key: str, expected: int | None, value: int) -> bool:
    """Write a register if it holds `expected` (None: if it has no value)."""
    if expected is None:
        return session.ask("INSERT IGNORE INTO registers VALUES (%s, %s)", key, value)[0] == 1
    update = "UPDATE registers SET value = %s WHERE name = %s AND value = %s"
    return session.ask(update, value, key, expected)[0] == 1


def add(session: Session, key: str, value: int) -> None:
    """Add to a set: each element is a row."""
    session.ask("INSERT INTO sets VALUES (%s, %s)", key, value)


def elements(session: Session, key: str) -> list[int]:
    """Return a set's elements."""
    return [row[0] for row in session.ask("SELECT value FROM sets WHERE name = %s", key)[1]]


def increment(session: Session, key: str, amount: int) -> None:
    """Add to a counter."""
    session.ask(
        "INSERT INTO counters VALUES (%s, %s)"
        " ON DUPLICATE KEY UPDATE value = value + VALUES(value)",
        key, amount,
    )  # fmt: skip


def count(session: Session, key: str) -> int | None:
    """Return a counter's value."""
    _, rows = session.ask("SELECT value FROM counters WHERE name = %s", key)
    return rows[0][0] if rows else None


def transact(session: Session, steps: list[list[Any]]) -> list[list[Any]]:
    """Do the steps of a transaction; a list is its elements as text."""
    with _transaction(session):
        return [[f, key, _stepped(session, f, key, value)] for f, key, value in steps]


def _stepped(session: Session, f: str, key: str, value: int | None) -> Any:
    """Do a step; return what it read, or appended."""
    if f == "r":
        _, rows = session.ask(session.select_list, key)
        return rows[0][0].split() if rows else []
    session.ask(
        "INSERT INTO lists VALUES (%s, %s)"
        " ON DUPLICATE KEY UPDATE elements = CONCAT(elements, ' ', VALUES(elements))",
        key, value,
    )  # fmt: skip
    return value


def transact_registers(session: Session, steps: list[list[Any]]) -> list[list[Any]]:
    """Do the steps of a transaction over registers."""
    done = []
    with _transaction(session):
        for f, key, value in steps:
            if f == "w":
                write(session, key, value)
            done.append([f, key, value if f == "w" else _number(session, key)])
    return done


def transfer(session: Session, source: str, destination: str, amount: int, opening: int) -> bool:
    """Move an amount between accounts: read both balances, and write them."""
    with _transaction(session):
        changed = {
            account: _balance(session, account, opening) + change
            for account, change in ((source, -amount), (destination, amount))
        }
        if changed[source] >= 0:
            for account, balance in changed.items():
                write(session, account, balance)
    return changed[source] >= 0


def balances(session: Session, accounts: list[str], opening: int) -> list[int]:
    """Return the balances of accounts, read in one transaction."""
    with _transaction(session):
        return [_balance(session, account, opening) for account in accounts]


def _balance(session: Session, account: str, opening: int) -> int:
    found = _number(session, account)
    return opening if found is None else found


def _number(session: Session, key: str) -> int | None:
    """Read a register within a transaction."""
    _, rows = session.ask(session.select_value, key)
    return rows[0][0] if rows else None


@contextlib.contextmanager
def _transaction(session: Session) -> Iterator[None]:
    """Around the statements of a transaction: it is committed at the end."""
    with _nothing_committed():
        session.ask("START TRANSACTION")
        yield
    session.ask("COMMIT")


@contextlib.contextmanager
def _nothing_committed() -> Iterator[None]:
    """Around what comes before a COMMIT: its errors are definite."""
    try:
        yield
    except RefusedError:
        raise
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error
