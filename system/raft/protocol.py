"""Words of the consensus core: roles, durable state, messages between nodes, effects.

Source: Raft (Ongaro & Ousterhout 2014) figure 2; Ongaro's dissertation sections 4.2.3
(a vote request does not disturb a live leader), 6.4 (read index) and 9.6 (PreVote);
names after io.openmessaging.storage.dledger (MemberState, PushEntryRequest, ...).
"""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

from system.raft.batch import Batch


class Role(enum.Enum):
    """A member's role (DLedger's MemberState.Role); a CANDIDATE may still be canvassing."""

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
    retransmit_after_ms: float = 400.0  # no acknowledgement for so long: compare again
    push_bytes_max: int = 1 << 20  # entry bytes in one push
    in_flight_bytes_max: int = 8 << 20  # sent to one follower and not acknowledged
    in_flight_pushes_max: int = 256
    tail_bytes_max: int = 16 << 20  # recent entries kept in memory
    reads_waiting_max: int = 10_000


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Ask for a vote, or (`canvass`) whether there would be one: PreVote."""

    term: int
    candidate: str
    last_term: int
    last_index: int
    canvass: bool


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """The answer. `term` is the voter's, or the asked one where a canvass is granted."""

    term: int
    voter: str
    granted: bool
    canvass: bool


@dataclass(frozen=True, slots=True)
class PushRequest:
    """Entries behind (`prev_index`, `prev_term`), or none: a heartbeat or a comparison.

    `batches` are contiguous: one term, one segment file. `read_round` is echoed by the
    follower and proves leadership to the reads that joined that round.
    """

    term: int
    leader: str
    prev_index: int
    prev_term: int
    commit_index: int
    read_round: int
    batches: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class PushResponse:
    """What the follower has. `match_index` counts durable entries equal to the leader's.

    Where `success` is False the logs differ at the request's `prev_index`, echoed here:
    the leader should compare next at or below (`hint_index`, `hint_term`).
    """

    term: int
    follower: str
    success: bool
    match_index: int
    read_round: int
    prev_index: int = -1
    hint_index: int = -1
    hint_term: int = -1


Message = VoteRequest | VoteResponse | PushRequest | PushResponse


@dataclass(frozen=True, slots=True)
class SaveState:
    """Make term and vote durable before anything that depends on them is said."""

    term: int
    voted_for: str | None


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove every entry behind `end_index`, so that none comes back after a crash."""

    end_index: int


@dataclass(frozen=True, slots=True)
class Append:
    """Write a batch at the log's end."""

    batch: Batch


Write = SaveState | Truncate | Append


@dataclass(frozen=True, slots=True)
class RoleChange:
    """The member's role, term or known leader changed."""

    role: Role
    term: int
    leader: str | None


Token = Hashable
"""Names a read for whoever asked; the core only hands it back."""


@dataclass(slots=True)
class Effects:
    """Work for the shell.

    Order contract:

    1. `writes`, in order, then make them durable, then call `synced(write_seq)`;
    2. `messages` may go out at once: what depends on a write is held back by the core;
    3. entries up to `commit_index` may be applied, and the leader may answer appends up
       to `acknowledged_index` (of its own term) and the reads in `reads_ready`;
    4. `role_changes`, in order; a leader that stepped down owes "unknown" to its pending
       appends; `reads_refused` were not served.
    """

    writes: list[Write] = field(default_factory=list)
    write_seq: int = 0
    messages: list[tuple[str, Message]] = field(default_factory=list)
    commit_index: int = -1
    acknowledged_index: int = -1
    reads_ready: list[Token] = field(default_factory=list)
    reads_refused: list[Token] = field(default_factory=list)
    role_changes: list[RoleChange] = field(default_factory=list)


class EntryReader(Protocol):
    """Reads entries that are no longer in memory. `system.store.CommitLog` is one."""

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        """Return entries from `first_index` on: one term, one file, at least one entry."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the log."""
        ...


class NotLeaderError(Exception):
    """This member does not lead (or not yet): nothing was appended, ask `leader`."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"not the leader; the leader is {leader or 'unknown'}")
        self.leader = leader


class TooManyReadsError(Exception):
    """The leader has as many reads waiting as it takes: this one was not served."""


class InvariantError(Exception):
    """A rule of the protocol is broken: the member must stop rather than go on."""
