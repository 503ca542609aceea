"""Tells all name servers what this broker is: on start, on a change of role or topics, and again.

Each name server has a task of its own, so one that is dead or slow costs the others nothing.
Closing the connection takes the broker out of the routes at once; a clean stop says so first.
Source: RocketMQ's BrokerOuterAPI and BrokerController.registerBrokerAll; DLEDGER.md D.1, D.3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from itertools import count

import trio

from shaketable.system.node.clock import Clock, sleep
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections.link import Link, dial
from shaketable.system.node.connections.serving import write_until_broken
from shaketable.system.remoting.codes import RequestCode, ResponseCode
from shaketable.system.remoting.command import Command, CommandError, decode_command, encode_command
from shaketable.system.remoting.frame import Frame, FrameError
from shaketable.system.remoting.register_bodies import (
    DataVersion,
    TopicConfig,
    body_crc32,
    encode_register_body,
)
from shaketable.system.remoting.registration_headers import BrokerHeader, RegisterBrokerHeader

CONNECT_TIMEOUT_MS = 3_000.0
ANSWER_TIMEOUT_MS = 3_000.0
"""How long a name server may take to answer before it counts as dead."""
UNREGISTER_TIMEOUT_MS = 500.0
"""How long a clean stop waits for each name server."""
AGAIN_AFTER_MIN_MS = 100.0
AGAIN_AFTER_MAX_MS = 2_000.0
REFUSED_AGAIN_MS = 1_000.0
"""How soon to ask again who refused, or did not know this slave's master."""
OUT_BYTES_MAX = 32 << 20
HA_PORT_ABOVE = 1
"""RocketMQ's haListenPort stands so far above listenPort; in dledger mode nobody listens there."""

NameServerAddress = tuple[str, int]

log = logging.getLogger("shaketable.node")


@dataclass(frozen=True, slots=True)
class Standing:
    """What of the broker is looked at to see whether it has to register anew.

    `broker_id` is MASTER_ID for the leader that serves, None for whom the group does not know
    (yet, or any more): clients would read from it what is old. `topics_version` changes
    whenever a topic does.
    """

    broker_id: int | None
    term: int
    topics_version: int


class Registration:
    """One broker's registrations. `look` is cheap; `topics` returns all the broker has now."""

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        look: Callable[[], Standing],
        topics: Callable[[], Iterable[TopicConfig]],
        learn: Callable[[Mapping[str, str]], bool] = lambda _: True,
    ) -> None:
        self._config = config
        self._clock = clock
        self._look = look
        self._topics = topics
        self.learn = learn
        """Told what a name server answers: where the master is. False: ask again soon."""
        self._address = f"{config.host}:{config.listen_port}"
        self._opaque = count(1)
        self._body: bytes | None = None
        self._since_ms = clock.wall_ms()
        self.standing = look()
        self.changed = trio.Event()
        """Set, and replaced by another, when the standing changes."""

    def notice(self) -> None:
        """Look whether role or topics changed; to be called after whatever may change them."""
        standing = self._look()
        if standing == self.standing:
            return
        self.standing = standing
        self._since_ms = self._clock.wall_ms()
        self._body = None
        self.changed.set()
        self.changed = trio.Event()

    async def run(self) -> None:
        """Stay registered with every name server until cancelled; then unregister."""
        async with trio.open_nursery() as nursery:
            for address in self._config.name_servers:
                nursery.start_soon(self._stay_registered, address)

    async def _stay_registered(self, address: NameServerAddress) -> None:
        pause_ms = AGAIN_AFTER_MIN_MS
        is_lost = False
        while True:
            talk = _Talk(self, self._clock, address, self._config.register_interval_ms)
            try:
                why = await talk.hold()
            except (OSError, UnicodeError) as error:  # no name at all is a UnicodeError
                why = str(error)
            if talk.has_answered:
                pause_ms = AGAIN_AFTER_MIN_MS
            if talk.has_answered or not is_lost:  # and not each time that it is still dead
                log.warning("event=name_server_lost name_server=%s:%d error=%r", *address, why)
                is_lost = True
            await sleep(self._clock, pause_ms)
            pause_ms = min(pause_ms * 2, AGAIN_AFTER_MAX_MS)

    # ---- what is said -----------------------------------------------------------------

    def register_request(self, broker_id: int) -> Command:
        """Return the registration as of now. Raises CommandError for what cannot be written."""
        config, standing = self._config, self.standing
        native = config.native
        ha_port = native.ha_port if native else config.listen_port + HA_PORT_ABOVE
        if self._body is None:
            # The raft term as state version: a leader of the past takes nobody's place.
            version = DataVersion(standing.term, self._since_ms, standing.topics_version)
            self._body = encode_register_body(self._topics(), version)
        header = RegisterBrokerHeader(
            broker_name=config.broker_name,
            broker_addr=self._address,
            cluster_name=config.cluster,
            broker_id=broker_id,
            ha_server_addr=f"{config.host}:{ha_port}",
            body_crc32=body_crc32(self._body),
        )
        return self._request(RequestCode.REGISTER_BROKER, header.to_ext(), self._body)

    def unregister_request(self, broker_id: int) -> Command:
        """Return the request that takes this broker, registered by that id, out of the routes."""
        config = self._config
        header = BrokerHeader(config.broker_name, self._address, config.cluster, broker_id)
        return self._request(RequestCode.UNREGISTER_BROKER, header.to_ext())

    def _request(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        return Command(code, next(self._opaque) & 0x7FFFFFFF, ext=ext, body=body)


class _Talk:
    """One connection to one name server, from connecting until it is lost."""

    def __init__(
        self, registration: Registration, clock: Clock, address: NameServerAddress, interval_ms: int
    ) -> None:
        self._registration = registration
        self._clock = clock
        self._address = address
        self._interval_ms = interval_ms
        self._name = f"{address[0]}:{address[1]}"
        self._why = "it closed the connection"
        self._asked = 0
        self._answer: Command | None = None
        self._answered = trio.Event()
        self._said: tuple[object, ...] = ()
        self.has_answered = False
        self._is_enough = True
        self.registered_as: int | None = None
        """The id by which the name server knows the broker, if it does."""

    async def hold(self) -> str:
        """Connect, register again and again; return why that ended. Raises OSError.

        Where it is cancelled, the broker unregisters.
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
                self._why = await self._register_again_and_again(link)
                nursery.cancel_scope.cancel()
            is_stopped = False
        finally:
            if is_stopped and self.registered_as is not None:
                await self._unregister(stream, self.registered_as)
            link.close()
        return self._why

    def _within(self, timeout_ms: float) -> AbstractContextManager[trio.CancelScope]:
        return self._clock.move_on_at(self._clock.now_ms() + timeout_ms)

    async def _register_again_and_again(self, link: Link) -> str:
        """Register when something changed, and now and then; return what went wrong."""
        while True:
            changed, standing = self._registration.changed, self._registration.standing
            try:
                request = self._request(standing.broker_id)
                data = None if request is None else encode_command(request)
            except (CommandError, FrameError) as error:
                log.error("event=not_registered error=%s", error)  # noqa: TRY400 - one line
                request = data = None
            pause_ms = float(self._interval_ms)
            if request is not None and data is not None:
                answer = await self._ask(link, request.opaque, data)
                if answer is None:
                    return f"no answer within {ANSWER_TIMEOUT_MS:g} ms"
                self._note(answer, standing)
                if answer.code != ResponseCode.SUCCESS or not self._is_enough:
                    pause_ms = REFUSED_AGAIN_MS
            with self._within(pause_ms):
                await changed.wait()

    def _request(self, broker_id: int | None) -> Command | None:
        """Return what is to be said now; None if that is nothing."""
        if broker_id is not None:
            return self._registration.register_request(broker_id)
        if self.registered_as is not None:
            return self._registration.unregister_request(self.registered_as)
        return None

    async def _ask(self, link: Link, opaque: int, data: bytes) -> Command | None:
        """Send one request and return its answer; None where none came in time."""
        self._asked, self._answer, self._answered = opaque, None, trio.Event()
        if link.send(data):
            with self._within(ANSWER_TIMEOUT_MS):
                await self._answered.wait()
        return self._answer

    def _note(self, answer: Command, standing: Standing) -> None:
        """Remember how the broker is known there, and log what is new of an answer."""
        self.has_answered = True
        is_done = answer.code == ResponseCode.SUCCESS
        self.registered_as = standing.broker_id if is_done else None
        self._is_enough = not is_done or self._registration.learn(answer.ext)
        said = (answer.code, answer.remark, standing.broker_id, standing.term)
        if said == self._said:
            return
        self._said = said
        broker_id = "-" if standing.broker_id is None else standing.broker_id
        if is_done:
            log.info(
                "event=registered name_server=%s broker_id=%s term=%d",
                self._name,
                broker_id,
                standing.term,
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
                if command.is_response and command.opaque == self._asked:
                    self._answer = command
                    self._answered.set()

        try:
            await link.read(on_frames)
        except (OSError, trio.ClosedResourceError, FrameError, CommandError) as error:
            self._why = str(error) or self._why
        scope.cancel()

    async def _unregister(self, stream: trio.SocketStream, broker_id: int) -> None:
        """Say that this broker goes, and wait a moment for it to be heard."""
        data = encode_command(self._registration.unregister_request(broker_id))
        with self._within(UNREGISTER_TIMEOUT_MS) as scope:
            scope.shield = True
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.send_all(data)
                await stream.receive_some(1)  # an answer of whatever kind
