"""The interfaces between a broker and its log: the core that keeps it, and the log's format.

`system.raft.core.RaftCore` is a member of a DLedger group,
`system.master_slave.core.MasterSlaveCore` keeps a plain commit log. Everything in the broker but
`mode` is the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from shaketable.system.broker.consume_queue import Queue
from shaketable.system.raft.ledger import Ledger, LogView
from shaketable.system.raft.membership import Change, Membership
from shaketable.system.raft.protocol import Batch, Effects, LogEnd, Message, Role, Snapshot, Token
from shaketable.system.store.entry import EntryBuilder, MessageTable, iter_dispatches, message_table


class Core(Protocol):
    """Keeps the log, knows what is committed, and decides who may append.

    `RaftCore` documents each of these. A core without a group has one term and no members, and
    refuses what only a group can do.
    """

    member: str
    term: int
    role: Role
    leader: str | None
    membership: Membership

    @property
    def log(self) -> LogView:
        """The log's start, end and recent entries."""

    @property
    def ledger(self) -> Ledger:
        """The log with its durable and committed indexes."""

    @property
    def is_ready(self) -> bool:
        """Whether it accepts appends and confirms reads."""

    @property
    def needs_term_start(self) -> bool:
        """Whether this member leads a new term that still needs its first entry."""

    @property
    def learner_to_promote(self) -> str | None:
        """A learner that has caught up, if any."""

    @property
    def transferee(self) -> str | None:
        """The target of a leadership transfer under way, if any."""

    @property
    def deadline_ms(self) -> float:
        """When to call `tick` next, at the latest."""

    @property
    def snapshot_from(self) -> int:
        """The lowest index at which a snapshot can end; -1: at any."""
        ...

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the index of the entry that set the membership at `index`, and the membership."""

    def tick(self, now_ms: float) -> None:
        """Advance the time."""

    def receive(self, message: Message, now_ms: float) -> None:
        """Handle one message from another member."""

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Append encoded entries to the log, or raise and change nothing."""

    def read(self, token: Token, now_ms: float) -> None:
        """Start a linearizable read. Raises NotLeaderError, TooManyReadsError."""

    def plan_change(self, change: Change) -> Membership:
        """Return the membership to append. Raises NotLeaderError, MembershipError."""

    def transfer(self, target: str, now_ms: float) -> None:
        """Transfer the leadership. Raises NotLeaderError, TransferError."""

    def resign(self, now_ms: float) -> None:
        """Transfer the leadership, if this member leads and another voter can take it."""

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the entries up to the snapshot's end by the snapshot."""

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """Note that the disk is full, or has room again."""

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """Note that all writes up to `write_seq` are carried out.

        In a group they are then as durable as its acknowledgement policy requires, in a plain
        log only in the page cache.
        """

    def take(self) -> Effects:
        """Return the effects since the last call."""


# The format: how messages are stored, as DLedger entries or one after the other.

Dispatch = tuple[Queue, int, int, int, int, int, bytes]
"""Queue, offset, message position and size, tags code, store time in ms, properties."""


class Builder(Protocol):
    """Encodes messages to append to the log (`system.store.entry.EntryBuilder`)."""

    end: LogEnd

    def add(  # noqa: PLR0913 - a stored message has that many fields
        self,
        topic: bytes,
        queue_id: int,
        queue_offset: int,
        body: bytes | memoryview,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = 0,
        born_host: bytes = bytes(8),
        store_ms: int = 0,
        reconsume_times: int = 0,
    ) -> int:
        """Add one message; return its byte position. Raises EntryTooLarge."""

    def add_membership(self, membership: Membership, queue_offset: int, store_ms: int) -> int:
        """Add the entry that sets a membership; return its byte position."""

    def take(self) -> list[Batch]:
        """Return the batches added since the last call."""


def no_table(data: bytes, position: int, count: int) -> MessageTable | None:
    """Return None: messages of this format are dispatched one by one."""
    return None


@dataclass(frozen=True, slots=True)
class LogFormat:
    """Writes and reads a log's messages.

    Attributes:
        new_builder: takes the log's end, the term, the data files' size and the store host.
        dispatches: iterates over the messages in verified bytes that start at a position.
        may_skip: queue offsets need not start at 0 nor be contiguous, since no quorum agreed
            on them.
        table: decodes `count` messages by column, None where that does not pay off.
    """

    new_builder: Callable[[LogEnd, int, int, bytes], Builder]
    dispatches: Callable[[bytes, int], Iterator[Dispatch]]
    may_skip: bool = False
    table: Callable[[bytes, int, int], MessageTable | None] = no_table


DLEDGER_FORMAT = LogFormat(EntryBuilder, iter_dispatches, table=message_table)
"""DLedger entries, each with a header. Queues have no gaps: every entry is agreed on."""
