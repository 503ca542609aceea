"""Listening, and serving each connection so that what is wrong with it ends it and nothing else.

Nodes and name servers are shells of this kind.
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
    """A port that the process should listen on is taken: one line that names it."""


async def listen(host: str, port: int, whom: str) -> list[trio.SocketListener]:
    """Listen for `whom`. Raises PortInUseError."""
    try:
        return await trio.open_tcp_listeners(port, host=host)
    except (OSError, UnicodeError) as error:  # no name at all is a UnicodeError
        raise PortInUseError(
            f"cannot listen on {host}:{port} for {whom}: "
            f"{getattr(error, 'strerror', None) or error}; choose another port or end what holds it"
        ) from None


def guarded(
    serve: Callable[[trio.SocketStream], Awaitable[None]], connections_max: int
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """Serve one connection; what is wrong with it ends it and nothing else.

    Each listener has a limit of its own, so that clients cannot shut the peers out.
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
            error = next(iter(flat(group)))
            log.warning("event=bad_bytes from=%s error=%s action=closed", _name(stream), error)
        except* (OSError, trio.ClosedResourceError):
            pass  # the other side is gone: its business
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
    """Call `end` at the first SIGTERM or SIGINT; cancel at the second, for who cannot wait."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            end()
            break
        async for _ in signals:
            scope.cancel()
            return


async def cancel_on_signal(scope: trio.CancelScope, log: logging.Logger) -> None:
    """Cancel at the first SIGTERM or SIGINT, which is to end the process in order."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("event=stopping signal=%s", signal.Signals(number).name)
            scope.cancel()
            return


def flat(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Yield the errors of a nested group, outermost first."""
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from flat(error)
        else:
            yield error


def _name(stream: trio.SocketStream) -> str:
    try:
        host, port = stream.socket.getpeername()[:2]
    except OSError:
        return "a closed connection"
    return f"{host}:{port}"
