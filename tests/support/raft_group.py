"""A group of cores on a table: every message, sync and tick happens when the test says so."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from shaketable.system.raft.core import RaftCore
from shaketable.system.raft.ledger import LogView
from shaketable.system.raft.membership import AddLearner, Change, Membership, Promote, Remove
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    Install,
    LeadershipTransfer,
    LogEnd,
    Message,
    PushRequest,
    RaftConfig,
    Role,
    SaveState,
    Snapshot,
    SnapshotRequest,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

ENTRY = struct.Struct(">iiqqqiiii")
ENTRY_BYTES = 64
CHANNEL_AT_32 = struct.Struct(">32xi").unpack_from

_MEMBERSHIPS: list[Membership] = []
"""What an entry of channel 1 says: the mark in its body is the place in this list."""


def batch_of(
    first_index: int,
    count: int,
    term: int,
    position: int,
    mark: int = 0,
    membership: Membership | None = None,
) -> Batch:
    """Entries that carry their header and a mark in the body, 64 bytes each."""
    channel = 0
    memberships: tuple[tuple[int, Membership], ...] = ()
    if membership is not None:
        assert count == 1
        channel, mark = 1, len(_MEMBERSHIPS)
        _MEMBERSHIPS.append(membership)
        memberships = ((first_index, membership),)
    data = b"".join(
        ENTRY.pack(
            1, ENTRY_BYTES, first_index + i, term, position + i * ENTRY_BYTES, channel, 0, 0, 16
        )
        + b"%016d" % mark
        for i in range(count)
    )
    return Batch(first_index, count, term, position, data, memberships)


def membership_in(entry: bytes) -> Membership | None:
    """The membership that an entry of `batch_of` brings."""
    return _MEMBERSHIPS[int(entry[48:])] if CHANNEL_AT_32(entry)[0] == 1 else None


class Image:
    """A log: where it begins, what stands for what was in front, the entries behind."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = snapshot
        self.start = snapshot.end if snapshot else LogEnd()
        self.entries: list[bytes] = []

    def copy(self) -> Image:
        other = Image(self.snapshot)
        other.entries = list(self.entries)
        return other

    @property
    def end_index(self) -> int:
        return self.start.index + len(self.entries)

    def apply(self, write: Write) -> None:
        if isinstance(write, Truncate):
            assert write.end_index >= self.start.index, "a truncation below the begin"
            del self.entries[write.end_index - self.start.index :]
        elif isinstance(write, Append):
            data = write.batch.data
            assert write.batch.first_index == self.end_index + 1, "a hole in the log"
            self.entries.extend(
                data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES)
            )
        elif isinstance(write, Compact):
            end = write.snapshot.end
            assert self.start.index < end.index <= self.end_index, "compacts what is not there"
            assert end == self.end_at(end.index), "the snapshot's end is not the log's"
            del self.entries[: end.index - self.start.index]
            self.snapshot, self.start = write.snapshot, end
        elif isinstance(write, Install):
            self.snapshot, self.start = write.snapshot, write.snapshot.end
            self.entries.clear()

    def entry(self, index: int) -> bytes:
        assert index > self.start.index, f"entry {index} is gone"
        return self.entries[index - self.start.index - 1]

    def position(self, index: int) -> int:
        return self.start.position + (index - self.start.index - 1) * ENTRY_BYTES

    def end_at(self, index: int) -> LogEnd:
        """The place behind entry `index`."""
        if index == self.start.index:
            return self.start
        return LogEnd(index, ENTRY.unpack_from(self.entry(index))[3], self.position(index + 1))

    def spans(self) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        for number, entry in enumerate(self.entries):
            term = ENTRY.unpack_from(entry)[3]
            if not spans or spans[-1][1] != term:
                spans.append((self.start.index + 1 + number, term))
        return spans

    def memberships(self) -> list[tuple[int, Membership]]:
        found = []
        for number, entry in enumerate(self.entries):
            if (membership := membership_in(entry)) is not None:
                found.append((self.start.index + 1 + number, membership))
        return found


class Storage:
    """What one member's disk holds, and what was written but is not durable yet."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.term = 0
        self.voted_for: str | None = None
        self.image = Image(snapshot)
        self.unsynced: deque[tuple[int, Write]] = deque()
        self._written = self.image.copy()  # with what is not durable yet, for reading back

    def write(self, seq: int, write: Write) -> None:
        self.unsynced.append((seq, write))
        self._written.apply(write)

    def sync(self, seq: int) -> None:
        while self.unsynced and self.unsynced[0][0] <= seq:
            _, write = self.unsynced.popleft()
            if isinstance(write, SaveState):
                self.term, self.voted_for = write.term, write.voted_for
            self.image.apply(write)

    def lose_unsynced(self) -> None:
        self.unsynced.clear()
        self._written = self.image.copy()

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        image = self._written
        entries = [image.entry(first_index)]
        term = ENTRY.unpack_from(entries[0])[3]
        while first_index + len(entries) <= image.end_index:
            entry = image.entry(first_index + len(entries))
            too_many = (len(entries) + 1) * ENTRY_BYTES > bytes_max
            if too_many or ENTRY.unpack_from(entry)[3] != term:
                break
            entries.append(entry)
        memberships = tuple(
            (first_index + number, membership)
            for number, entry in enumerate(entries)
            if (membership := membership_in(entry)) is not None
        )
        position = image.position(first_index)
        return Batch(first_index, len(entries), term, position, b"".join(entries), memberships)

    def read(self, position: int, size: int) -> bytes:
        at = position - self._written.start.position
        assert at >= 0, "read below the begin"
        return b"".join(self._written.entries)[at : at + size]


class Group:
    """Members m0.. with their disks; messages wait in `network` until delivered."""

    def __init__(
        self,
        size: int,
        *,
        core: Callable[..., RaftCore] = RaftCore,
        config: RaftConfig | None = None,
    ) -> None:
        self.names = [f"n{i}" for i in range(size)]
        self.core_type = core
        self.config = config or RaftConfig()
        self.now_ms = 0.0
        self.bootstrap = Membership(tuple(self.names))
        self.disks = {name: Storage() for name in self.names}
        self.cores: dict[str, RaftCore] = {}
        self.network: list[tuple[str, str, Message]] = []
        self.cut: set[tuple[str, str]] = set()
        self.slow_disks: set[str] = set()
        self.write_seq: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.reads: list[tuple[str, object, str]] = []
        self.leaders: dict[int, str] = {}
        self.installed: list[tuple[str, Snapshot]] = []
        self.joiners: set[str] = set()
        self.marks = 0
        for name in self.names:
            self.start(name)

    def start(self, name: str, *, joins: bool = False) -> None:
        """Start a member from its disk; one that `joins` knows of no membership yet."""
        disk = self.disks[name]
        if joins:
            self.joiners.add(name)
        image = disk.image
        log = LogView(
            disk,
            image.spans(),
            image.end_index,
            image.position(image.end_index + 1),
            self.config.tail_bytes_max,
            start=image.start,
        )
        ordinal = self.names.index(name)
        self.cores[name] = self.core_type(
            name,
            (),
            log,
            term=disk.term,
            voted_for=disk.voted_for,
            # No dice: each member has its own timeout, in the order of their names.
            uniform_ms=lambda low, high: low + (high - low) * ordinal / 10,
            now_ms=self.now_ms,
            config=self.config,
            membership=Membership(()) if name in self.joiners else self.bootstrap,
            memberships=image.memberships(),
            snapshot=image.snapshot,
        )
        self.write_seq[name] = 0
        self.pump(name)

    def join(self, name: str) -> None:
        """Start a new member with an empty disk; the group knows nothing of it yet."""
        self.names.append(name)
        self.disks[name] = Storage()
        self.start(name, joins=True)

    def crash(self, name: str) -> None:
        del self.cores[name]
        self.disks[name].lose_unsynced()
        self.network = [m for m in self.network if name not in m[:2]]

    def pump(self, name: str) -> None:
        """Carry out a member's effects; sync at once unless its disk is slow."""
        while True:
            core = self.cores[name]
            if core.needs_term_start:
                self.append(name, 1, pump=False)
            effects = core.take()
            disk = self.disks[name]
            for number, write in enumerate(effects.writes):
                disk.write(effects.write_seq - len(effects.writes) + number + 1, write)
            self.network.extend((name, peer, message) for peer, message in effects.messages)
            self.acknowledged[name] = effects.acknowledged_index
            self.reads.extend((name, token, "ready") for token in effects.reads_ready)
            self.reads.extend((name, token, "refused") for token in effects.reads_refused)
            if effects.installed is not None:
                self.installed.append((name, effects.installed))
            for change in effects.role_changes:
                if change.role is Role.LEADER:
                    other = self.leaders.setdefault(change.term, name)
                    assert other == name, f"{other} and {name} both lead term {change.term}"
            self.write_seq[name] = effects.write_seq
            if not effects.writes or name in self.slow_disks:
                return
            self.sync(name, pump=False)

    def sync(self, name: str, *, pump: bool = True) -> None:
        self.disks[name].sync(self.write_seq[name])
        self.cores[name].synced(self.write_seq[name], self.now_ms)
        if pump:
            self.pump(name)

    def append(
        self, name: str, count: int, *, pump: bool = True, membership: Membership | None = None
    ) -> None:
        core = self.cores[name]
        self.marks += 1
        log = core.log
        batch = batch_of(
            log.end_index + 1, count, core.term, log.end_position, self.marks, membership
        )
        core.append([batch], self.now_ms)
        if pump:
            self.pump(name)

    def change(self, name: str, change: Change) -> None:
        """Let the leader `name` make a membership change."""
        self.append(name, 1, membership=self.cores[name].plan_change(change))

    def transfer(self, name: str, target: str) -> None:
        self.cores[name].transfer(target, self.now_ms)
        self.pump(name)

    def leave(self, name: str) -> None:
        self.cores[name].resign(self.now_ms)
        self.pump(name)

    def compact(self, name: str, index: int, state: bytes = b"") -> None:
        """Let a snapshot stand for a member's entries up to `index`."""
        core = self.cores[name]
        membership_index, membership = core.membership_at(index)
        position = core.log.start.position + (index - core.log.start.index) * ENTRY_BYTES
        end = LogEnd(index, core.log.term_at(index), position)
        core.compact(Snapshot(end, membership, membership_index, state))
        self.pump(name)

    def disk_full(self, name: str, *, is_full: bool) -> None:
        self.cores[name].disk_full(is_full, self.now_ms)
        self.pump(name)

    def read(self, name: str, token: object) -> None:
        self.cores[name].read(token, self.now_ms)
        self.pump(name)

    def tick(self, name: str) -> None:
        self.cores[name].tick(self.now_ms)
        self.pump(name)

    def deliver(self, position: int = 0) -> tuple[str, str, Message] | None:
        """Deliver one waiting message; returns it, or None if it was lost on the way."""
        source, target, message = self.network.pop(position)
        if (source, target) in self.cut or target not in self.cores:
            return None
        self.cores[target].receive(message, self.now_ms)
        self.pump(target)
        return source, target, message


CHANGES: dict[str, Callable[[str], Change]] = {
    "add": lambda member: AddLearner(member, f"{member}:1"),
    "promote": Promote,
    "remove": Remove,
}


def describe(message: Message) -> str:
    """One line for a message."""
    if isinstance(message, VoteRequest):
        kind = "pre-vote" if message.pre_vote else "vote?"
        urged = " urged" if message.is_transfer else ""
        return f"{kind} term={message.term} last={message.last_term}/{message.last_index}{urged}"
    if isinstance(message, VoteResponse):
        kind = "would" if message.pre_vote else "vote"
        return f"{kind} {'yes' if message.granted else 'no'} term={message.term}"
    if isinstance(message, PushRequest):
        entries = "".join(f" +{b.first_index}..{b.last_index}(t{b.term})" for b in message.batches)
        at = f"@{message.prev_position}" if message.prev_position > 0 else ""
        return (
            f"push term={message.term} prev={message.prev_term}/{message.prev_index}{at}"
            f"{entries} commit={message.commit_index}" + _round(message.read_round)
        )
    if isinstance(message, SnapshotRequest):
        end = message.snapshot.end
        return f"snapshot term={message.term} end={end.term}/{end.index}@{end.position}" + _round(
            message.read_round
        )
    if isinstance(message, LeadershipTransfer):
        return f"stand! term={message.term}"
    if message.success:
        tail = f"match={message.match_index}"
    else:
        tail = f"refused hint={message.hint_term}/{message.hint_index}"
    return f"ack term={message.term} {tail}" + _round(message.read_round)


def _round(number: int) -> str:
    return f" round={number}" if number else ""
