"""Log and role of a master-slave broker: the counterpart of `RaftCore` without a group.

There is no election and no quorum. A master accepts appends and serves them as soon as they are in
the page cache (RocketMQ: its mapped memory). A slave accepts only what its master sends, and stays
a slave. So a power loss can lose messages that were served, and slaves can lack messages that the
master served: RocketMQ's master-slave modes have these weaknesses, and they are reproduced here.
Source: RocketMQ's CommitLog (asyncPutMessage) and HAService; DLEDGER.md D.2.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from shaketable.system.raft.ledger import Ledger, LogView
from shaketable.system.raft.membership import Change, Membership, MembershipError, MembershipLog
from shaketable.system.raft.protocol import (
    Batch,
    DiskFullError,
    Effects,
    EntryReader,
    LogEnd,
    Message,
    NotLeaderError,
    PendingFullError,
    Role,
    Snapshot,
    Token,
    TransferError,
)
from shaketable.system.store.plain_commit_log import TERM, plain_end

# Configuration of a master-slave broker: its role, and what a send waits for.


class BrokerRole(enum.Enum):
    """RocketMQ's BrokerRole."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True)
class MasterSlaveConfig:
    """The part of RocketMQ's MessageStoreConfig that concerns master-slave replication.

    Times in milliseconds, sizes in bytes. The comments give RocketMQ's names.
    """

    role: BrokerRole = BrokerRole.ASYNC_MASTER  # brokerRole
    is_sync_flush: bool = False  # flushDiskType
    flush_interval_ms: float = 500.0  # flushIntervalCommitLog, with ASYNC_FLUSH
    sync_flush_timeout_ms: float = 5000.0  # syncFlushTimeout
    slave_timeout_ms: float = 3000.0  # slaveTimeout
    slave_behind_bytes_max: int = 256 << 20  # haSlaveFallbehindMax
    transfer_bytes_max: int = 32 << 10  # haTransferBatchSize
    unwritten_bytes_max: int = 64 << 20  # appended, but not yet in the page cache
    tail_bytes_max: int = 16 << 20  # the newest bytes, kept in memory
    reads_waiting_max: int = 10_000

    @property
    def is_master(self) -> bool:
        """Whether the broker accepts messages from clients."""
        return self.role is not BrokerRole.SLAVE


_NO_MEMBERS = Membership(())
TICK_INTERVAL_MS = 50.0
"""How often `tick` is called: timeouts of sends, offsets and heartbeats are checked then."""


class MasterSlaveCore:
    """One broker's log and its role. All of the recovered `log` counts as committed.

    `member` names the broker in responses. `leader` is where a slave redirects clients: the address
    of its master, None until it is known.
    """

    def __init__(
        self, member: str, log: PlainLogView, config: MasterSlaveConfig, *, now_ms: float
    ) -> None:
        self.member = member
        self.config = config
        self.term = TERM
        self.membership = _NO_MEMBERS
        self.role = Role.LEADER if config.is_master else Role.FOLLOWER
        self.leader: str | None = member if config.is_master else None
        self.ledger = Ledger(log, MembershipLog(_NO_MEMBERS, -1, ()))
        self.ledger.commit(log.end_index)
        self.flushed_index = log.end_index
        """The durable index: the log up to here survives a power loss."""
        self._log = log
        self._is_full = False
        self._tick_due_ms = now_ms
        self._effects = Effects()
        self._slaves: dict[int, int] = {}
        self._slaves_position = 0
        self._sent_position = log.end_position

    # ---- interface shared with RaftCore -----------------------------------------------

    @property
    def log(self) -> PlainLogView:
        """The log's first position, end and newest bytes."""
        return self._log

    @property
    def is_ready(self) -> bool:
        """Whether this is a master."""
        return self.role is Role.LEADER

    @property
    def needs_term_start(self) -> bool:
        """False: there are no terms."""
        return False

    @property
    def learner_to_promote(self) -> str | None:
        """None: there are no members."""
        return None

    @property
    def transferee(self) -> str | None:
        """None: there is no leadership transfer."""
        return None

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do next."""
        return self._tick_due_ms

    @property
    def snapshot_from(self) -> int:
        """A broker without a group makes a snapshot anywhere."""
        return -1

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return an empty membership: there is no group."""
        del index
        return -1, _NO_MEMBERS

    def tick(self, now_ms: float) -> None:
        """Set when the next tick is due; the core itself has no timeouts."""
        self._tick_due_ms = now_ms + TICK_INTERVAL_MS

    def receive(self, message: Message, now_ms: float) -> None:
        """Ignore a group's message: there is no group."""

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Master: append encoded messages to the log.

        Raises NotLeaderError on a slave, DiskFullError, and PendingFullError beyond
        `unwritten_bytes_max`. After an error nothing has changed.
        """
        del now_ms
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader)
        if self._is_full:
            raise DiskFullError("the master's disk is full")
        unwritten = self._log.end_index - self.ledger.commit_index
        if unwritten > self.config.unwritten_bytes_max:
            limit = self.config.unwritten_bytes_max
            raise PendingFullError(f"{limit} bytes wait to be written already")
        for batch in batches:
            self.ledger.append(batch)

    def read(self, token: Token, now_ms: float) -> None:
        """Master: let a read see all that is written. Raises NotLeaderError on a slave.

        The read is ready at once: without elections no other broker can have become master.
        """
        del now_ms
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader)
        self._effects.reads_ready.append(token)

    def plan_change(self, change: Change) -> Membership:
        """Raise MembershipError: there is no group."""
        raise MembershipError(f"no group, so no {type(change).__name__}: see dLegerPeers")

    def transfer(self, target: str, now_ms: float) -> None:
        """Raise TransferError: there is no group."""
        raise TransferError(
            f"a master cannot transfer its leadership to {target}: there is no group"
        )

    def resign(self, now_ms: float) -> None:
        """Do nothing: there is no leadership to transfer."""

    def compact(self, snapshot: Snapshot) -> None:
        """Remove the log before `snapshot.end`, where a file starts."""
        self.ledger.compact(snapshot)

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """Note that the disk is full, or has room again: a full master refuses appends."""
        del now_ms
        self._is_full = is_full

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """Note that writes up to `write_seq` are in the page cache: they are served from now on."""
        del now_ms
        if self.ledger.synced(write_seq):
            self.ledger.commit(max(self.ledger.commit_index, self.ledger.durable_index))

    def flushed(self, index: int) -> None:
        """Note that the log is durable up to `index`."""
        self.flushed_index = max(self.flushed_index, index)

    def take(self) -> Effects:
        """Return the effects since the last call, for the shell to carry out."""
        effects, self._effects = self._effects, Effects()
        ledger = self.ledger
        effects.write_seq = ledger.pending.write_seq
        if ledger.has_writes:
            effects.writes = ledger.take_writes()
        effects.commit_index = effects.acknowledged_index = ledger.commit_index
        return effects

    # ---- master side ------------------------------------------------------------------

    @property
    def written_position(self) -> int:
        """The end of what may be served and sent to slaves."""
        return self.ledger.commit_index + 1

    @property
    def slave_count(self) -> int:
        """How many slaves are connected."""
        return len(self._slaves)

    @property
    def slaves_position(self) -> int:
        """The highest position that any slave ever reported (push2SlaveMaxOffset)."""
        return self._slaves_position

    def slave_connected(self, connection: int) -> None:
        """Add a slave's connection."""
        self._slaves[connection] = 0

    @property
    def sent_position(self) -> int:
        """The highest position that a slave can hold: what was recovered or sent to a slave since.

        A slave that reports more has a different log: these bytes never left this master.
        """
        return self._sent_position

    def sent_to_slave(self, position: int) -> None:
        """Note that a slave was sent the log up to `position`."""
        self._sent_position = max(self._sent_position, position)

    def slave_reported(self, connection: int, position: int) -> None:
        """Note up to which position a slave has the log."""
        self._slaves[connection] = position
        self._slaves_position = max(self._slaves_position, position)

    def slave_disconnected(self, connection: int) -> None:
        """Remove a slave's connection."""
        self._slaves.pop(connection, None)

    def is_slave_ok(self, position: int) -> bool:
        """Whether a slave is connected and lags behind `position` little enough to wait for it.

        Source: HAService.isSlaveOK (4.9).
        """
        behind = position - self._slaves_position
        return bool(self._slaves) and behind < self.config.slave_behind_bytes_max

    # ---- slave side -------------------------------------------------------------------

    def copy(self, batch: Batch, now_ms: float) -> None:
        """Slave: append verified bytes that follow the end of the log."""
        del now_ms
        assert self.role is Role.FOLLOWER, "a master has no master"
        self.ledger.append(batch)

    def start_log_at(self, position: int) -> None:
        """Slave with an empty log: start it at `position`, where the master's last file starts."""
        assert self._log.end_position == self._log.start.position, "messages would be lost"
        snapshot = Snapshot(plain_end(position), _NO_MEMBERS, -1, b"")
        self.ledger.install(snapshot)
        self._effects.installed = snapshot

    @property
    def reported_position(self) -> int:
        """The position that a slave reports: flushed with SYNC_FLUSH, else written."""
        return (self.flushed_index if self.config.is_sync_flush else self.ledger.commit_index) + 1

    def status(self) -> dict[str, str]:
        """Return the status fields that only master-slave brokers have."""
        status = {
            "brokerRole": self.config.role.value,
            "flushedOffset": str(self.flushed_index + 1),
        }
        if self.config.is_master:
            status["slaveCount"] = str(self.slave_count)
            status["slavesMaxOffset"] = str(self._slaves_position)
        return status

    def follow(self, master: str | None) -> None:
        """Slave: set the master's address, where clients are redirected."""
        if self.role is Role.FOLLOWER:
            self.leader = master


# The core's view of a master-slave broker's commit log: first position, end and newest bytes.


class PlainLogView(LogView):
    """A log whose indexes are byte positions: see `system.store.plain_commit_log`."""

    def __init__(
        self, reader: EntryReader, begin: LogEnd, end: LogEnd, tail_bytes_max: int = 16 << 20
    ) -> None:
        super().__init__(reader, (), end.index, end.position, tail_bytes_max, start=begin)

    def end(self) -> LogEnd:
        """Return the log's end."""
        return plain_end(self.end_position)

    def read_upto(self, position: int, end_position: int, bytes_max: int) -> bytes:
        """Return bytes of one file from `position` up to `end_position`, at most `bytes_max`.

        May return fewer bytes than exist, but at least one if there is one, and may split a
        message. Raises the reader's error where the log does not hold `position`.
        """
        size = min(bytes_max, end_position - position)
        if size <= 0:
            return b""
        parts = [self._read_prefix(position, size)]
        left = size - len(parts[0])
        while left and parts[-1]:
            position += len(parts[-1])
            parts.append(self.read_some(position, left) if self._is_in_tail(position) else b"")
            left -= len(parts[-1])
        return b"".join(parts)

    def _read_prefix(self, position: int, size: int) -> bytes:
        if self._is_in_tail(position):
            return self.read_some(position, size)
        first = self._tail[0].position if self._tail else self.end_position
        return self._reader.read(position, min(size, first - position))

    def _is_in_tail(self, position: int) -> bool:
        return bool(self._tail) and self._tail[0].position <= position < self.end_position
