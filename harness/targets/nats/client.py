"""What clients of the target nats do: a stream for each log, a key-value bucket for registers.

The library, nats-py, is installed with the servers: it is imported when a session is opened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.harness.described.client import Node

BUCKET: Final = "registers"
SWAPS_MAX: Final = 32
"""A cas or an increment that other clients come before so often is given up: it changed nothing."""


class RefusedError(Exception):
    """Nothing was stored, and nothing will be."""


DEFINITE = (RefusedError,)


@dataclass
class Session:
    """A connection, and what was found or made by it.

    Attributes:
        connection: to one server.
        jetstream: its API.
        replicas: how many servers have each stream.
        is_direct: whether registers are read from any server that has them.
        streams: the logs whose stream exists.
        bucket: the registers, once they were asked for.
    """

    connection: Any
    jetstream: Any
    replicas: int
    is_direct: bool
    streams: set[str] = field(default_factory=set)
    bucket: Any = None


async def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect; a failure is definite."""
    import nats  # noqa: PLC0415 - it is in the target's folder

    connection = await nats.connect(
        f"nats://{node}",
        allow_reconnect=False,  # else to another server, which the history would not name
        connect_timeout=node.timeout_s,
        max_reconnect_attempts=1,  # also of the first connection: it would be tried for two minutes
        reconnect_time_wait=0.1,
        error_cb=_say_nothing,
    )
    jetstream = connection.jetstream(timeout=node.timeout_s)
    is_direct = node.options["reads"] == "direct"
    return Session(connection, jetstream, int(node.options["replicas"]), is_direct)


async def close(session: Session) -> None:
    """Close the connection."""
    await session.connection.close()


async def append(session: Session, key: str, value: int) -> int:
    """Publish a message in the log's stream; its sequence number there says the offset."""
    stream = await _stream(session, key)
    done = await _publish(session, stream, value)
    return int(done.seq) - 1


async def read_at(session: Session, key: str, offset: int) -> str | None:
    """Return the message with a sequence number, of the stream's leader."""
    from nats.js.errors import NotFoundError  # noqa: PLC0415 - as in open

    try:
        found = await session.jetstream.get_msg(_name(key), seq=offset + 1)
    except NotFoundError:
        return None
    return str(found.data.decode())


async def end(session: Session, key: str) -> int:
    """Return the last sequence number of the log's stream."""
    from nats.js.errors import NotFoundError  # noqa: PLC0415 - as in open

    try:
        return int((await session.jetstream.stream_info(_name(key))).state.last_seq)
    except NotFoundError:
        return 0


async def read(session: Session, key: str) -> str | None:
    """Read a register."""
    value, _ = await _get(session, key)
    return value


async def write(session: Session, key: str, value: int) -> None:
    """Write a register."""
    await _put(session, key, value, None)


async def cas(session: Session, key: str, expected: int | None, value: int) -> bool:
    """Write a register if it holds `expected`: read it, and write it if it is the same revision."""
    wanted = None if expected is None else str(expected)
    for _ in range(SWAPS_MAX):
        before, revision = await _get(session, key)
        if before != wanted:
            return False
        if await _put(session, key, value, revision):
            return True
    raise RefusedError(f"{SWAPS_MAX} others came before")


async def increment(session: Session, key: str, amount: int) -> None:
    """Add to a counter: read it, and write it if it is still the same revision."""
    for _ in range(SWAPS_MAX):
        before, revision = await _get(session, key)
        if await _put(session, key, int(before or 0) + amount, revision):
            return
    raise RefusedError(f"{SWAPS_MAX} others came before")


async def count(session: Session, key: str) -> str | None:
    """Return a counter's value."""
    return await read(session, key)


async def _publish(session: Session, stream: str, value: int) -> Any:
    from nats.js.errors import NoStreamResponseError  # noqa: PLC0415 - as in open

    try:
        return await session.jetstream.publish(stream, str(value).encode(), stream=stream)
    except NoStreamResponseError as error:  # no server took it: the stream has no leader
        raise RefusedError(str(error)) from error


async def _stream(session: Session, key: str) -> str:
    """Return the name of a log's stream, which is made unless it is there."""
    from nats.js.api import StreamConfig  # noqa: PLC0415 - as in open

    name = _name(key)
    if name not in session.streams:
        with _nothing_was_stored():
            made = StreamConfig(name=name, subjects=[name], num_replicas=session.replicas)
            await session.jetstream.add_stream(made)
        session.streams.add(name)
    return name


async def _bucket(session: Session) -> Any:
    """Return the bucket of the registers, which is made unless it is there."""
    from nats.js.api import KeyValueConfig  # noqa: PLC0415 - as in open

    if session.bucket is None:
        with _nothing_was_stored():
            made = KeyValueConfig(
                bucket=BUCKET, replicas=session.replicas, direct=session.is_direct
            )
            session.bucket = await session.jetstream.create_key_value(made)
    return session.bucket


async def _get(session: Session, key: str) -> tuple[str | None, int]:
    """Return a register's value and its revision; None and 0 if it has none."""
    from nats.js.errors import KeyNotFoundError  # noqa: PLC0415 - as in open

    bucket = await _bucket(session)
    try:
        with _nothing_was_stored(KeyNotFoundError):
            found = await bucket.get(key)
    except KeyNotFoundError:
        return None, 0
    return found.value.decode(), int(found.revision)


async def _put(session: Session, key: str, value: int, revision: int | None) -> bool:
    """Write a register, or only if it has a revision; return whether it was written."""
    from nats.js.errors import KeyWrongLastSequenceError, NoStreamResponseError  # noqa: PLC0415

    bucket, data = await _bucket(session), str(value).encode()
    try:
        if revision is None:
            await bucket.put(key, data)
        else:
            await bucket.update(key, data, last=revision)
    except KeyWrongLastSequenceError:
        return False
    except NoStreamResponseError as error:
        raise RefusedError(str(error)) from error
    return True


@contextlib.contextmanager
def _nothing_was_stored(*passed: type[Exception]) -> Iterator[None]:
    """Around what comes before a write: its errors are definite."""
    try:
        yield
    except passed:
        raise
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error


async def _say_nothing(error: Exception) -> None:
    """Errors of a connection are those of its operations as well."""


def _name(key: str) -> str:
    return key.replace("/", "-")
