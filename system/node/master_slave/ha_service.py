"""HA replication over TCP: a master sends its log to slaves, a slave copies its master's log.

Each connection has one task that reads and one that writes. No data is queued: a master reads from
its log as fast as the slave receives. Source: RocketMQ 4.9's HAService; DLEDGER.md D.2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import count

import trio

from shaketable.system.master_slave.core import MasterSlaveCore
from shaketable.system.master_slave.ha import HAError, MasterConnection, SlaveConnection
from shaketable.system.node.config import MasterSlaveSettings, NodeConfig, is_number
from shaketable.system.node.connections.link import dial, listen, port_of
from shaketable.system.node.machine import Clock, sleep
from shaketable.system.node.master_slave.config_files import ConfigFiles, SlaveSynchronize
from shaketable.system.node.master_slave.parts import MasterSlaveParts
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message
from shaketable.system.remoting.name_server_requests import MASTER_ID

SLAVES_MAX = 64
READ_BYTES = 256 * 1024
CONNECT_TIMEOUT_MS = 3_000.0
RECONNECT_INTERVAL_MS = 500.0
"""How long a slave waits before it reconnects to its master (RocketMQ: 5 s)."""
BACKPRESSURE_PAUSE_MS = 10.0

Address = tuple[str, int]

log = logging.getLogger("shaketable.node")


class HAService:
    """A node's replication with its slaves or its master.

    `schedule_effects` has the broker's effects carried out soon.
    """

    def __init__(
        self,
        config: NodeConfig,
        settings: MasterSlaveSettings,
        clock: Clock,
        core: MasterSlaveCore,
        schedule_effects: Callable[[], None],
        synchronize: SlaveSynchronize,
        files: ConfigFiles,
        parts: MasterSlaveParts,
    ) -> None:
        self._config = config
        self._settings = settings
        self._clock = clock
        self._core = core
        self._schedule_effects = schedule_effects
        self._synchronize = synchronize
        self._files = files
        self._parts = parts
        self._numbers = count(1)
        self._advanced = trio.Event()
        self._seen = (-1, -1)
        self._master = settings.master
        self._is_copying = False
        self._listeners: list[trio.SocketListener] = []

    @property
    def broker_id(self) -> int | None:
        """0 for a master, the configured id for a slave; never changes."""
        return MASTER_ID if self._core.config.is_master else self._settings.broker_id

    @property
    def slave_port(self) -> int | None:
        """The port that a master listens on for its slaves, None for a slave."""
        return port_of(self._listeners) if self._listeners else None

    async def open(self) -> None:
        """Master: listen for slaves. Raises PortInUseError."""
        if self._core.config.is_master:
            host, port = self._config.host, self._settings.ha_port
            self._listeners = await listen(host, port, "its slaves")
            port = port_of(self._listeners)
            log.info("event=listening node=%s slaves=%s:%d", self._config.self_id, host, port)

    async def run(self) -> None:
        """Serve slaves, or follow the master, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._files.run)
            if self._core.config.is_master:
                await trio.serve_listeners(self._serve_slave, self._listeners)
            nursery.start_soon(self._synchronize.run)
            await self._follow_master()

    async def stop(self) -> None:
        """Save topics and offsets, after `run` was cancelled."""
        await self._files.save()

    def send(self, peer: str, message: Message) -> None:
        """Do nothing: there is no group."""

    def follow(self, membership: Membership) -> None:
        """Do nothing: there is no group."""

    def on_registered(self, ext: Mapping[str, str]) -> bool:
        """Slave: take the master's addresses, for slaves and for clients, from a name server.

        Return False while there is no connection to the master: its address may be unknown or
        change, so register again soon.
        """
        if self._core.config.is_master:
            return True
        if (master := _address(ext.get("masterAddr", ""))) is not None:
            self._core.follow(f"{master[0]}:{master[1]}")
            self._synchronize.master = master
        if self._settings.master is None:
            ha = _address(ext.get("haServerAddr", ""))
            if ha is not None and ha != self._master:
                log.info("event=master_known slaves=%s:%d", *ha)
                self._master = ha
        return self._is_copying

    def effects_applied(self) -> None:
        """Wake senders if there is more to send or to report, after effects were carried out."""
        seen = (self._core.written_position, self._core.reported_position)
        if seen != self._seen:
            self._seen = seen
            self._advanced.set()
            self._advanced = trio.Event()

    # ---- master side ------------------------------------------------------------------

    async def _serve_slave(self, stream: trio.SocketStream) -> None:
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            return
        name = f"{host}:{port}"
        if self._core.slave_count >= SLAVES_MAX:
            log.warning("event=too_many_slaves slave=%s limit=%d", name, SLAVES_MAX)
            return
        now_ms = self._clock.now_ms()
        number, file_bytes = next(self._numbers), self._config.data_file_bytes
        slave = self._parts.slave_connection(self._core, number, file_bytes, now_ms)
        log.info("event=slave_connected slave=%s", name)
        why = "it closed the connection"
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_slave, stream, slave, nursery.cancel_scope)
                nursery.start_soon(self._watch_slave, slave)
                await self._write_slave(stream, slave)
        except* HAError as group:
            why = _first_error(group)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as group:
            why = _first_error(group) or why
        finally:
            slave.closed()
            log.info("event=slave_gone slave=%s why=%r", name, why)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _read_slave(
        self, stream: trio.SocketStream, slave: SlaveConnection, scope: trio.CancelScope
    ) -> None:
        async for data in stream:
            slave.received(bytes(data), self._clock.now_ms())
            self._advanced.set()
            self._advanced = trio.Event()
            self._schedule_effects()
        scope.cancel()

    async def _write_slave(self, stream: trio.SocketStream, slave: SlaveConnection) -> None:
        while True:
            advanced = self._advanced
            frame = slave.next_frame(self._clock.now_ms())
            if frame is not None:
                await stream.send_all(frame)
                continue
            with self._clock.move_on_at(slave.due_ms):
                await advanced.wait()

    async def _watch_slave(self, slave: SlaveConnection) -> None:
        """Raise HAError for a silent slave, even while a send to it is blocked."""
        while True:
            await sleep(self._clock, max(0.0, slave.silent_ms - self._clock.now_ms()))
            slave.check_silence(self._clock.now_ms())

    # ---- slave side -------------------------------------------------------------------

    async def _follow_master(self) -> None:
        last_logged = ""
        while True:
            if self._master is not None:
                try:
                    why = await self._copy_from(*self._master)
                except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
                    why = f"{self._master[0]}:{self._master[1]}: {error}"
                if why != last_logged:  # log once, not at every failed attempt
                    log.warning("event=master_lost why=%r", why)
                    last_logged = why
            await sleep(self._clock, RECONNECT_INTERVAL_MS)

    async def _copy_from(self, host: str, port: int) -> str:
        """Copy the master's log until the connection ends; return why it ended. Raises OSError."""
        with self._clock.move_on_at(self._clock.now_ms() + CONNECT_TIMEOUT_MS) as connecting:
            stream = await dial(host, port)
        if connecting.cancelled_caught:
            return f"no connection to {host}:{port} within {CONNECT_TIMEOUT_MS:g} ms"
        file_bytes, now_ms = self._config.data_file_bytes, self._clock.now_ms()
        master = self._parts.master_connection(self._core, file_bytes, now_ms)
        log.info(
            "event=master_found slaves=%s:%d position=%d", host, port, self._core.reported_position
        )
        why = "it closed the connection"
        self._is_copying = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_master, stream, master, nursery.cancel_scope)
                await self._report(stream, master)
        except* HAError as group:
            why = _first_error(group)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as group:
            why = _first_error(group) or why
        finally:
            self._is_copying = False
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
        return f"{host}:{port}: {why}"

    async def _read_master(
        self, stream: trio.SocketStream, master: MasterConnection, scope: trio.CancelScope
    ) -> None:
        while data := await stream.receive_some(READ_BYTES):
            master.received(bytes(data), self._clock.now_ms())
            self._schedule_effects()
            while master.should_pause:
                await sleep(self._clock, BACKPRESSURE_PAUSE_MS)
        scope.cancel()

    async def _report(self, stream: trio.SocketStream, master: MasterConnection) -> None:
        while True:
            advanced = self._advanced
            report = master.next_report(self._clock.now_ms())
            if report is not None:
                await stream.send_all(report)
                continue
            with self._clock.move_on_at(master.due_ms):
                await advanced.wait()


def _first_error(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


def _address(text: str) -> Address | None:
    host, _, port = text.rpartition(":")
    if not host or not is_number(port) or not 0 < int(port) < 1 << 16:
        return None
    return host, int(port)
