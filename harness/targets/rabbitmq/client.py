"""What clients of the target rabbitmq do: a durable queue for each key, with confirms and acks.

A session is a connection to one node, with one channel. The library, pika, is installed with the
servers: it is imported when a session is opened.

What errors mean (AMQP 0-9-1; RabbitMQ's guides on publishers and on confirms):

- What fails before a message is published is definite: the connection, the channel, the queue.
- A message that the broker returns (basic.return, before its confirm) is in no queue: definite.
- A basic.nack, a channel or a connection that ends, a confirm that does not come: indefinite.
- A message counts as taken when its ack is sent. If no answer to a basic.get came, none was: what
  was on its way returns to its queue as the session ends. So that is definite.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from shaketable.harness.described.client import Node

OPEN_SHARE: Final = 0.35
DECLARE_SHARE: Final = 0.25
GET_SHARE: Final = 0.4
"""Of an operation's time, what its steps may take: they end before it does, and are definite."""
GIVEN_UP_TIMEOUT_S: Final = 15.0
"""How long a connection that is no longer waited for may take to open, and be closed."""
PERSISTENT: Final = 2
"""The delivery mode of messages that are written to disk (AMQP)."""


class RefusedError(Exception):
    """Nothing was enqueued or taken, and nothing will be."""


class NackedError(Exception):
    """The broker does not confirm a message; it may be in its queue."""


DEFINITE = (RefusedError,)


@dataclass
class Session:
    """A connection, and the one thing that is waited for on it.

    Attributes:
        node: where to, how long an operation may take, and the target's options.
        connection: to it.
        channel: its only channel.
        waiting: what the operation that runs waits for.
        declared: the queues that exist.
        is_returned: the message that was published last came back.
        is_given_up: it was closed before it was open, which pika cannot do: it closes as it opens.
    """

    node: Node
    connection: Any = None
    channel: Any = None
    waiting: asyncio.Future[Any] | None = None
    declared: set[str] = field(default_factory=set)
    is_returned: bool = False
    is_given_up: bool = False

    @property
    def confirms(self) -> bool:
        """Whether an enqueue waits for its confirm."""
        return bool(self.node.options["confirms"] == "on")

    async def asked(self, ask: Callable[[], object]) -> Any:
        """Send something and wait until `answer` or `fail` is called."""
        self.waiting = asyncio.get_running_loop().create_future()
        ask()
        return await self.waiting

    def opened(self, connection: Any) -> None:
        """Go on with an open connection; close it if no operation waits for it any more."""
        if self.is_given_up:
            connection.close()
        self.answer()

    def answer(self, given: object = None) -> None:
        """End the wait with a result."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(given)

    def fail(self, _where: object, error: BaseException) -> None:
        """End the wait with the reason for which the connection or the channel ended."""
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(error)


async def open(node: Node) -> Session:  # noqa: A001 - the name of the operation
    """Connect, and open a channel; a failure is definite."""
    from pika import ConnectionParameters, spec  # noqa: PLC0415 - it is in the target's folder
    from pika.adapters.asyncio_connection import AsyncioConnection  # noqa: PLC0415 - as well

    logging.getLogger("pika").setLevel(logging.CRITICAL)  # errors are those of the operations
    session = Session(node)
    # Without heartbeats: operations have a limit of their own.
    parameters = ConnectionParameters(
        node.host, node.port, heartbeat=0, stack_timeout=GIVEN_UP_TIMEOUT_S
    )

    def connect() -> None:
        session.connection = AsyncioConnection(
            parameters, session.opened, session.fail, session.fail
        )

    try:
        async with asyncio.timeout(node.timeout_s * OPEN_SHARE):
            await session.asked(connect)
            session.channel = await session.asked(
                lambda: session.connection.channel(on_open_callback=session.answer)
            )
            channel = session.channel
            channel.add_on_close_callback(session.fail)
            channel.add_on_return_callback(lambda *_: setattr(session, "is_returned", True))
            channel.add_callback(lambda _: session.answer(), [spec.Basic.GetEmpty], one_shot=False)
            if session.confirms:
                await session.asked(
                    lambda: channel.confirm_delivery(session.answer, _done(session))
                )
    except BaseException:
        await close(session)
        raise
    return session


async def close(session: Session) -> None:
    """Close the connection; the node may never answer that."""
    session.is_given_up = True
    if session.connection is not None and session.connection.is_open:
        session.connection.close()


async def enqueue(session: Session, key: str, value: int) -> None:
    """Publish a message to the queue; it is there when the broker has confirmed it."""
    from pika import BasicProperties  # noqa: PLC0415 - as in open

    await _declare(session, key)
    session.is_returned = False
    properties = BasicProperties(delivery_mode=PERSISTENT)

    def publish() -> None:
        session.channel.basic_publish("", key, str(value).encode(), properties, mandatory=True)

    if not session.confirms:
        publish()
        return
    said = await session.asked(publish)
    if said.method.NAME == "Basic.Nack":
        raise NackedError("the broker does not confirm the message (basic.nack)")
    if session.is_returned:
        raise RefusedError("the broker returned the message: it is in no queue")


async def dequeue(session: Session, key: str) -> str | None:
    """Get a message, and acknowledge it: it is taken as soon as that is sent."""
    await _declare(session, key)
    with _nothing_happened():
        async with asyncio.timeout(session.node.timeout_s * GET_SHARE):
            got = await session.asked(
                lambda: session.channel.basic_get(key, lambda *given: session.answer(given))
            )
    if got is None:
        return None
    _, method, _, body = got
    session.channel.basic_ack(method.delivery_tag)
    return str(body.decode())


async def _declare(session: Session, key: str) -> None:
    """Declare a queue, unless this session has done it; a failure is definite."""
    if key in session.declared:
        return
    arguments = {"x-queue-type": session.node.options["queue_type"]}
    with _nothing_happened():
        async with asyncio.timeout(session.node.timeout_s * DECLARE_SHARE):
            await session.asked(
                lambda: session.channel.queue_declare(
                    key, durable=True, arguments=arguments, callback=session.answer
                )
            )
    session.declared.add(key)


def _done(session: Session) -> Callable[[object], None]:
    """Return what is called once the channel confirms messages."""
    return lambda _method: session.answer()


@contextlib.contextmanager
def _nothing_happened() -> Iterator[None]:
    """Around what changes nothing, or comes before a change: its errors are definite."""
    try:
        yield
    except TimeoutError as error:
        raise RefusedError("no answer in time") from error
    except Exception as error:
        raise RefusedError(f"{type(error).__name__}: {error}") from error
