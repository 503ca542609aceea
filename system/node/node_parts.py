"""The parts of a node that differ between a DLedger group's member and a master-slave broker."""

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
        """Queue writes with consecutive numbers, of which the last is `write_seq`."""

    @property
    def is_idle(self) -> bool:
        """Whether everything that was added is carried out."""

    async def until_durable(self) -> None:
        """Wait until everything added so far is durable."""

    async def run(self) -> None:
        """Carry out writes until cancelled. Raises DiskFailed."""


class Replication(Protocol):
    """Connections with the other replicas of the log (`system.node.members.Members`)."""

    @property
    def broker_id(self) -> int | None:
        """The broker id to register at name servers now, None for none."""

    async def open(self) -> None:
        """Listen. Raises PortInUseError."""

    async def run(self) -> None:
        """Serve and keep connections until cancelled."""

    async def stop(self) -> None:
        """Save what is pending, after `run` was cancelled."""

    def send(self, peer: str, message: Message) -> None:
        """Send a message from the core to another member."""

    def follow(self, membership: Membership) -> None:
        """Use this membership from now on."""

    def on_registered(self, ext: Mapping[str, str]) -> bool:
        """Handle a name server's response; return False to register again soon."""

    def effects_applied(self) -> None:
        """Check whether there is more to send, after effects were carried out."""


class FullFiles(Protocol):
    """Finds data files that may expire (`system.node.disks.data_files.DataFiles`)."""

    def full_files(self, index: int) -> list[DataFile]:
        """Return the full files that end at or before `index`, oldest first."""


@dataclass(frozen=True, slots=True)
class WriteHooks:
    """The callbacks of a write queue.

    `on_synced(write_seq)`: writes up to this one are carried out. `on_disk_full(is_full)`: the disk
    became full, or has room again. `before_install()`: awaited before a snapshot replaces the log.
    """

    on_synced: Callable[[int], None]
    on_disk_full: Callable[[bool], None]
    before_install: Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of one node.

    `new_replication` is called with the function that schedules effects and the node's `Reception`.
    """

    commit_log: WritableLog
    data_files: FullFiles
    new_write_queue: Callable[[WriteHooks], WriteQueue]
    new_replication: Callable[[Callable[[], None], Reception], Replication]
