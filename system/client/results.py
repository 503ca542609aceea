"""Results of client calls."""

from __future__ import annotations

from dataclasses import dataclass

from shaketable.system.remoting.requests import MetadataResponse
from shaketable.system.store.message import Message


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send."""

    message_id: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of a batch send: ids in order, contiguous offsets from `first_offset` on."""

    message_ids: tuple[str, ...]
    queue_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class PullResult:
    """Messages from the requested offset on, perhaps none, and the queue's range."""

    messages: tuple[Message, ...]
    next_offset: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The state of one member (DLedger's METADATA, and more).

    Entries up to `committed_index` are committed and durable on it; its pulls see those up to
    `applied_index`. `addresses` pairs members with their DLedger "host:port", if the log has it.
    Entries below `first_index` are replaced by a snapshot. `wall_ms` (since 1970) and
    `monotonic_ms` are its clocks' readings, None if the member does not report them.
    """

    member: str
    role: str
    term: int
    leader: str | None
    committed_index: int
    end_index: int
    applied_index: int = -1
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    membership_index: int = -1
    first_index: int = 0
    snapshot_index: int = -1
    wall_ms: int | None = None
    monotonic_ms: int | None = None


def metadata_from(fields: MetadataResponse) -> Metadata:
    """Return the response's fields, with its lists parsed."""
    pairs = [pair.partition("-") for pair in _listed(fields.peers)]
    return Metadata(
        fields.self_id,
        fields.role,
        fields.term,
        fields.leader_id or None,
        fields.committed_index,
        fields.ledger_end_index,
        fields.applied_index,
        _listed(fields.voters),
        _listed(fields.learners),
        tuple((member, address) for member, _, address in pairs),
        fields.membership_index,
        fields.begin_index,
        fields.snapshot_index,
        fields.wall_ms,
        fields.monotonic_ms,
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(";") if part)
