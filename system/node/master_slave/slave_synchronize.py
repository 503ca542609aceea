"""Periodic copy of a master's topics, offsets, delays and groups to its slave.

They replace the slave's own, including offsets that consumers committed at the slave while the
master was down.
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
FIRST_SYNC_DELAY_MS = 1_000.0
"""How soon after the master's address is known (RocketMQ: 3 s after the start)."""
ANSWER_TIMEOUT_MS = 3_000.0

TableRequests = tuple[tuple[RequestCode, str], ...]

TABLE_REQUESTS: TableRequests = (
    (RequestCode.GET_ALL_TOPIC_CONFIG, TOPICS),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS),
    (RequestCode.GET_ALL_DELAY_OFFSET, DELAYS),
    (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GROUPS),
)

_FAILURES = (OSError, UnicodeError, trio.BrokenResourceError, FrameError, CommandError)
"""An invalid host name raises UnicodeError."""

log = logging.getLogger("shaketable.node")


class SlaveSynchronize:
    """Keeps a slave's tables up to date. `master` is the master's address, once it is known."""

    requests: ClassVar[TableRequests] = TABLE_REQUESTS

    def __init__(
        self, clock: Clock, tables: BrokerTables, schedule_effects: Callable[[], None]
    ) -> None:
        self.master: tuple[str, int] | None = None
        self._clock = clock
        self._tables = tables
        self._schedule_effects = schedule_effects
        self._opaque = count(1)

    async def run(self) -> None:
        """Synchronize periodically until cancelled."""
        last_logged = ""
        while True:
            pause_ms = FIRST_SYNC_DELAY_MS
            if self.master is not None:
                try:
                    await self._synchronize(*self.master)
                except _FAILURES as error:
                    why = f"{self.master[0]}:{self.master[1]}: {error}"
                    if why != last_logged:  # log once, not at every failed attempt
                        log.warning("event=not_synchronized why=%r", why)
                        last_logged = why
                else:
                    pause_ms, last_logged = INTERVAL_MS, ""
            await sleep(self._clock, pause_ms)

    async def _synchronize(self, host: str, port: int) -> None:
        """Request and load all tables once. Raises one of `_FAILURES`."""
        with self._clock.move_on_at(self._clock.now_ms() + ANSWER_TIMEOUT_MS) as timeout:
            stream = await dial(host, port)
            async with stream:
                buffer = FrameBuffer()
                for code, name in self.requests:
                    request = Command(code, next(self._opaque) & 0x7FFFFFFF)
                    await stream.send_all(encode_command(request))
                    answer = await _answer(stream, buffer, request.opaque)
                    if answer.code != ResponseCode.SUCCESS:
                        raise CommandError(f"{code.name}: code {answer.code}: {answer.remark}")
                    load_tables(name, bytes(answer.body), self._tables)
                    self._schedule_effects()
        if timeout.cancelled_caught:
            raise CommandError(f"no answer within {ANSWER_TIMEOUT_MS:g} ms")


async def _answer(stream: trio.SocketStream, buffer: FrameBuffer, opaque: int) -> Command:
    """Read until the response arrives. Raises FrameError, CommandError."""
    while count := await stream.socket.recv_into(buffer.writable()):
        buffer.received(count)
        for frame in buffer.frames():
            command = decode_command(frame)
            if command.is_response and command.opaque == opaque:
                return command
    raise CommandError("the connection was closed")
