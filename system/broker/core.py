"""What a broker needs of whatever keeps its log: a raft member, or a native commit log.

`system.raft.core.RaftCore` is one, `system.native.core.NativeCore` the other. Everything in the
broker but `mode` is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from shaketable.system.raft.batch import Batch
from shaketable.system.raft.ledger import Ledger
from shaketable.system.raft.log_view import LogView
from shaketable.system.raft.membership import Membership
from shaketable.system.raft.membership_log import Change
from shaketable.system.raft.protocol import Effects, Message, Role, Snapshot, Token


class Core(Protocol):
    """Keeps the log, says up to where it stands, and who may append to it.

    See `RaftCore` for what each of these means; a core that is not a raft member's has one term,
    no members, and refuses what only a group can do.
    """

    member: str
    term: int
    role: Role
    leader: str | None
    membership: Membership

    @property
    def log(self) -> LogView:
        """The log's begin, end and recent entries."""

    @property
    def ledger(self) -> Ledger:
        """The log with what is durable and what is committed of it."""

    @property
    def is_ready(self) -> bool:
        """Whether appends are taken and reads confirmed."""

    @property
    def needs_term_start(self) -> bool:
        """Whether a term has begun that has to be given its first entry."""

    @property
    def learner_to_promote(self) -> str | None:
        """A learner that has caught up."""

    @property
    def transferee(self) -> str | None:
        """To whom the leadership is being handed."""

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do next."""

    def membership_at(self, index: int) -> tuple[int, Membership]:
        """Return the membership in force at an entry, and the index that brought it."""

    def tick(self, now_ms: float) -> None:
        """Let time pass."""

    def receive(self, message: Message, now_ms: float) -> None:
        """Take one message from another member."""

    def append(self, batches: Sequence[Batch], now_ms: float) -> None:
        """Put encoded entries at the log's end, or raise and change nothing."""

    def read(self, token: Token, now_ms: float) -> None:
        """Ask for a linearizable read. Raises NotLeaderError, TooManyReadsError."""

    def plan_change(self, change: Change) -> Membership:
        """Return the membership to append. Raises NotLeaderError, MembershipError."""

    def transfer(self, target: str, now_ms: float) -> None:
        """Hand the leadership over. Raises NotLeaderError, TransferError."""

    def resign(self, now_ms: float) -> None:
        """Hand the leadership over, if there is one and somebody to take it."""

    def compact(self, snapshot: Snapshot) -> None:
        """Let a snapshot stand for the entries up to its end."""

    def disk_full(self, is_full: bool, now_ms: float) -> None:
        """The disk has no room for entries, or has it again."""

    def synced(self, write_seq: int, now_ms: float | None = None) -> None:
        """All writes up to `write_seq` are carried out."""

    def take(self) -> Effects:
        """Return what is to be done since the last call."""
