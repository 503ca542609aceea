"""A DLedger group's member among the others: whom it listens to, answers and sends to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import trio

from shaketable.system.broker.broker import Broker
from shaketable.system.node import wire
from shaketable.system.node.clock import Clock
from shaketable.system.node.config import NodeConfig
from shaketable.system.node.link import Link
from shaketable.system.node.peers import Address, Peers
from shaketable.system.node.reception import Reception
from shaketable.system.node.serving import guarded, listen
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
