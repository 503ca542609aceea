"""Registers a broker with all name servers: at start, when its role or topics change, periodically.

Each name server has its own task, so a dead or slow one does not delay the others. Closing the
connection removes the broker from the routes at once; a clean stop unregisters before.
Source: RocketMQ's BrokerOuterAPI and BrokerController.registerBrokerAll; DLEDGER.md D.1, D.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count

import trio

from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections.link import Link, dial, write_until_broken
from shaketable.system.node.machine import Clock, sleep
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import (
    Command,
    CommandError,
    Frame,
    FrameError,
    decode_command,
    encode_command,
)
from shaketable.system.remoting.name_server_requests import (
    BrokerHeader,
    DataVersion,
    RegisterBrokerHeader,
    TopicConfig,
    body_crc32,
    encode_register_body,
)

CONNECT_TIMEOUT_MS = 3_000.0
ANSWER_TIMEOUT_MS = 3_000.0
"""How long a name server may take to respond before it counts as dead."""
UNREGISTER_TIMEOUT_MS = 500.0
"""How long a clean stop waits for each name server."""
RETRY_MIN_MS = 100.0
RETRY_MAX_MS = 2_000.0
REFUSED_RETRY_MS = 1_000.0
"""How soon to retry at a name server that refused, or did not know this slave's master."""
OUT_BYTES_MAX = 32 << 20

NameServerAddress = tuple[str, int]

log = logging.getLogger("shaketable.node")


@dataclass(frozen=True, slots=True)
class RegistrationState:
    """The state of a broker that requires a new registration whenever it changes.

    `broker_id` is MASTER_ID for a leader that is ready, None for a node that is not a member (yet,
    or any more): clients would read stale data from it. `topics_version` changes with every topic
    change.
    """

    broker_id: int | None
    term: int
    topics_version: int


class Registration:
    """One broker's registrations. `get_state` is cheap; `topics` returns all current topics."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        get_state: Callable[[], RegistrationState],
        topics: Callable[[], Iterable[TopicConfig]],
        on_registered: Callable[[Mapping[str, str]], bool] = lambda _: True,
    ) -> None:
        self._config = config
        self._clock = clock
        self._get_state = get_state
        self._topics = topics
        self.on_registered = on_registered
        """Called with the fields of a response, which name the master; False: retry soon."""
        self._address = f"{config.host}:{config.listen_port}"
        self._ha_address = ""
        self._opaque = count(1)
        self._body: bytes | None = None
        self._changed_ms = clock.wall_ms()
        self.state = get_state()
        self.changed = trio.Event()
        """Set, and replaced by a new event, when `state` changes."""

    def listens(self, client_port: int, slave_port: int | None) -> None:
        """Register these ports from now on: that for clients, and a master's for its slaves.

        A broker that serves no slaves registers an empty address for them: RocketMQ requires the
        field, but reads only a master's.
        """
        host = self._config.host
        self._address = f"{host}:{client_port}"
        self._ha_address = "" if slave_port is None else f"{host}:{slave_port}"

    def refresh(self) -> None:
        """Check whether role or topics changed. Call it after anything that may change them."""
        state = self._get_state()
        if state == self.state:
            return
        self.state = state
        self._changed_ms = self._clock.wall_ms()
        self._body = None
        self.changed.set()
        self.changed = trio.Event()

    async def run(self) -> None:
        """Stay registered with every name server until cancelled; then unregister."""
        async with trio.open_nursery() as nursery:
            for address in self._config.name_servers:
                nursery.start_soon(self._stay_registered, address)

    async def _stay_registered(self, address: NameServerAddress) -> None:
        pause_ms = RETRY_MIN_MS
        is_lost = False
        while True:
            session = _Session(self, self._clock, address, self._config.register_interval_ms)
            try:
                why = await session.run()
            except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
                why = str(error)
            if session.has_answered:
                pause_ms = RETRY_MIN_MS
            if session.has_answered or not is_lost:  # log once, not at every failed attempt
                log.warning("event=name_server_lost name_server=%s:%d error=%r", *address, why)
                is_lost = True
            await sleep(self._clock, pause_ms)
            pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    # ---- requests ---------------------------------------------------------------------

    def register_request(self, broker_id: int) -> Command:
        """Return a registration request for the current state. Raises CommandError."""
        config, state = self._config, self.state
        if self._body is None:
            # The state version is the Raft term: name servers refuse the leader's id to a deposed
            # leader, whose term is lower.
            version = DataVersion(state.term, self._changed_ms, state.topics_version)
            self._body = encode_register_body(self._topics(), version)
        header = RegisterBrokerHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.cluster,
            broker_id=broker_id,
            ha_server_addr=self._ha_address,
            body_crc32=body_crc32(self._body),
        )
        return self._request(RequestCode.REGISTER_BROKER, header.to_ext(), self._body)

    def unregister_request(self, broker_id: int) -> Command:
        """Return a request that removes this broker, registered as `broker_id`, from the routes."""
        config = self._config
        header = BrokerHeader(config.broker_name, self._address, config.cluster, broker_id)
        return self._request(RequestCode.UNREGISTER_BROKER, header.to_ext())

    def _request(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        return Command(code, next(self._opaque) & 0x7FFFFFFF, ext=ext, body=body)


class _Session:
    """One connection to one name server, from dialing until it is lost."""

    def __init__(
        self, registration: Registration, clock: Clock, address: NameServerAddress, interval_ms: int
    ) -> None:
        self._registration = registration
        self._clock = clock
        self._address = address
        self._interval_ms = interval_ms
        self._name = f"{address[0]}:{address[1]}"
        self._why = "it closed the connection"
        self._pending_opaque = 0
        self._answer: Command | None = None
        self._answered = trio.Event()
        self._last_logged: tuple[object, ...] = ()
        self.has_answered = False
        self._is_complete = True
        self.registered_as: int | None = None
        """The broker id registered at the name server, None if none."""

    async def run(self) -> str:
        """Connect and stay registered; return why the connection ended. Raises OSError.

        Unregisters when cancelled.
        """
        with self._within(CONNECT_TIMEOUT_MS) as connecting:
            stream = await dial(*self._address)
        if connecting.cancelled_caught:
            return f"no connection within {CONNECT_TIMEOUT_MS:g} ms"
        link = Link(stream.socket, OUT_BYTES_MAX)
        is_stopped = True
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write_until_broken, link)
                nursery.start_soon(self._read, link, nursery.cancel_scope)
                self._why = await self._keep_registered(link)
                nursery.cancel_scope.cancel()
            is_stopped = False
        finally:
            if is_stopped and self.registered_as is not None:
                await self._unregister(stream, self.registered_as)
            link.close()
        return self._why

    def _within(self, timeout_ms: float) -> AbstractContextManager[trio.CancelScope]:
        return self._clock.move_on_at(self._clock.now_ms() + timeout_ms)

    async def _keep_registered(self, link: Link) -> str:
        """Register at every change and periodically; return why that failed."""
        while True:
            changed, state = self._registration.changed, self._registration.state
            try:
                request = self._request(state.broker_id)
                data = None if request is None else encode_command(request)
            except (CommandError, FrameError) as error:
                log.error("event=not_registered error=%s", error)  # noqa: TRY400 - one line
                request = data = None
            pause_ms = float(self._interval_ms)
            if request is not None and data is not None:
                answer = await self._ask(link, request.opaque, data)
                if answer is None:
                    return f"no answer within {ANSWER_TIMEOUT_MS:g} ms"
                self._handle_response(answer, state)
                if answer.code != ResponseCode.SUCCESS or not self._is_complete:
                    pause_ms = REFUSED_RETRY_MS
            with self._within(pause_ms):
                await changed.wait()

    def _request(self, broker_id: int | None) -> Command | None:
        """Return the request for the current state, None if none is needed."""
        if broker_id is not None:
            return self._registration.register_request(broker_id)
        if self.registered_as is not None:
            return self._registration.unregister_request(self.registered_as)
        return None

    async def _ask(self, link: Link, opaque: int, data: bytes) -> Command | None:
        """Send one request and return its response, None on timeout."""
        self._pending_opaque, self._answer, self._answered = opaque, None, trio.Event()
        if link.send(data):
            with self._within(ANSWER_TIMEOUT_MS):
                await self._answered.wait()
        return self._answer

    def _handle_response(self, answer: Command, state: RegistrationState) -> None:
        """Update the registered id from a response, and log the response if it differs."""
        self.has_answered = True
        is_done = answer.code == ResponseCode.SUCCESS
        self.registered_as = state.broker_id if is_done else None
        self._is_complete = not is_done or self._registration.on_registered(answer.ext)
        summary = (answer.code, answer.remark, state.broker_id, state.term)
        if summary == self._last_logged:
            return
        self._last_logged = summary
        broker_id = "-" if state.broker_id is None else state.broker_id
        if is_done:
            log.info(
                "event=registered name_server=%s broker_id=%s term=%d",
                self._name,
                broker_id,
                state.term,
            )
        else:
            log.warning(
                "event=registration_refused name_server=%s broker_id=%s code=%d remark=%s",
                self._name,
                broker_id,
                answer.code,
                answer.remark,
            )

    async def _read(self, link: Link, scope: trio.CancelScope) -> None:
        def on_frames(frames: list[Frame]) -> None:
            for frame in frames:
                command = decode_command(frame)
                if command.is_response and command.opaque == self._pending_opaque:
                    self._answer = command
                    self._answered.set()

        try:
            await link.read(on_frames)
        except (OSError, trio.ClosedResourceError, FrameError, CommandError) as error:
            self._why = str(error) or self._why
        scope.cancel()

    async def _unregister(self, stream: trio.SocketStream, broker_id: int) -> None:
        """Unregister this broker, and wait briefly for the response."""
        data = encode_command(self._registration.unregister_request(broker_id))
        with self._within(UNREGISTER_TIMEOUT_MS) as scope:
            scope.shield = True
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(data)
                await stream.receive_some(1)  # any response
