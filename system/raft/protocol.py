"""Types of the consensus core: batches, roles, configuration, messages, writes, effects, errors.

Source: Raft (Ongaro & Ousterhout 2014) figure 2; Ongaro's dissertation sections 4.2.3
(a vote request does not disturb a live leader), 6.4 (read index) and 9.6 (PreVote);
names from io.openmessaging.storage.dledger (MemberState, PushEntryRequest, ...).

Messages, writes and effects are msgspec structs: a frozen dataclass takes many times longer to
make.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from shaketable.system.raft.membership import Membership

# Batches of encoded DLedger entries: the unit in which the log is appended, sent and stored.
#
# A batch is encoded once, and the same bytes go to the file and to every follower. The
# core reads nothing inside it but entry sizes and the last chainCrc.
#
# Source: DLedger's DLedgerEntry (48-byte header); DLEDGER.md section B.3.

ENTRY_HEADER_BYTES = 48
_CHAIN_CRC_AT_36 = struct.Struct(">36xI").unpack_from
_SIZE_AT_4 = struct.Struct(">4xi").unpack_from


class LogEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of a log: index (-1 for an empty log) and term of its last entry.

    `position` is the byte position after that entry, `chain_crc` its chainCrc as an unsigned
    number, 0 for an empty log. A struct for speed: one is made for each entry.
    """

    index: int = -1
    term: int = -1
    position: int = 0
    chain_crc: int = 0


class Batch(msgspec.Struct, frozen=True):
    """Entries `first_index` .. `last_index` of one term, contiguous in one segment file.

    `position` is the first entry's byte position in the log; `data` is the encoded entries,
    header and body, back to back. `memberships` lists (index, membership) of each entry that
    changes the membership; the code that makes a batch (builder, wire decoder, store reader)
    finds them by the entries' channel.
    """

    first_index: int
    count: int
    term: int
    position: int
    data: bytes
    memberships: tuple[tuple[int, Membership], ...] = ()

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return self.first_index + self.count - 1

    @property
    def end_position(self) -> int:
        """Byte position after the last entry."""
        return self.position + len(self.data)

    def last_chain_crc(self) -> int:
        """Return the chainCrc in the last entry's header, unsigned."""
        at = 0
        for _ in range(self.count - 1):
            at += _SIZE_AT_4(self.data, at)[0]
        chain_crc: int = _CHAIN_CRC_AT_36(self.data, at)[0]
        return chain_crc

    def after(self, index: int) -> Batch:
        """Return the part of the batch after entry `index`, at least one entry."""
        skip = index + 1 - self.first_index
        assert 0 <= skip < self.count, f"{index} leaves nothing of {self}"
        at = 0
        for _ in range(skip):
            at += _SIZE_AT_4(self.data, at)[0]
        kept = tuple(change for change in self.memberships if change[0] > index)
        return Batch(
            index + 1, self.count - skip, self.term, self.position + at, self.data[at:], kept
        )

    def until(self, index: int) -> Batch:
        """Return the part of the batch up to and including entry `index`, at least one entry."""
        keep = index + 1 - self.first_index
        assert 0 < keep <= self.count, f"{index} leaves nothing of {self}"
        at = 0
        for _ in range(keep):
            at += _SIZE_AT_4(self.data, at)[0]
        kept = tuple(change for change in self.memberships if change[0] <= index)
        return Batch(self.first_index, keep, self.term, self.position, self.data[:at], kept)


# Roles, configuration, messages, writes and effects.


class Role(enum.Enum):
    """A member's role (DLedger's MemberState.Role); a CANDIDATE may still be in pre-vote."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Timing and limits of the core. Times in milliseconds of the node's own clock."""

    election_timeout_min_ms: float = 250.0
    election_timeout_max_ms: float = 500.0
    heartbeat_interval_ms: float = 50.0
    quorum_silence_max_ms: float = 500.0  # CheckQuorum: the leader steps down past this
    retransmit_after_ms: float = 400.0  # no acknowledgement for this long: compare again
    snapshot_retransmit_ms: float = 2000.0  # minimum time between two sends of a snapshot
    push_bytes_max: int = 1 << 20  # entry bytes in one push
    in_flight_bytes_max: int = 8 << 20  # sent to one follower and not acknowledged
    in_flight_pushes_max: int = 256
    small_pushes_max: int = 1  # with so many in flight, another push needs full_push_bytes
    full_push_bytes: int = 64 << 10
    tail_bytes_max: int = 16 << 20  # recent entries kept in memory
    uncommitted_bytes_max: int = 64 << 20  # appended by this leader, not yet committed
    reads_waiting_max: int = 10_000
    lease_ms: float = 0.0  # 0: reads by read index; else a lease of this length, by clocks
    clock_drift_max: float = 0.1  # by this fraction a leader shortens its lease
    transfer_timeout_ms: float = 1000.0  # DLedger's leadershipTransferWaitTimeout
    transfer_lag_entries_max: int = 1000  # DLedger's maxLeadershipTransferWaitIndex
    transfer_retry_ms: float = 30_000.0  # after a failed transfer the leader avoids that target;
    # an operator may still ask for it
    preferred_check_ms: float = 1000.0
    preferred_leaders: tuple[str, ...] = ()  # DLedger's preferredLeaderIds, best first
    promote_lag_entries_max: int = 100  # a learner with at most this lag becomes a voter
    disk_stall_max_ms: float = 2000.0  # with a slower write a member neither leads nor campaigns

    def __post_init__(self) -> None:
        """Refuse unsafe values. Raises ValueError with a one-line message.

        A lease must end before a follower that last heard the leader may vote for another.
        """
        if self.lease_ms >= self.election_timeout_min_ms:
            raise ValueError(
                f"lease_ms {self.lease_ms} must be below "
                f"election_timeout_min_ms {self.election_timeout_min_ms}"
            )
        if not 0 <= self.clock_drift_max < 1:
            raise ValueError(f"clock_drift_max {self.clock_drift_max} must be in 0 .. 1")


class VoteRequest(msgspec.Struct, frozen=True):
    """Ask for a vote, or (`pre_vote`) whether one would be granted (PreVote)."""

    term: int
    candidate: str
    last_term: int
    last_index: int
    pre_vote: bool
    is_transfer: bool = False
    """The leader itself asked for this election, so voters that still hear it may vote."""


class VoteResponse(msgspec.Struct, frozen=True):
    """The voter's response. `term` is the voter's, or the requested one in a granted pre-vote."""

    term: int
    voter: str
    granted: bool
    pre_vote: bool


class PushRequest(msgspec.Struct, frozen=True):
    """Entries after (`prev_index`, `prev_term`); without any, a heartbeat or a comparison.

    This is Raft's AppendEntries. `batches` are contiguous: one term, one segment file. The
    follower echoes `read_round`, which proves leadership for the reads of that round.
    """

    term: int
    leader: str
    prev_index: int
    prev_term: int
    commit_index: int
    read_round: int
    batches: tuple[Batch, ...] = ()
    prev_position: int = -1
    """Byte position after entry `prev_index`; -1 if the follower need not compare it."""


class PushResponse(msgspec.Struct, frozen=True):
    """The follower's state. Entries up to `match_index` are durable and equal to the leader's.

    If `success` is False, the logs differ at the request's `prev_index`, echoed here, and
    the leader should compare next at or before (`hint_index`, `hint_term`).
    """

    term: int
    follower: str
    success: bool
    match_index: int
    read_round: int
    prev_index: int = -1
    hint_index: int = -1
    hint_term: int = -1


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Replaces all entries up to and including `end.index` (DESIGN.md decision 3).

    `membership` was in force at `end`, from entry `membership_index` (-1: the configuration).
    `state` is the broker's: each queue's next offset, topics, group offsets.
    """

    end: LogEnd
    membership: Membership
    membership_index: int
    state: bytes


class SnapshotRequest(msgspec.Struct, frozen=True):
    """The leader's snapshot, for a follower that needs entries the leader has compacted.

    The follower responds with a PushResponse whose `match_index` is at least
    `snapshot.end.index` once the snapshot is durable. Source: Raft section 7 (InstallSnapshot);
    DLedger 0.4.0's INSTALL_SNAPSHOT.
    """

    term: int
    leader: str
    snapshot: Snapshot
    read_round: int


class LeadershipTransfer(msgspec.Struct, frozen=True):
    """The leader asks a follower that holds the whole log to start an election at once.

    Source: Ongaro's dissertation section 3.10 (TimeoutNow); DLedger's LEADERSHIP_TRANSFER.
    """

    term: int
    leader: str


Message = (
    VoteRequest | VoteResponse | PushRequest | PushResponse | SnapshotRequest | LeadershipTransfer
)


class SaveState(msgspec.Struct, frozen=True):
    """Make term and vote durable before any message that depends on them is sent."""

    term: int
    voted_for: str | None


class Truncate(msgspec.Struct, frozen=True):
    """Remove every entry after `end_index`, so that none reappears after a crash."""

    end_index: int


class Append(msgspec.Struct, frozen=True):
    """Append a batch to the log."""

    batch: Batch


class Compact(msgspec.Struct, frozen=True):
    """Replace the entries up to `snapshot.end` by the snapshot.

    Data files wholly before it may be removed once the snapshot is durable.
    """

    snapshot: Snapshot


class Install(msgspec.Struct, frozen=True):
    """Replace the whole log by `snapshot`: no old entry reappears after a crash."""

    snapshot: Snapshot


Write = SaveState | Truncate | Append | Compact | Install


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The member's role, term or known leader changed."""

    role: Role
    term: int
    leader: str | None


Token = Hashable
"""Identifies a read for the caller; the core only returns it."""


class Effects(msgspec.Struct):
    """Work for the shell.

    Order contract:

    1. `writes`, in order, then make them durable, then call `synced(write_seq)`;
    2. `messages` may be sent at once: the core holds back those that depend on a write;
    3. entries up to `commit_index` may be applied, and the leader may answer appends up
       to `acknowledged_index` (of its own term) and the reads in `reads_ready`;
    4. `role_changes`, in order; when a leader steps down, the outcome of its pending appends
       is unknown and must be reported so; `reads_refused` were not served.
    """

    writes: list[Write] = []
    write_seq: int = 0
    messages: list[tuple[str, Message]] = []
    commit_index: int = -1
    acknowledged_index: int = -1
    reads_ready: list[Token] = []
    reads_refused: list[Token] = []
    role_changes: list[RoleChange] = []
    installed: Snapshot | None = None
    """A snapshot that was installed: the applied state must be replaced by it."""
    membership: Membership | None = None
    """The membership in force, if it is new to the shell: whom to keep connections with."""


class EntryReader(Protocol):
    """Reads entries that are no longer in memory. `store.commit_log.CommitLog` is one."""

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Return entries from `first_index` on: one term, one file, at least one entry."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the log."""
        ...


class NotLeaderError(Exception):
    """This member does not lead, or is not ready yet: nothing was appended, ask `leader`."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class TransferError(Exception):
    """A leadership transfer, or an append during one, was refused: nothing changed."""


class DiskFullError(Exception):
    """The member's disk is full: nothing was appended (DLedger's DISK_FULL)."""


class PendingFullError(Exception):
    """Too many uncommitted bytes: nothing was appended (DLedger's LEADER_PENDING_FULL)."""


class CompactedError(Exception):
    """The requested entries are not after the log's start: a snapshot replaced them."""


class TooManyReadsError(Exception):
    """The limit of waiting reads is reached: this one was not served."""


class InvariantError(Exception):
    """A safety property of the protocol is broken: the member must stop."""
