"""Planted bugs in what a leader may do: serve reads, change members, transfer leadership."""

from __future__ import annotations

from shaketable.system.mutants import Hunt, Mutant
from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.leadership import Leadership
from shaketable.system.raft.protocol import NotLeaderError, RaftConfig, Token
from shaketable.system.raft.read_rounds import ReadRounds
from shaketable.system.raft.transfer import Transfer


class ReadBeforeTermStart(RaftCore):
    """A leader that serves reads before its term's first entry is committed."""

    def read(self, token: Token, now_ms: float) -> None:
        """Start a read, whatever is committed. Raises NotLeaderError, TooManyReadsError."""
        leading = self._leadership
        if leading is None or leading.is_ready:
            super().read(token, now_ms)
            return
        self._now_ms = now_ms
        if leading.reads_waiting >= self.config.reads_waiting_max:
            raise NotLeaderError(self.leader)
        leading.reads.ask(token, self._read_point())


READ_BEFORE_TERM_START = Mutant(
    "read-before-term-start",
    ReadBeforeTermStart,
    about="""
    A new leader serves reads before an entry of its own term is committed.

    Its commit index may be behind that of the leader before, and so is what it serves.

    Source: https://github.com/etcd-io/etcd/issues/7331, fixed by
    https://github.com/etcd-io/etcd/pull/7332; dissertation 6.4.
    """,
)


class _LeaseNeverEnds(ReadRounds):
    """Holds its lease without asking a quorum."""

    __slots__ = ()

    def __init__(self, config: RaftConfig) -> None:
        super().__init__(config)

    def holds_lease(self, now_ms: float) -> bool:
        return True


class StaleRead(RaftCore):
    """A leader that confirms every read at once."""

    reads_type = _LeaseNeverEnds


STALE_READ = Mutant(
    "stale-read",
    StaleRead,
    about="""
    A leader answers reads at once, without asking whether it still leads.

    A leader that was cut off, and replaced without knowing it, serves what has been overtaken.
    DLedger's GET checks neither commitment nor a lease.

    Source: DLedgerServer.handleGet (bug E19), https://github.com/openmessaging/dledger
    (DLedgerServer.java)
    """,
)


class _AllowsAnyChange(Leadership):
    """Checks neither that the term's first entry nor that an earlier change is committed."""

    def change_refusal(self) -> str | None:
        return None


class ChangeBeforeTermStart(RaftCore):
    """A leader that changes the membership at any time."""

    leadership_type = _AllowsAnyChange


CHANGE_BEFORE_TERM_START = Mutant(
    "change-before-term-start",
    ChangeBeforeTermStart,
    about="""
    A new leader may change the membership before an entry of its own term is committed.

    Two leaders' changes can then be in force whose majorities share no voter, and both commit.

    Source: Ongaro, "bug in single-server membership changes", raft-dev, 10 July 2015,
    https://groups.google.com/g/raft-dev/c/t4xj6dJTP6E
    """,
)


class _NeverGivesUp(Transfer):
    """Waits for its target without a timeout."""

    __slots__ = ()

    def give_up(self, now_ms: float) -> bool:
        """Never give up."""
        del now_ms
        return False


class TransferNeverGivenUp(RaftCore):
    """A leader that never aborts a leadership transfer."""

    transfer_type = _NeverGivesUp


TRANSFER_NEVER_GIVEN_UP = Mutant(
    "transfer-never-given-up",
    TransferNeverGivenUp,
    hunt=Hunt("log", ("transfer", "pause", "partition")),
    about="""
    A handover that does not come about is never given up: the leader refuses all appends.

    Source: https://github.com/hashicorp/raft/pull/493 (leadershipTransferInProgress stayed true
    after a transfer that failed) and https://github.com/hashicorp/raft/issues/696.
    """,
)


PLUGINS = (
    READ_BEFORE_TERM_START,
    STALE_READ,
    CHANGE_BEFORE_TERM_START,
    TRANSFER_NEVER_GIVEN_UP,
)
