"""A slave takes its master's topics, offsets, delays and groups now and then.

What it has of them goes; what a consumer committed here while the master was away goes with it.
Source: RocketMQ 4.9's SlaveSynchronize and BrokerController.handleSlaveSynchronize.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from typing import ClassVar

import trio

from shaketable.system.broker.broker_tables import BrokerTables
from shaketable.system.native.config_files import DELAYS, GROUPS, OFFSETS, TOPICS, load_tables
from shaketable.system.node.clock import Clock, sleep
from shaketable.system.node.connections.link import dial
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError, decode_command, encode_command
from shaketable.system.remoting.frame import FrameBuffer, FrameError

INTERVAL_MS = 10_000.0
FIRST_AFTER_MS = 1_000.0
"""How soon after the master is known (RocketMQ: 3 s after the start)."""
ANSWER_TIMEOUT_MS = 3_000.0

Asked = tuple[tuple[RequestCode, str], ...]

ASKED: Asked = (
    (RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS),
    (RequestCode.GET_ALL_DELAY_OFFSET, DELAYS),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GROUPS),
)

_FAILURES = (OSError, UnicodeError, trio.BrokenResourceError, FrameError, CommandError)
"""A name that no host can have is a UnicodeError."""

log = logging.getLogger("shaketable.node")


class SlaveSynchronize:
    """Keeps a slave's tables as its master's. `master` is its address, once it is known."""

    asked: ClassVar[Asked] = ASKED

    def __init__(self, clock: Clock, tables: BrokerTables, touch: Callable[[], None]) -> None:
        self.master: tuple[str, int] | None = None
        self._clock = clock
        self._tables = tables
        self._touch = touch
        self._opaque = count(1)

    async def run(self) -> None:
        """Ask again and again, until cancelled."""
        said = ""
        while True:
            pause_ms = FIRST_AFTER_MS
            if self.master is not None:
                try:
                    await self._synchronize(*self.master)
                except _FAILURES as error:
                    why = f"{self.master[0]}:{self.master[1]}: {error}"
                    if why != said:  # and not each time that it is still so
                        log.warning("event=not_synchronized why=%r", why)
                        said = why
                else:
                    pause_ms, said = INTERVAL_MS, ""
            await sleep(self._clock, pause_ms)

    async def _synchronize(self, host: str, port: int) -> None:
        """Ask once. Raises one of `_FAILURES`."""
        with self._clock.move_on_at(self._clock.now_ms() + ANSWER_TIMEOUT_MS) as asking:
            stream = await dial(host, port)
            async with stream:
                buffer = FrameBuffer()
                for code, name in self.asked:
                    request = Command(code, next(self._opaque) & 0x7FFFFFFF)
                    await stream.send_all(encode_command(request))
                    answer = await _answer(stream, buffer, request.opaque)
                    if answer.code != ResponseCode.SUCCESS:
                        raise CommandError(f"{code.name}: code {answer.code}: {answer.remark}")
                    load_tables(name, bytes(answer.body), self._tables)
                    self._touch()
        if asking.cancelled_caught:
            raise CommandError(f"no answer within {ANSWER_TIMEOUT_MS:g} ms")


async def _answer(stream: trio.SocketStream, buffer: FrameBuffer, opaque: int) -> Command:
    """Read until the answer has come. Raises FrameError, CommandError."""
    while count := await stream.socket.recv_into(buffer.writable()):
        buffer.received(count)
        for frame in buffer.frames():
            command = decode_command(frame)
            if command.is_response and command.opaque == opaque:
                return command
    raise CommandError("the connection was closed")
