"""A scripted life of a commit log, and what it must and may hold at each moment of it."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from msgspec import structs

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Batch,
    Compact,
    Install,
    LogEnd,
    SaveState,
    Snapshot,
    Truncate,
    Write,
)
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.commit_log import CommitLog, HardState
from shaketable.system.store.entry import DamagedEntry, EntryBuilder
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.message import Message, encode_message

FILE_BYTES, INDEX_FILE_BYTES = 1024, 256
ROOT, PLAIN = "/store", "/store/commitlog"
PLAIN_BLANK = struct.pack(">i", 0xCBD43194 - (1 << 32))


class BrokenPromise(AssertionError):  # noqa: N818 - a finding
    """A restart found less than was promised, more than was written, or did not succeed."""


@dataclass(frozen=True)
class Promise:
    """What a log must hold now, and what it may hold."""

    start: LogEnd
    snapshot: Snapshot | None = None
    entries: tuple[bytes, ...] = ()
    """Behind the begin these may stand, and nothing else."""
    synced: int = -1
    """Entries up to here must be there."""
    state: HardState = field(default_factory=HardState)


@dataclass
class Script:
    """A life of a log. Before each operation of the disk, `may` lists what a crash may leave."""

    disk: SimDisk
    log_type: type[CommitLog] = CommitLog
    writer_type: type[LogWriter] = LogWriter
    with_plain: bool = True
    may: list[Promise] = field(default_factory=list)
    is_running: bool | None = None
    """Whether the log is open; None while that changes."""
    bodies: int = 0

    def run(self) -> None:
        """Do everything that a log does."""
        self.may = [Promise(LogEnd(position=2 * FILE_BYTES if self.with_plain else 0))]
        self.open()
        if not self.with_plain:
            self.install(LogEnd(-1, -1, 2 * FILE_BYTES, 0))
        self.write(SaveState(1, "n1"))
        self.append(3, 1)
        self.append(1, 1, membership=Membership(("n0", "n1", "n2"), ("n3",)))
        self.mark()
        self.append(6, 1, body_bytes=300)
        self.write(SaveState(2, None))
        self.write(SaveState(2, "n2"))
        self.append(5, 2, body_bytes=60)
        self.checkpoint()
        self.append(4, 2, syncs=False, body_bytes=200)
        self.mark()
        self.truncate(self.log.end.index - 2)
        self.mark()
        self.append(2, 3, membership=Membership(("n0", "n1", "n2", "n3")))
        self.truncate(8)
        self.append(4, 4, body_bytes=250)
        self.mark()
        self.truncate(10)
        self.append(3, 5, body_bytes=30)
        self.compact(5)
        self.append(3, 5, body_bytes=300, syncs=False)
        self.compact(self.log.end.index - 1)
        self.append(1, 5)
        self.compact(self.log.end.index)
        self.compact(self.log.end.index, state=b"the same place, another state")
        self.append(2, 6, membership=Membership(("n0", "n2", "n3")))
        self.close()
        self.open()
        self.install_at_the_end_and_beyond()
        self.mark()
        self.close()

    def install_at_the_end_and_beyond(self) -> None:
        """Install snapshots at every kind of place: the log's own entries, its begin, far ahead."""
        self.append(6, 6, body_bytes=200)
        self.mark()
        self.install(self.log.log_end_at(self.log.end.index - 3))  # the tail behind it fits
        self.append(2, 7)
        self.install(self.log.start)
        self.append(3, 7, body_bytes=400)
        far = LogEnd(self.log.end.index + 40, 7, self.log.end.position + 7 * FILE_BYTES + 11, 99)
        self.install(far)
        self.append(1, 8, body_bytes=700)  # goes to the file behind: nothing stands at the begin
        self.append(5, 8, membership=Membership(("n0", "n1")))
        self.compact(self.log.end.index - 2)
        self.truncate(self.log.start.index)
        self.append(1, 9)
        inside = structs.replace(self.log.end, index=self.log.end.index + 3, chain_crc=7, term=9)
        self.install(
            structs.replace(inside, position=inside.position + 200)
        )  # in the file that is there
        self.append(4, 9, body_bytes=100)

    def open(self) -> None:
        self.is_running = None
        self.log = open_log(self.disk, self.log_type)
        self.writer = self.writer_type(self.log)
        self.is_running = True

    def close(self) -> None:
        self.is_running = None
        self.log.close()
        self.is_running = False

    def sync(self) -> None:
        self.writer.sync()
        self.may = [replace(self.now, synced=self.log.end.index)]

    def mark(self) -> None:
        self.writer.advance_watermark()

    def checkpoint(self) -> None:
        self.log.save_checkpoint(self.log.end.index)

    @property
    def now(self) -> Promise:
        (now,) = self.may
        return now

    def append(
        self,
        count: int,
        term: int,
        *,
        body_bytes: int = 0,
        syncs: bool = True,
        membership: Membership | None = None,
    ) -> None:
        builder = EntryBuilder(self.log.end, term, FILE_BYTES, bytes(8))
        for _ in range(count):
            self.bodies += 1
            builder.add(b"t", 0, 0, b"%06d" % self.bodies + b"\x07" * body_bytes)
        if membership:
            builder.add_membership(membership, 0, 0)
        batches = builder.take()
        pieces = tuple(piece for batch in batches for piece in split(batch))
        self.may = [replace(self.now, entries=self.now.entries + pieces)]
        if syncs:
            self.carry_out([Append(batch) for batch in batches])
            self.may = [replace(self.now, synced=self.log.end.index)]
        else:
            for batch in batches:
                self.log.append(batch)

    def truncate(self, end_index: int) -> None:
        now = replace(self.now, synced=min(self.now.synced, end_index))
        self.may = [now]
        self.carry_out([Truncate(end_index)])
        kept = now.entries[: end_index - now.start.index]
        if kept != now.entries:  # what is cut is cut durably; nothing to cut, nothing synced
            now = replace(now, entries=kept, synced=end_index)
        self.may = [now]

    def compact(self, index: int, state: bytes = b"queues") -> None:
        begin, now = self.log.log_end_at(index), self.now
        snapshot = Snapshot(begin, Membership(("n0", "n1")), -1, state + b" %d" % index)
        left = now.entries[index - now.start.index :]
        after = replace(
            now, start=begin, snapshot=snapshot, entries=left, synced=max(now.synced, index)
        )
        self.may = [now, after]
        self.carry_out([Compact(snapshot)])
        self.may = [after]

    def install(self, end: LogEnd) -> None:
        now = self.now
        if end == now.start:
            now = replace(now, synced=end.index)
        snapshot = Snapshot(end, Membership(("n0", "n1")), -1, b"the leader's %d" % self.bodies)
        after = Promise(end, snapshot, (), end.index, now.state)
        self.may = [now, after]
        self.carry_out([Install(snapshot)])
        self.may = [after]

    def write(self, write: SaveState) -> None:
        after = replace(self.now, state=HardState(write.term, write.voted_for))
        self.may = [self.now, after]
        self.carry_out([write])
        self.may = [after]

    def carry_out(self, writes: list[Write]) -> None:
        assert not self.writer.carry_out(writes), "the disk is not full"


PLAIN_MESSAGES = [
    Message(b"old", 0, number, 0, b"%03d" % number + bytes(150)) for number in range(6)
]


def plain_disk() -> SimDisk:
    """Return a disk with a plain commit log of one full file and one in use, all of it durable."""
    disk = SimDisk()
    put_plain_log(disk, PLAIN_MESSAGES)
    return disk


def put_plain_log(disk: SimDisk, messages: list[Message], at: int = 0) -> int:
    """Write a plain log that starts at byte `at`, as RocketMQ does; return where it ends."""
    data = bytearray()
    begin = at
    for message in messages:
        size = len(encode_message(message))
        left = FILE_BYTES - at % FILE_BYTES
        if size + 8 > left:
            data += (struct.pack(">i", left) + PLAIN_BLANK).ljust(left, b"\0")
            at += left
        data += encode_message(replace(message, physical_offset=at))
        at += size
    for start in range(begin, at, FILE_BYTES):
        file = disk.create(f"{PLAIN}/{start:020}", FILE_BYTES)
        file.pwrite([bytes(data[start - begin : start - begin + FILE_BYTES])], 0)
        file.sync()
        file.close()
    disk.sync_dir(PLAIN)
    return at


def open_log(disk: SimDisk, log_type: type[CommitLog]) -> CommitLog:
    try:
        return log_type.open(disk, ROOT, "n0", FILE_BYTES, INDEX_FILE_BYTES, PLAIN)
    except DamagedEntry as error:
        raise BrokenPromise(f"a damaged entry counts: {error}") from error


def split(batch: Batch) -> list[bytes]:
    """Return the entries of a batch, each by itself."""
    pieces = []
    at = 0
    while at < len(batch.data):
        size = int.from_bytes(batch.data[at + 4 : at + 8], "big")
        pieces.append(batch.data[at : at + size])
        at += size
    return pieces
