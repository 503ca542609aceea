"""A group of cores on a table: every message, sync and tick happens when the test says so."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

from system.raft.batch import Batch
from system.raft.core import RaftCore
from system.raft.log_view import LogView
from system.raft.protocol import (
    Append,
    Message,
    PushRequest,
    PushResponse,
    RaftConfig,
    Role,
    SaveState,
    Truncate,
    VoteRequest,
    VoteResponse,
    Write,
)

ENTRY = struct.Struct(">iiqqqiiii")
ENTRY_BYTES = 64


def batch_of(first_index: int, count: int, term: int, position: int, mark: int = 0) -> Batch:
    """Entries that carry their header and a mark in the body, 64 bytes each."""
    data = b"".join(
        ENTRY.pack(1, ENTRY_BYTES, first_index + i, term, position + i * ENTRY_BYTES, 0, 0, 0, 16)
        + b"%016d" % mark
        for i in range(count)
    )
    return Batch(first_index, count, term, position, data)


class Storage:
    """What one member's disk holds, and what was written but is not durable yet."""

    def __init__(self) -> None:
        self.term = 0
        self.voted_for: str | None = None
        self.entries: list[bytes] = []
        self.unsynced: deque[tuple[int, Write]] = deque()
        self._written: list[bytes] = []  # with what is not durable yet, for reading back

    def write(self, seq: int, write: Write) -> None:
        self.unsynced.append((seq, write))
        self._apply(write, self._written)

    def sync(self, seq: int) -> None:
        while self.unsynced and self.unsynced[0][0] <= seq:
            _, write = self.unsynced.popleft()
            if isinstance(write, SaveState):
                self.term, self.voted_for = write.term, write.voted_for
            self._apply(write, self.entries)

    def lose_unsynced(self) -> None:
        self.unsynced.clear()
        self._written = list(self.entries)

    def _apply(self, write: Write, entries: list[bytes]) -> None:
        if isinstance(write, Truncate):
            del entries[write.end_index + 1 :]
        elif isinstance(write, Append):
            data = write.batch.data
            assert write.batch.first_index == len(entries), "a hole in the log"
            entries.extend(data[at : at + ENTRY_BYTES] for at in range(0, len(data), ENTRY_BYTES))

    def spans(self) -> list[tuple[int, int]]:
        spans: list[tuple[int, int]] = []
        for index, entry in enumerate(self.entries):
            term = ENTRY.unpack_from(entry)[3]
            if not spans or spans[-1][1] != term:
                spans.append((index, term))
        return spans

    def read_entries(self, first_index: int, bytes_max: int) -> Batch:
        term = ENTRY.unpack_from(self._written[first_index])[3]
        count = 0
        while (
            first_index + count < len(self._written)
            and ENTRY.unpack_from(self._written[first_index + count])[3] == term
            and (count == 0 or (count + 1) * ENTRY_BYTES <= bytes_max)
        ):
            count += 1
        data = b"".join(self._written[first_index : first_index + count])
        return Batch(first_index, count, term, first_index * ENTRY_BYTES, data)

    def read(self, position: int, size: int) -> bytes:
        return b"".join(self._written)[position : position + size]


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
        self.disks = {name: Storage() for name in self.names}
        self.cores: dict[str, RaftCore] = {}
        self.network: list[tuple[str, str, Message]] = []
        self.cut: set[tuple[str, str]] = set()
        self.slow_disks: set[str] = set()
        self.write_seq: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.reads: list[tuple[str, object, str]] = []
        self.leaders: dict[int, str] = {}
        self.marks = 0
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        disk = self.disks[name]
        log = LogView(disk, disk.spans(), len(disk.entries) - 1, len(disk.entries) * ENTRY_BYTES,
                      self.config.tail_bytes_max)  # fmt: skip
        ordinal = self.names.index(name)
        self.cores[name] = self.core_type(
            name,
            [peer for peer in self.names if peer != name],
            log,
            term=disk.term,
            voted_for=disk.voted_for,
            # No dice: each member has its own timeout, in the order of their names.
            uniform_ms=lambda low, high: low + (high - low) * ordinal / 10,
            now_ms=self.now_ms,
            config=self.config,
        )
        self.write_seq[name] = 0
        self.pump(name)

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
        self.cores[name].synced(self.write_seq[name])
        if pump:
            self.pump(name)

    def append(self, name: str, count: int, *, pump: bool = True) -> None:
        core = self.cores[name]
        self.marks += 1
        log = core.log
        batch = batch_of(log.end_index + 1, count, core.term, log.end_position, self.marks)
        core.append([batch], self.now_ms)
        if pump:
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


def describe(message: Message) -> str:
    """One line for a message."""
    if isinstance(message, VoteRequest):
        kind = "canvass" if message.canvass else "vote?"
        return f"{kind} term={message.term} last={message.last_term}/{message.last_index}"
    if isinstance(message, VoteResponse):
        kind = "would" if message.canvass else "vote"
        return f"{kind} {'yes' if message.granted else 'no'} term={message.term}"
    if isinstance(message, PushRequest):
        entries = "".join(f" +{b.first_index}..{b.last_index}(t{b.term})" for b in message.batches)
        return (
            f"push term={message.term} prev={message.prev_term}/{message.prev_index}"
            f"{entries} commit={message.commit_index}"
            + (f" round={message.read_round}" if message.read_round else "")
        )
    assert isinstance(message, PushResponse)
    if message.success:
        tail = f"match={message.match_index}"
    else:
        tail = f"refused hint={message.hint_term}/{message.hint_index}"
    return f"ack term={message.term} {tail}" + (
        f" round={message.read_round}" if message.read_round else ""
    )
