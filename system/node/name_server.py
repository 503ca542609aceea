"""A name server process: `python -m shaketable.system.node.name_server`.

Name servers are independent of each other: brokers register with all of them, clients ask any.
Registrations are kept in memory only, so a restarted name server knows a broker once that registers
again. What operators set (orders of topics) is stored in the file of `--kv-config`, if given.
Exits with 0 on SIGTERM or SIGINT, and with 2 and one line on standard error for bad options or a
port in use. Source: RocketMQ's NamesrvController.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import NoReturn

import trio

from shaketable.system.invariants.routes import watched
from shaketable.system.invariants.violated import Violated
from shaketable.system.nameserver.name_server import SCAN_INTERVAL_MS, DamagedKvConfig, NameServer
from shaketable.system.nameserver.registry import RouteRegistry
from shaketable.system.node.config import ConfigError
from shaketable.system.node.connections.link import (
    Link,
    PortInUseError,
    cancel_on_signal,
    flatten,
    guarded,
    listen,
    port_of,
    write_until_broken,
)
from shaketable.system.node.disks.real_disk import DiskThreads, RealDisk
from shaketable.system.node.machine import Clock, SystemClock, sleep
from shaketable.system.node.process import (
    EXIT_INVARIANT,
    client_limit,
    raise_open_file_limit,
)
from shaketable.system.raft.protocol import InvariantError
from shaketable.system.remoting.codes import ResponseCode
from shaketable.system.remoting.command import (
    Command,
    CommandError,
    Frame,
    FrameError,
    decode_command,
    encode_command,
)
from shaketable.system.store.disk import StoreError, replace_file

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9876
PORT_MAX = 65_535
CONNECTIONS_MAX = 10_000
OUT_BYTES_MAX = 32 << 20
"""Limit of the outgoing buffer of one connection."""
REFUSALS_LOGGED_MAX = 100
"""How many kinds of refusals are logged as a warning, each once."""
KV_RETRY_MIN_MS = 1_000.0
KV_RETRY_MAX_MS = 60_000.0
"""How soon the key-value configuration is saved again after the disk refused it: the pause doubles
after each attempt. A change is tried at once."""
EXIT_USAGE = 2

log = logging.getLogger("shaketable.name_server")


class NameServerNode:
    """A name server on a port. `run` ends when cancelled, or if it cannot listen."""

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        connections_max: int = CONNECTIONS_MAX,
        *,
        kv_path: Path | None = None,
        order_message_enable: bool = False,
        registry_type: type[RouteRegistry] = RouteRegistry,
    ) -> None:
        self.server = NameServer(
            order_message_enable=order_message_enable, registry_type=registry_type
        )
        self._kv_path = kv_path
        if kv_path is not None and kv_path.exists():
            self.server.kv.load(kv_path.read_bytes())
        self._kv_tried = self.server.kv.version
        self._kv_changed = trio.Event()
        self._is_kv_saved = True
        self._run_disk_work = DiskThreads()
        self._host = host
        self._port = port
        self._clock = clock
        self._connections_max = connections_max
        self._links: dict[int, Link] = {}
        self._numbers = count(1)
        self._refused: set[tuple[int, int]] = set()

    async def run(self) -> None:
        """Serve until cancelled; then save what the disk refused before. Raises PortInUseError."""
        listeners = await listen(self._host, self._port, "brokers and clients")
        log.info("event=serving address=%s:%d", self._host, port_of(listeners))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._scan)
                if self._kv_path is not None:
                    nursery.start_soon(self._retry_kv_config, self._kv_path)
                await trio.serve_listeners(guarded(self._serve, self._connections_max), listeners)
        finally:
            if self._kv_path is not None and not self._is_kv_saved:
                self._save_kv_config_at_stop(self._kv_path)

    async def _scan(self) -> None:
        while True:
            await sleep(self._clock, SCAN_INTERVAL_MS)
            for number in self.server.scan(self._clock.now_ms()):
                log.warning("event=broker_expired connection=%d action=closed", number)
                if (link := self._links.get(number)) is not None:
                    link.close()

    async def _serve(self, stream: trio.SocketStream) -> None:
        number = next(self._numbers)
        link = self._links[number] = Link(stream.socket, OUT_BYTES_MAX)

        def on_frames(frames: list[Frame]) -> None:
            for frame in frames:
                request = decode_command(frame)
                response = self.server.handle(number, request, self._clock.now_ms())
                self._save_kv_config()
                if response is not None and response.code != ResponseCode.SUCCESS:
                    self._note_refusal(request.code, response)
                if response is not None and not link.send(_encoded(response)):
                    log.warning("event=client_too_slow connection=%d action=closed", number)
                    link.close()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write_until_broken, link)
                await link.read(on_frames)
                nursery.cancel_scope.cancel()
        finally:
            del self._links[number]
            for address in self.server.connection_closed(number):
                log.info("event=broker_gone address=%s connection=%d", address, number)

    def _save_kv_config(self) -> None:
        """Save the key-value configuration if it changed.

        Blocks the event loop, but is rare. After a failure `_retry_kv_config` saves it instead.
        """
        if self._kv_path is None or self.server.kv.version == self._kv_tried:
            return
        if self._is_kv_saved:
            self._note_kv_config(self._kv_path, _write_kv_config(self._kv_path, self._kv_config()))
        else:
            self._kv_changed.set()

    async def _retry_kv_config(self, path: Path) -> None:
        """Save the key-value configuration again, off the event loop, after the disk refused it."""
        pause_ms = KV_RETRY_MIN_MS
        while True:
            with self._clock.move_on_at(self._clock.now_ms() + pause_ms):
                await self._kv_changed.wait()
            self._kv_changed = trio.Event()
            if self._is_kv_saved:
                pause_ms = KV_RETRY_MIN_MS
                continue
            work = partial(_write_kv_config, path, self._kv_config())
            self._note_kv_config(path, await self._run_disk_work(work))
            longer_ms = min(pause_ms * 2, KV_RETRY_MAX_MS)
            pause_ms = KV_RETRY_MIN_MS if self._is_kv_saved else longer_ms

    def _kv_config(self) -> bytes:
        """Return the contents of the file for the next attempt to save it."""
        self._kv_tried = self.server.kv.version
        return self.server.kv.encode()

    def _note_kv_config(self, path: Path, error: StoreError | None) -> None:
        """Note how an attempt to save the configuration ended; log the first failure in a row."""
        was_saved = self._is_kv_saved
        self._is_kv_saved = error is None and self._kv_tried == self.server.kv.version
        if error is not None:
            level = logging.WARNING if was_saved else logging.DEBUG
            log.log(level, "event=kv_config_not_kept path=%s error=%s", path, error)
        elif self._is_kv_saved and not was_saved:
            log.info("event=kv_config_kept path=%s", path)

    def _save_kv_config_at_stop(self, path: Path) -> None:
        error = _write_kv_config(path, self._kv_config())
        self._note_kv_config(path, error)
        if error is not None:
            log.error("event=kv_config_lost path=%s error=%s", path, error)

    def _note_refusal(self, request_code: int, response: Command) -> None:
        """Log a refusal, except for unknown topics, which clients ask for all the time."""
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return
        kind = (request_code, response.code)
        if kind in self._refused or len(self._refused) >= REFUSALS_LOGGED_MAX:
            log.debug("event=refused request=%d code=%d remark=%s", *kind, response.remark)
            return
        self._refused.add(kind)
        log.warning("event=refused request=%d code=%d remark=%s", *kind, response.remark)


def _write_kv_config(path: Path, data: bytes) -> StoreError | None:
    """Replace the file of the key-value configuration; return why that failed, None if it did not.

    All of the file is written anew, so a retry is safe after a failed fsync, too.
    """
    try:
        replace_file(RealDisk(), str(path.absolute()), data)
    except StoreError as error:
        return error
    return None


def _encoded(response: Command) -> bytes:
    try:
        return encode_command(response)
    except (CommandError, FrameError) as error:  # more brokers or topics than fit in a frame
        return encode_command(
            Command(
                ResponseCode.SYSTEM_ERROR,
                response.opaque,
                response.flag,
                remark=f"the answer does not fit a frame: {error}",
                serialize_type=response.serialize_type,
            )
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a name server until a signal stops it; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m shaketable.system.node.name_server")
    parser.add_argument("--port", type=_port, default=DEFAULT_PORT, help="port to listen on")
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on")
    parser.add_argument("--kv-config", type=Path, help="file that keeps what operators set")
    parser.add_argument(
        "--order-message-enable", action="store_true", help="tell clients of ordered topics"
    )
    parser.add_argument("--mutant", default="", help="planted bug to run with, for calibration")
    parser.add_argument(
        "--check-invariants", action="store_true", help="check each change of the routes"
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03d level=%(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    connections_max = client_limit(raise_open_file_limit(), CONNECTIONS_MAX)
    try:
        node = NameServerNode(
            arguments.host,
            arguments.port,
            SystemClock(),
            connections_max,
            kv_path=arguments.kv_config,
            order_message_enable=arguments.order_message_enable,
            registry_type=_registry_type(arguments.mutant, checks=arguments.check_invariants),
        )
    except ConfigError as error:
        log.error("event=stopped error=%s", error)  # noqa: TRY400
        return EXIT_USAGE
    except (DamagedKvConfig, OSError) as error:
        log.error("event=stopped error=%s: %s", arguments.kv_config, error)  # noqa: TRY400
        return EXIT_USAGE
    code = 0
    try:
        trio.run(_run, node)
    except* PortInUseError as group:
        log.error("event=stopped error=%s", next(iter(flatten(group))))  # noqa: TRY400 - one line
        code = EXIT_USAGE
    except* InvariantError as group:
        log.error("event=stopped error=%s", next(iter(flatten(group))))  # noqa: TRY400 - one line
        code = EXIT_INVARIANT
    return code


def _registry_type(mutant: str, *, checks: bool) -> type[RouteRegistry]:
    """Return the registry class, the mutant's if one is given. Raises ConfigError if unknown.

    With `checks` its methods raise InvariantError where the routes are not what they have to be.
    """
    registry = RouteRegistry
    if mutant:
        # Imported here because a name server does not otherwise need the broker's modules.
        from shaketable.system.node.process import planted  # noqa: PLC0415

        registry = planted(mutant).registry
    return watched(registry, _end_by) if checks else registry


def _end_by(found: Violated) -> NoReturn:
    raise InvariantError(str(found))


async def _run(node: NameServerNode) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_on_signal, nursery.cancel_scope, log)
        await node.run()


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, 0..{PORT_MAX}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
