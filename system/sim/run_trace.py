"""What is recorded of every run: its trace, and counts of what happened.

The trace is always a running digest, and optionally a line for each event. The digest mixes only
numbers (time, member, kind, payload), so it is the same in every process whatever PYTHONHASHSEED
is, and is cheap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from shaketable.system.raft.protocol import (
    LeadershipTransfer,
    Message,
    PushRequest,
    PushResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)

Write = Callable[[str], None]


class Trace:
    """The digest of a run, and its lines. `write` is called with each line; None: no lines."""

    __slots__ = ("_numbers", "digest", "write")

    def __init__(self, write: Write | None = None) -> None:
        self.write = write
        self.digest = 0
        self._numbers: dict[str, int] = {}

    def event(self, at_ms: float, name: str, *numbers: float) -> None:
        """Mix an event into the digest. `name` is numbered in the order of first use."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = sum(name.encode()) + 1009 * len(self._numbers)
        self.digest = hash((self.digest, at_ms, number, numbers))

    def line(self, at_ms: float, node: str, text: str) -> None:
        """Write a line; call it only where `write` is set."""
        assert self.write is not None
        self.write(f"{at_ms:12.3f} {node:<4} {text}")

    def final_digest(self, ends: Iterable[str], violation: object) -> str:
        """Return the digest of the whole run as hex digits: its events and how it ended.

        `ends` has a line for each member's final state; `violation` is None if there was none.
        """
        digest = hashlib.blake2b(f"{self.digest & (2**64 - 1):016x}".encode(), digest_size=16)
        for end in ends:
            digest.update(end.encode())
        digest.update(str(violation).encode())
        return digest.hexdigest()


def describe(message: Message) -> str:
    """Return a message as text for a trace line."""
    if isinstance(message, VoteRequest):
        kind = "pre-vote" if message.pre_vote else "vote?"
        return f"{kind} term={message.term} last={message.last_term}/{message.last_index}"
    if isinstance(message, VoteResponse):
        kind = "would" if message.pre_vote else "vote"
        return f"{kind} {'yes' if message.granted else 'no'} term={message.term}"
    if isinstance(message, PushRequest):
        entries = "".join(f" +{b.first_index}..{b.last_index}(t{b.term})" for b in message.batches)
        return (
            f"push term={message.term} prev={message.prev_term}/{message.prev_index}{entries}"
            f" commit={message.commit_index} round={message.read_round}"
        )
    if isinstance(message, PushResponse):
        tail = "" if message.success else f" refused hint={message.hint_term}/{message.hint_index}"
        return (
            f"ack term={message.term} match={message.match_index}{tail} round={message.read_round}"
        )
    if isinstance(message, SnapshotRequest):
        return f"snapshot term={message.term} end={message.snapshot.end.index}"
    assert isinstance(message, LeadershipTransfer)
    return f"take over term={message.term}"


def numbers_of(message: Message) -> tuple[float, ...]:
    """Return the numbers of a message that go into the digest."""
    if isinstance(message, PushRequest):
        last = message.batches[-1].last_index if message.batches else -1
        return message.term, message.prev_index, message.commit_index, last, message.read_round
    if isinstance(message, PushResponse):
        return message.term, message.success, message.match_index, message.read_round
    if isinstance(message, VoteRequest):
        return message.term, message.last_term, message.last_index, message.pre_vote
    if isinstance(message, VoteResponse):
        return message.term, message.granted, message.pre_vote
    if isinstance(message, SnapshotRequest):
        return message.term, message.snapshot.end.index
    return (message.term,)


# Counters of what happened in a simulated run.


@dataclass(slots=True)
class Counts:
    """Count events when they happen, not when they are scheduled. `faults` counts by kind."""

    operations: int = 0
    acknowledged: int = 0
    reads: int = 0
    refused: int = 0
    unknown: int = 0
    elections: int = 0
    truncations: int = 0
    snapshot_installs: int = 0
    compactions: int = 0
    membership_changes: int = 0
    transfers: int = 0
    crashes: int = 0
    restarts: int = 0
    stops: int = 0
    files_damaged: int = 0
    damage_noticed: int = 0
    changes_refused: int = 0
    keys_found: int = 0
    broken: int = 0
    stopped_by_disk: int = 0
    checkpoints: int = 0
    lost_bytes: int = 0
    messages: int = 0
    messages_lost: int = 0
    disk_operations: int = 0
    events: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    states: set[tuple[str, str]] = field(default_factory=set)
    """(role, event) pairs that members went through: the protocol's coverage."""

    def fault(self, kind: str) -> None:
        """Count a fault that took effect."""
        self.faults[kind] = self.faults.get(kind, 0) + 1
