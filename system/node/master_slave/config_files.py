"""Saves a master-slave broker's topics, offsets, delays and groups in config/*.json.

A slave copies them from its master.

Topics are saved soon after a change, offsets every 5 s, delays and groups every 10 s, and all of
them at a clean stop. A file is replaced atomically; its previous contents are kept as `.bak`.
Source: RocketMQ 4.9's ConfigManager, MixAll.string2File and BrokerController.initialize
(flushConsumerOffsetInterval, flushDelayOffsetInterval); DLEDGER.md B.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import ClassVar

import trio

from shaketable.system.broker.reput import BrokerTables
from shaketable.system.master_slave.config_files import (
    DELAYS,
    GROUPS,
    OFFSETS,
    TOPICS,
    delivery_offsets,
    encode_tables,
    load_tables,
)
from shaketable.system.node.connections.link import dial
from shaketable.system.node.machine import Clock, Machine, sleep
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    Command,
    CommandError,
    FrameBuffer,
    FrameError,
    decode_command,
    encode_command,
)
from shaketable.system.store.disk import DiskFull, StoreError, read_file, replace_file
from shaketable.system.store.group_events import OFFSET_QUEUE, TOPIC_QUEUE

POLL_INTERVAL_MS = 500.0
INTERVALS_MS = {TOPICS: 0.0, OFFSETS: 5_000.0, DELAYS: 10_000.0, GROUPS: 10_000.0}

log = logging.getLogger("shaketable.node")


class ConfigFiles:
    """The configuration files in one folder, and the tables that they store."""

    def __init__(self, folder: str, machine: Machine, tables: BrokerTables) -> None:
        self._folder = folder
        self._disk = machine.disk
        self._clock = machine.clock
        self._run_disk_work = machine.run_disk_work
        self._tables = tables
        self._due_ms = {name: machine.clock.now_ms() + ms for name, ms in INTERVALS_MS.items()}
        self._saved: dict[str, object] = {}
        self._unreadable: set[str] = set()

    def load(self) -> None:
        """Load each file, or its `.bak` if it cannot be decoded.

        All files are written again when they are due, since a checkpoint may hold newer state.
        Raises StoreError if neither can be decoded.
        """
        self._disk.make_dirs(self._folder)
        for name in INTERVALS_MS:
            self._load(name)

    async def run(self) -> None:
        """Save changed tables when they are due, until cancelled. Raises DiskFailed."""
        while True:
            await sleep(self._clock, POLL_INTERVAL_MS)
            now_ms = self._clock.now_ms()
            for name, due_ms in self._due_ms.items():
                if now_ms >= due_ms:
                    self._due_ms[name] = now_ms + INTERVALS_MS[name]
                    await self._save(name)  # after DiskFull, again when it is due

    async def save(self) -> None:
        """Save all changed tables at a stop; log what a full disk refuses. Raises DiskFailed."""
        for name in INTERVALS_MS:
            if (error := await self._save(name)) is not None:
                log.error("event=config_file_lost path=%s error=%s", self._path(name), error)

    async def _save(self, name: str) -> DiskFull | None:
        """Save a table if it changed; return the error of a full disk. Raises DiskFailed."""
        state = self._state(name)
        if self._saved.get(name) == state:
            return None
        data = encode_tables(name, self._tables, self._clock.wall_ms())
        try:
            await self._run_disk_work(partial(self._replace, name, data))
        except DiskFull as error:
            return error
        self._saved[name] = state
        return None

    def _replace(self, name: str, data: bytes) -> None:
        path = self._path(name)
        if self._disk.exists(path) and path not in self._unreadable:
            replace_file(self._disk, f"{path}.bak", read_file(self._disk, path))
        replace_file(self._disk, path, data)
        self._unreadable.discard(path)

    def _load(self, name: str) -> None:
        path, problem = self._path(name), ""
        for candidate in (path, f"{path}.bak"):
            if not self._disk.exists(candidate):
                continue
            try:
                load_tables(name, read_file(self._disk, candidate), self._tables)
            except CommandError as error:
                problem = f"{candidate}: {error}"
                self._unreadable.add(candidate)
                log.warning("event=config_file_unreadable path=%s error=%s", candidate, error)
            else:
                return
        if problem:
            raise StoreError(f"{problem}; repair it, or remove it and its .bak to start without")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"

    def _state(self, name: str) -> object:
        """Return a value that changes whenever the file's contents would change."""
        tables = self._tables
        if name == TOPICS:
            return tables.versions[TOPIC_QUEUE]
        if name == OFFSETS:
            return tables.versions[OFFSET_QUEUE]
        if name == GROUPS:
            return tables.offsets.groups(), dict(tables.groups)
        return delivery_offsets(tables)


# Periodic copy of a master's topics, offsets, delays and groups to its slave.
#
# They replace the slave's own, including offsets that consumers committed at the slave while the
# master was down.
# Source: RocketMQ 4.9's SlaveSynchronize and BrokerController.handleSlaveSynchronize.

SYNCHRONIZE_INTERVAL_MS = 10_000.0
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
                    pause_ms, last_logged = SYNCHRONIZE_INTERVAL_MS, ""
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
                    answer = await _read_answer(stream, buffer, request.opaque)
                    if answer.code != ResponseCode.SUCCESS:
                        raise CommandError(f"{code.name}: code {answer.code}: {answer.remark}")
                    load_tables(name, bytes(answer.body), self._tables)
                    self._schedule_effects()
        if timeout.cancelled_caught:
            raise CommandError(f"no answer within {ANSWER_TIMEOUT_MS:g} ms")


async def _read_answer(stream: trio.SocketStream, buffer: FrameBuffer, opaque: int) -> Command:
    """Read until the response arrives. Raises FrameError, CommandError."""
    while count := await stream.socket.recv_into(buffer.writable()):
        buffer.received(count)
        for frame in buffer.frames():
            command = decode_command(frame)
            if command.is_response and command.opaque == opaque:
                return command
    raise CommandError("the connection was closed")
