"""A group's connections, with somebody told of each message before it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shaketable.system.node.node_parts import Replication
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message


class Overheard:
    """Implements `system.node.node_parts.Replication` over another one."""

    def __init__(self, replication: Replication, on_message: Callable[[Message], None]) -> None:
        self._replication = replication
        self._on_message = on_message

    @property
    def broker_id(self) -> int | None:
        """By which id name servers should know the broker now; None: by none."""
        return self._replication.broker_id

    async def open(self) -> None:
        """Listen. Raises PortInUseError."""
        await self._replication.open()

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""
        await self._replication.run()

    async def stop(self) -> None:
        """Leave the disk in order, behind a `run` that was cancelled."""
        await self._replication.stop()

    def send(self, peer: str, message: Message) -> None:
        """Tell of the message, and send it."""
        self._on_message(message)
        self._replication.send(peer, message)

    def follow(self, membership: Membership) -> None:
        """These are the members from now on."""
        self._replication.follow(membership)

    def learn(self, ext: Mapping[str, str]) -> bool:
        """A name server has answered a registration; False where more has to be known soon."""
        return self._replication.learn(ext)

    def notice(self) -> None:
        """Effects were carried out: look whether there is more to send."""
        self._replication.notice()
