"""A DLedger group's member among the others: whom it listens to, answers and sends to."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.node.clock import Clock, sleep
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections import wire
from shaketable.system.node.connections.link import Link, dial
from shaketable.system.node.connections.reception import Reception
from shaketable.system.node.connections.serving import guarded, listen
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message
from shaketable.system.remoting.command import CommandError, decode_command
from shaketable.system.remoting.frame import Frame, FrameError
from shaketable.system.remoting.route_bodies import MASTER_ID

PEER_CONNECTIONS_MAX = 200
STRANGERS_MAX = 16

log = logging.getLogger("shaketable.node")


class Members:
    """The other members, and strangers that want an answer.

    `touch` has effects carried out; `reception` reads what they send, and then carries out itself.
    """

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        broker: Broker,
        touch: Callable[[], None],
        reception: Reception,
    ) -> None:
        self._config = config
        self._clock = clock
        self._broker = broker
        self._touch = touch
        self._reception = reception
        self._strangers: dict[str, Address] = {}
        self._peers = Peers(clock, self._addresses(broker.core.membership))
        host, port = config.peers[config.self_id]
        self._address = f"{host}:{port}"
        self._listeners: list[trio.SocketListener] = []

    @property
    def broker_id(self) -> int | None:
        """0 for the leader that serves, its own id for another member, None for a stranger."""
        if self._broker.is_ready:
            return MASTER_ID
        is_member = self._config.self_id in self._broker.core.membership.members
        return self._config.broker_id if is_member else None

    async def open(self) -> None:
        """Listen for the peers. Raises PortInUseError."""
        config = self._config
        port = config.peers[config.self_id][1]
        self._listeners = await listen(config.host, port, "its peers")
        log.info("event=listening node=%s peers=%s:%d", config.self_id, config.host, port)

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._peers.run)
            await trio.serve_listeners(guarded(self._serve, PEER_CONNECTIONS_MAX), self._listeners)

    async def stop(self) -> None:
        """Do nothing: the log has everything."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message, or drop it where it cannot be sent."""
        try:
            data = wire.encode(message, self._config.group, self._address)
        except (CommandError, FrameError) as error:  # a snapshot of too many queues
            log.warning("event=message_too_large peer=%s action=dropped error=%s", peer, error)
            return
        self._peers.send(peer, data)

    def follow(self, membership: Membership) -> None:
        """Keep connections with these members from now on."""
        log.info(
            "event=membership voters=%s learners=%s",
            ",".join(membership.voters) or "-",
            ",".join(membership.learners) or "-",
        )
        for member in membership.members:
            self._strangers.pop(member, None)
        self._peers.keep(self._addresses(membership))

    def learn(self, ext: Mapping[str, str]) -> bool:
        """Learn nothing: the group says who leads."""
        del ext
        return True

    def notice(self) -> None:
        """Do nothing: the core says what to send."""

    def _addresses(self, membership: Membership) -> dict[str, Address]:
        """Where the other members are, and the strangers that want an answer."""
        found: dict[str, Address] = {}
        for member in membership.members:
            host, _, port = (membership.address_of(member) or "").rpartition(":")
            named = (host, int(port)) if host else self._config.peers.get(member)
            address = self._config.reach.get(member, named)
            if address is not None and member != self._config.self_id:
                found[member] = address
        return {**self._strangers, **found}

    def _meet(self, sender: str, address: Address | None) -> None:
        """Remember where to answer somebody whom the membership does not name (yet)."""
        address = self._config.reach.get(sender, self._config.peers.get(sender, address))
        if address is None or self._strangers.get(sender) == address:
            return
        if len(self._strangers) >= STRANGERS_MAX:
            del self._strangers[next(iter(self._strangers))]
        self._strangers[sender] = address
        self._peers.keep(self._addresses(self._broker.core.membership))

    async def _serve(self, stream: trio.SocketStream) -> None:
        def on_frames(frames: list[Frame]) -> None:
            now_ms = self._clock.now_ms()
            broker = self._broker
            self._touch()  # also for those in front of a bad one
            for frame in frames:
                command = decode_command(frame)
                message = wire.decode(command, self._config.group)
                wire.refuse_odd_terms(message, broker.core.term)
                sender = wire.sender_of(message)
                if sender == self._config.self_id:
                    raise CommandError(f"a message from {sender!r}, which is this member itself")
                if sender not in broker.core.membership.members:
                    self._meet(sender, wire.address_of(command))
                broker.receive(message, now_ms)

        await self._reception.read(Link(stream.socket, 0), on_frames)


# Connections to the other members: one each, opened here, used to send only.
#
# Whom to keep a connection with follows the group's membership. A lost message is the core's
# business (it compares and sends again), so nothing is queued for a member that is not
# connected, and what does not fit is dropped.

PEER_OUT_BYTES_MAX = 32 << 20
CONNECT_TIMEOUT_MS = 1000.0
UNACKNOWLEDGED_MAX_MS = 3000
"""How long the other machine may leave bytes unacknowledged before we connect anew. By itself TCP
tries more and more seldom, so that the end of a long partition would be noticed minutes later."""
RECONNECT_AFTER_MIN_MS = 50.0
RECONNECT_AFTER_MAX_MS = 500.0

Address = tuple[str, int]
"""(host, port) of a member's DLedger port."""


class Peers:
    """Sends to the other members by id. `keep` says who these are, at any time."""

    def __init__(self, clock: Clock, addresses: Mapping[str, Address]) -> None:
        self._clock = clock
        self._addresses = dict(addresses)
        self._links: dict[str, Link] = {}
        self._scopes: dict[str, tuple[Address, trio.CancelScope]] = {}
        self._changed = trio.Event()

    def keep(self, addresses: Mapping[str, Address]) -> None:
        """Keep connections with these members from now on, and with no others."""
        if dict(addresses) != self._addresses:
            self._addresses = dict(addresses)
            self._changed.set()

    def send(self, peer: str, data: bytes) -> None:
        """Send one frame, or drop it where there is no connection or no room."""
        link = self._links.get(peer)
        if link is not None and not link.send(data):
            log.warning("event=peer_too_slow peer=%s action=dropped bytes=%d", peer, len(data))

    async def run(self) -> None:
        """Keep a connection to each member, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for peer, (address, scope) in list(self._scopes.items()):
                    if self._addresses.get(peer) != address:
                        scope.cancel()
                        del self._scopes[peer]
                for peer, address in self._addresses.items():
                    if peer not in self._scopes:
                        scope = trio.CancelScope()
                        self._scopes[peer] = (address, scope)
                        nursery.start_soon(self._keep_connected, peer, address, scope)
                await self._changed.wait()
                self._changed = trio.Event()

    async def _keep_connected(self, peer: str, address: Address, scope: trio.CancelScope) -> None:
        pause_ms = RECONNECT_AFTER_MIN_MS
        with scope:
            while True:
                try:
                    if await self._serve_connection(peer, address):
                        pause_ms = RECONNECT_AFTER_MIN_MS
                except (OSError, UnicodeError) as error:  # no name at all is a UnicodeError
                    log.debug("event=peer_lost peer=%s error=%r", peer, str(error))
                await sleep(self._clock, pause_ms)
                pause_ms = min(pause_ms * 2, RECONNECT_AFTER_MAX_MS)

    async def _serve_connection(self, peer: str, address: Address) -> bool:
        """Connect and send until the connection breaks; True if it was ever open."""
        with self._clock.move_on_at(self._clock.now_ms() + CONNECT_TIMEOUT_MS) as connecting:
            stream = await dial(*address)
        if connecting.cancelled_caught:
            return False
        link = Link(stream.socket, PEER_OUT_BYTES_MAX)
        stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MAX_MS)
        self._links[peer] = link
        log.info("event=peer_connected peer=%s", peer)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send, link, nursery.cancel_scope)
                await self._watch(stream.socket)
                nursery.cancel_scope.cancel()
        finally:
            if self._links.get(peer) is link:
                del self._links[peer]
            link.close()
        log.info("event=peer_disconnected peer=%s", peer)
        return True

    async def _send(self, link: Link, scope: trio.CancelScope) -> None:
        try:
            await link.write()
        except OSError:
            scope.cancel()

    async def _watch(self, sock: trio.socket.SocketType) -> None:
        """Return when the other side closes: nothing else ever comes on this connection."""
        try:
            while await sock.recv(1024):
                pass
        except OSError:
            return
