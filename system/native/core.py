"""Keeps a native commit log for a broker: what `RaftCore` is to a member of a group.

There is no election and no quorum. A master takes appends and serves them as soon as its operating
system has them (RocketMQ: from its mapped memory); a slave takes what its master sends and never
anything else, and stays a slave. What is served may be lost with the power, and what a master has
served may be missing on its slaves: these are the weaknesses of RocketMQ's native modes, and kept.
Source: RocketMQ's CommitLog (asyncPutMessage) and HAService; DLEDGER.md D.2.
"""

from __future__ import annotations

from collections.abc import Sequence

from shaketable.system.native.config import NativeConfig
from shaketable.system.raft.batch import Batch, LogEnd
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.membership_log import Change, MembershipLog
from shaketable.system.raft.protocol import (
    DiskFullError,
    Effects,
    EntryReader,
    MembershipError,
    Message,
    NotLeaderError,
    PendingFullError,
    Role,
    Snapshot,
    Token,
    TransferError,
)
from shaketable.system.store.native.batch import TERM, native_end

_NOBODY = Membership(())
TICK_INTERVAL_MS = 50.0
"""How often `tick` is called: sends' time-outs, offsets' and heartbeats' expiry hang on it."""


class NativeCore:
    """One broker's log and its role. `log` is what was recovered; all of it counts.

    `member` names the broker in answers; `leader` is where a slave sends clients to, its master's
    address, once somebody has said it.
    """

    def __init__(
        self, member: str, log: NativeLogView, config: NativeConfig, *, now_ms: float
    ) -> None:
        self.member = member
        self.config = config
        self.term = TERM
        self.membership = _NOBODY
        self.role = Role.LEADER if config.is_master else Role.FOLLOWER
        self.leader: str | None = member if config.is_master else None
        self.ledger = Ledger(log, MembershipLog(_NOBODY, -1, ()))
        self.ledger.commit(log.end_index)
        self.flushed_index = log.end_index
        """Up to where the log is on the disk, whatever power does."""
        self._log = log
        self._is_full = False
        self._tick_due_ms = now_ms
        self._effects = Effects()
        self._slaves: dict[int, int] = {}
        self._slaves_position = 0
        self._sent_position = log.end_position

    # ---- what the broker asks ---------------------------------------------------------

    @property
    def log(self) -> NativeLogView:
        """The log's begin, end and newest bytes."""
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
        """None: nobody takes a master's place."""
        return None

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do next."""
        return self._tick_due_ms

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return that there are no members."""
        del index
        return -1, _NOBODY

    def tick(self, now_ms: float) -> None:
        """Let time pass."""
        self._tick_due_ms = now_ms + TICK_INTERVAL_MS

    def receive(self, message: Message, now_ms: float) -> None:
        """Pass a group's message over: there is no group."""

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Master: put encoded messages at the log's end.

        Raises NotLeaderError at a slave, DiskFullError, PendingFullError past
        `unwritten_bytes_max`; then nothing has changed.
        """
        del now_ms  # nothing here is late
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
        """Master: let a read see all that is written. Raises NotLeaderError at a slave."""
        del now_ms
        if self.role is not Role.LEADER:
            raise NotLeaderError(self.leader)
        self._effects.reads_ready.append(token)

    def plan_change(self, change: Change) -> Membership:
        """Refuse. Raises MembershipError."""
        raise MembershipError(f"no group, so no {type(change).__name__}: see dLegerPeers")

    def transfer(self, target: str, now_ms: float) -> None:
        """Refuse. Raises TransferError."""
        raise TransferError(f"a master cannot hand over to {target}: there is no group")

    def resign(self, now_ms: float) -> None:
        """Nobody takes a master's place."""

    def compact(self, snapshot: Snapshot) -> None:
        """Let the log begin at `snapshot.end`, the begin of a file."""
        self.ledger.compact(snapshot)

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """The disk has no room for messages, or has it again."""
        del now_ms
        self._is_full = is_full

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """The operating system has all writes up to `write_seq`: they are served from now on."""
        del now_ms
        if self.ledger.synced(write_seq):
            self.ledger.commit(max(self.ledger.commit_index, self.ledger.durable_index))

    def flushed(self, index: int) -> None:
        """The disk has the log up to `index`."""
        self.flushed_index = max(self.flushed_index, index)

    def take(self) -> Effects:
        """Return what is to be done since the last call."""
        effects, self._effects = self._effects, Effects()
        ledger = self.ledger
        effects.write_seq = ledger.pending.write_seq
        if ledger.has_writes:
            effects.writes = ledger.take_writes()
        effects.commit_index = effects.acknowledged_index = ledger.commit_index
        return effects

    # ---- a master and its slaves ------------------------------------------------------

    @property
    def written_position(self) -> int:
        """Up to where the log may be served and sent to slaves."""
        return self.ledger.commit_index + 1

    @property
    def slave_count(self) -> int:
        """How many slaves are connected."""
        return len(self._slaves)

    @property
    def slaves_position(self) -> int:
        """The highest position that a slave ever said to have (push2SlaveMaxOffset)."""
        return self._slaves_position

    def slave_connected(self, connection: int) -> None:
        """A slave has come."""
        self._slaves[connection] = 0

    @property
    def sent_position(self) -> int:
        """Up to where slaves can have this log: what it recovered, and what any was sent since.

        A slave that has more of it has another log, whatever its length.
        """
        return self._sent_position

    def slave_sent(self, position: int) -> None:
        """A slave is sent the log up to `position`."""
        self._sent_position = max(self._sent_position, position)

    def slave_reported(self, connection: int, position: int) -> None:
        """A slave says up to where it has the log."""
        self._slaves[connection] = position
        self._slaves_position = max(self._slaves_position, position)

    def slave_gone(self, connection: int) -> None:
        """A slave's connection is closed."""
        self._slaves.pop(connection, None)

    def is_slave_ok(self, position: int) -> bool:
        """Whether a slave is there, and close enough behind `position` to be waited for.

        Source: HAService.isSlaveOK (4.9).
        """
        behind = position - self._slaves_position
        return bool(self._slaves) and behind < self.config.slave_behind_bytes_max

    # ---- a slave and its master -------------------------------------------------------

    def copy(self, batch: Batch, now_ms: float) -> None:
        """Slave: take verified bytes that follow the log."""
        del now_ms
        assert self.role is Role.FOLLOWER, "a master has no master"
        self.ledger.append(batch)

    def begin_at(self, position: int) -> None:
        """Slave without messages: let the log begin where the master's last file does."""
        assert self._log.end_position == self._log.start.position, "messages would be lost"
        snapshot = Snapshot(native_end(position), _NOBODY, -1, b"")
        self.ledger.install(snapshot)
        self._effects.installed = snapshot

    @property
    def reported_position(self) -> int:
        """Up to where a slave says to have the log: what its flushDiskType calls written."""
        return (self.flushed_index if self.config.is_sync_flush else self.ledger.commit_index) + 1

    def status(self) -> dict[str, str]:
        """Return what operators are told beside what any broker tells."""
        status = {
            "brokerRole": self.config.role.value,
            "flushedOffset": str(self.flushed_index + 1),
        }
        if self.config.is_master:
            status["slaveCount"] = str(self.slave_count)
            status["slavesMaxOffset"] = str(self._slaves_position)
        return status

    def follow(self, master: str | None) -> None:
        """Slave: this is where clients are sent to."""
        if self.role is Role.FOLLOWER:
            self.leader = master


# What the core knows of a native commit log: begin, end, and the newest bytes.


class NativeLogView(LogView):
    """A log whose index is the byte's: see `system.store.native.batch`."""

    def __init__(
        self, reader: EntryReader, begin: LogEnd, end: LogEnd, tail_bytes_max: int = 16 << 20
    ) -> None:
        super().__init__(reader, (), end.index, end.position, tail_bytes_max, start=begin)

    def end(self) -> LogEnd:
        """Return the log's end."""
        return native_end(self.end_position)

    def read_upto(self, position: int, end_position: int, bytes_max: int) -> bytes:
        """Return bytes from `position` up to `end_position`, at most `bytes_max`, of one file.

        Perhaps fewer than there are, at least one where there is one: messages need not be
        whole. Raises the reader's error where the log does not hold that place.
        """
        size = min(bytes_max, end_position - position)
        if size <= 0:
            return b""
        parts = [self._some(position, size)]
        left = size - len(parts[0])
        while left and parts[-1]:
            position += len(parts[-1])
            parts.append(self.read_some(position, left) if self._is_in_tail(position) else b"")
            left -= len(parts[-1])
        return b"".join(parts)

    def _some(self, position: int, size: int) -> bytes:
        if self._is_in_tail(position):
            return self.read_some(position, size)
        first = self._tail[0].position if self._tail else self.end_position
        return self._reader.read(position, min(size, first - position))

    def _is_in_tail(self, position: int) -> bool:
        return bool(self._tail) and self._tail[0].position <= position < self.end_position
