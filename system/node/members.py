"""A group member's connections with the other members: it listens to them and sends to them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.connections import wire
from shaketable.system.node.connections.link import Link, Reception, dial, guarded, listen
from shaketable.system.node.machine import Clock, sleep
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message
from shaketable.system.remoting.command import CommandError, Frame, FrameError, decode_command
from shaketable.system.remoting.name_server_requests import MASTER_ID

PEER_CONNECTIONS_MAX = 200
UNKNOWN_SENDERS_MAX = 16

log = logging.getLogger("shaketable.node")


class Members:
    """Connections with the other members, and with unknown senders that expect a response.

    `schedule_effects` has the broker's effects carried out soon. `reception` reads the incoming
    connections, and carries out effects after each round.
    """

    def __init__(
        self,
        config: NodeConfig,
        clock: Clock,
        broker: Broker,
        schedule_effects: Callable[[], None],
        reception: Reception,
    ) -> None:
        self._config = config
        self._clock = clock
        self._broker = broker
        self._schedule_effects = schedule_effects
        self._reception = reception
        self._unknown_senders: dict[str, Address] = {}
        self._peers = Peers(clock, self._addresses(broker.core.membership))
        host, port = config.peers[config.self_id]
        self._address = f"{host}:{port}"
        self._listeners: list[trio.SocketListener] = []

    @property
    def broker_id(self) -> int | None:
        """0 for a leader that is ready, the configured id for other members, None otherwise."""
        if self._broker.is_ready:
            return MASTER_ID
        is_member = self._config.self_id in self._broker.core.membership.members
        return self._config.broker_id if is_member else None

    @property
    def slave_port(self) -> int | None:
        """None: a group has followers instead of slaves."""
        return None

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
        """Do nothing: all state is in the log."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message, or drop it if it cannot be encoded or sent."""
        try:
            data = wire.encode(message, self._config.group, self._address)
        except (CommandError, FrameError) as error:  # a snapshot with too many queues
            log.warning("event=message_too_large peer=%s action=dropped error=%s", peer, error)
            return
        self._peers.send(peer, data)

    def follow(self, membership: Membership) -> None:
        """Keep connections with the members of this membership from now on."""
        log.info(
            "event=membership voters=%s learners=%s",
            ",".join(membership.voters) or "-",
            ",".join(membership.learners) or "-",
        )
        for member in membership.members:
            self._unknown_senders.pop(member, None)
        self._peers.keep(self._addresses(membership))

    def on_registered(self, ext: Mapping[str, str]) -> bool:
        """Do nothing: the group itself decides who leads."""
        del ext
        return True

    def effects_applied(self) -> None:
        """Do nothing: the core emits the messages to send."""

    def _addresses(self, membership: Membership) -> dict[str, Address]:
        """Return the addresses of the other members and of unknown senders."""
        found: dict[str, Address] = {}
        for member in membership.members:
            host, _, port = (membership.address_of(member) or "").rpartition(":")
            named = (host, int(port)) if host else self._config.peers.get(member)
            address = self._config.reach.get(member, named)
            if address is not None and member != self._config.self_id:
                found[member] = address
        return {**self._unknown_senders, **found}

    def _remember_sender(self, sender: str, address: Address | None) -> None:
        """Remember where to respond to a sender that is not in this node's membership.

        It may be a member of a newer configuration that this node has not received yet.
        """
        address = self._config.reach.get(sender, self._config.peers.get(sender, address))
        if address is None or self._unknown_senders.get(sender) == address:
            return
        self._unknown_senders.pop(sender, None)  # one that moved needs no more room
        if len(self._unknown_senders) >= UNKNOWN_SENDERS_MAX:
            del self._unknown_senders[next(iter(self._unknown_senders))]
        self._unknown_senders[sender] = address
        self._peers.keep(self._addresses(self._broker.core.membership))

    async def _serve(self, stream: trio.SocketStream) -> None:
        def on_frames(frames: list[Frame]) -> None:
            now_ms = self._clock.now_ms()
            broker = self._broker
            self._schedule_effects()  # first: messages before a bad frame have effects, too
            for frame in frames:
                command = decode_command(frame)
                message = wire.decode(command, self._config.group)
                wire.check_terms(message, broker.core.term)
                sender = wire.sender_of(message)
                if sender == self._config.self_id:
                    raise CommandError(f"a message from {sender!r}, which is this member itself")
                if sender not in broker.core.membership.members:
                    self._remember_sender(sender, wire.address_of(command))
                broker.receive(message, now_ms)

        await self._reception.read(Link(stream.socket, 0), on_frames)


# Outgoing connections: one to each other member, used only to send.
#
# They follow the group's membership. Raft tolerates lost messages (the core retries), so messages
# to a member that is not connected, or whose buffer is full, are dropped.

PEER_OUT_BYTES_MAX = 32 << 20
CONNECT_TIMEOUT_MS = 1000.0
UNACKNOWLEDGED_MAX_MS = 3000
"""How long sent bytes may stay unacknowledged before the connection is replaced. TCP's own backoff
grows so long that the end of a long partition would be noticed only minutes later."""
RECONNECT_AFTER_MIN_MS = 50.0
RECONNECT_AFTER_MAX_MS = 500.0

Address = tuple[str, int]
"""(host, port) of a member's DLedger port."""


class Peers:
    """Sends to the other members by id. `keep` changes who they are."""

    def __init__(self, clock: Clock, addresses: Mapping[str, Address]) -> None:
        self._clock = clock
        self._addresses = dict(addresses)
        self._links: dict[str, Link] = {}
        self._scopes: dict[str, tuple[Address, trio.CancelScope]] = {}
        self._changed = trio.Event()

    def keep(self, addresses: Mapping[str, Address]) -> None:
        """Keep connections with exactly these members from now on."""
        if dict(addresses) != self._addresses:
            self._addresses = dict(addresses)
            self._changed.set()

    def send(self, peer: str, data: bytes) -> None:
        """Send one frame, or drop it if there is no connection or its buffer is full."""
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
                except (OSError, UnicodeError) as error:  # an invalid host name raises UnicodeError
                    log.debug("event=peer_lost peer=%s error=%r", peer, str(error))
                await sleep(self._clock, pause_ms)
                pause_ms = min(pause_ms * 2, RECONNECT_AFTER_MAX_MS)

    async def _serve_connection(self, peer: str, address: Address) -> bool:
        """Connect and send until the connection breaks; return whether it was ever open."""
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
        """Return when the other side closes: it never sends anything on this connection."""
        try:
            while await sock.recv(1024):
                pass
        except OSError:
            return
