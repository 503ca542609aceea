"""Listening, and serving connections so that an error in one ends only that one.

Used by nodes and name servers.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Iterator

import trio

from shaketable.system.node.connections.link import Link
from shaketable.system.remoting.command import CommandError
from shaketable.system.remoting.frame import FrameError

log = logging.getLogger("shaketable.node")


class PortInUseError(Exception):
    """The process cannot listen on a port. The message is one line that names it."""


async def listen(host: str, port: int, clients: str) -> list[trio.SocketListener]:
    """Listen on a port; `clients` names the clients in errors. Raises PortInUseError."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
        raise PortInUseError(
            f"cannot listen on {host}:{port} for {clients}: "
            f"{getattr(error, 'strerror', None) or error}; choose another port or end what holds it"
        ) from None


def guarded(
    serve: Callable[[trio.SocketStream], Awaitable[None]], connections_max: int
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Wrap `serve` so that an error in a connection closes only that connection.

    At most `connections_max` are served at once. Each listener has its own limit, so that clients
    cannot lock out the peers.
    """
    open_now = 0

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal open_now
        if open_now >= connections_max:
            log.warning("event=too_many_connections limit=%d", connections_max)
            stream.socket.close()
            return
        open_now += 1
        try:
            await serve(stream)
        except* (FrameError, CommandError) as group:
            error = next(iter(flatten(group)))
            log.warning("event=bad_bytes from=%s error=%s action=closed", _name(stream), error)
        except* (OSError, trio.ClosedResourceError):
            pass  # the other side disconnected
        finally:
            open_now -= 1
            stream.socket.close()

    return handle


async def write_until_broken(link: Link) -> None:
    """Send what is queued until the connection breaks; then close it, so that reading ends."""
    try:
        await link.write()
    except (OSError, trio.ClosedResourceError):
        link.close()


async def end_on_signal(
    end: Callable[[], None], scope: trio.CancelScope, log: logging.Logger
) -> None:
    """Call `end` at the first SIGTERM or SIGINT; cancel at the second."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            end()
            break
        async for _ in signals:
            scope.cancel()
            return


async def cancel_on_signal(scope: trio.CancelScope, log: logging.Logger) -> None:
    """Cancel at the first SIGTERM or SIGINT, for a clean stop."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            scope.cancel()
            return


def flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors of a nested group, outermost first."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from flatten(error)
        else:
            yield error


def _name(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "a closed connection"
    return f"{host}:{port}"
