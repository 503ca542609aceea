"""What of a node differs by how its log is kept: a group's member, or a broker without a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shaketable.system.broker.expiry import DataFile
from shaketable.system.node.connections.reception import Reception
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Message, Write
from shaketable.system.store.log_writer import WritableLog


class WriteQueue(Protocol):
    """Carries out the core's writes (`system.node.flusher.Flusher`)."""

    def add(self, writes: Sequence[Write], write_seq: int) -> None:
        """Queue writes; the last one has number `write_seq`."""

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is carried out."""

    async def until_durable(self) -> None:
        """Wait until everything added so far is carried out, and on the disk."""

    async def run(self) -> None:
        """Carry out writes until cancelled. Raises DiskFailed."""


class Replication(Protocol):
    """The node's connections with the others that hold its log (`system.node.members.Members`)."""

    @property
    def broker_id(self) -> int | None:
        """By which id name servers should know the broker now; None: by none."""

    async def open(self) -> None:
        """Listen. Raises PortInUseError."""

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""

    async def stop(self) -> None:
        """Leave the disk in order, behind a `run` that was cancelled."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message of the core's to another member."""

    def follow(self, membership: Membership) -> None:
        """These are the members from now on."""

    def learn(self, ext: Mapping[str, str]) -> bool:
        """A name server has answered a registration; False where more has to be known soon."""

    def notice(self) -> None:
        """Effects were carried out: look whether there is more to send."""


class FullFiles(Protocol):
    """Finds what may expire (`system.node.disks.data_files.DataFiles`)."""

    def until(self, index: int) -> list[DataFile]:
        """Return the full files in front of `index`, oldest first."""


@dataclass(frozen=True, slots=True)
class WriteHooks:
    """Whom a write queue tells what.

    `on_synced(write_seq)` that writes are carried out, `on_disk_full(is_full)` that there is no
    room, or is again; `before_install()` is awaited before the log is replaced.
    """

    on_synced: Callable[[int], None]
    on_disk_full: Callable[[bool], None]
    before_install: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts.

    `new_replication` is given what has effects carried out, and what reads the node's connections.
    """

    commit_log: WritableLog
    data_files: FullFiles
    new_write_queue: Callable[[WriteHooks], WriteQueue]
    new_replication: Callable[[Callable[[], None], Reception], Replication]
