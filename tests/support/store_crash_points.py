"""A scripted life of a commit log, stopped at every operation of its disk, and started again.

`python tests/support/store_crash_points.py` prints how many points there are. The script goes
through everything that a log does; at each write, fsync, rename, create, unlink and folder sync
of it the disk is copied as a crash leaves it. Each copy is started again, with nothing lost (the
process died) and with unsynced data lost, torn and reordered (the power went), and compared with
what had been promised by then.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from unittest.mock import patch

from store_life import (
    FILE_BYTES,
    INDEX_FILE_BYTES,
    PLAIN,
    PLAIN_MESSAGES,
    BrokenPromise,
    Promise,
    Script,
    open_log,
    plain_disk,
    split,
)

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import Append
from shaketable.system.sim.disk import Platter, PowerLoss, SimDisk, SimFile
from shaketable.system.store.commit_log import CommitLog, OutsideLog
from shaketable.system.store.disk import Buffer, DiskFailed, StoreError
from shaketable.system.store.entry import EntryBuilder, verify_batch
from shaketable.system.store.group_events import MEMBERSHIP_CHANNEL, memberships_in
from shaketable.system.store.log_writer import LogWriter
from shaketable.system.store.message import encode_message

LOSSES = (None, "half", 0, 1, 2)
"""None: the process alone died; "half": in the middle of a write. A number: the power went, and
it seeds what is lost, torn and reordered."""
_TERM_AT_16 = struct.Struct(">16xq").unpack_from
_CHANNEL_AT_32 = struct.Struct(">32xi").unpack_from


@dataclass(frozen=True)
class UnderWay:
    """The write that a crash is in front of, or in the middle of."""

    path: str
    data: bytes
    position: int


@dataclass(frozen=True)
class Crash:
    """The disk as the crash leaves it, before one operation, and what was promised then."""

    name: str
    platter: bytes
    may: tuple[Promise, ...]
    is_running: bool | None
    under_way: UnderWay | None = None

    def disk(self, loss: int | str | None) -> SimDisk:
        platter: Platter = pickle.loads(self.platter)
        if loss == "half":
            assert self.under_way is not None
            data = self.under_way.data[: len(self.under_way.data) // 2]
            platter.inodes[self.under_way.path].write(data, self.under_way.position)
        elif loss is not None:
            platter.lose_unsynced(Random(f"{self.name}/{loss}"))
        return SimDisk(platter)


@dataclass
class Survey:
    """What was tried."""

    kinds: Counter[str] = field(default_factory=Counter)
    restarts: int = 0

    def start_again(self, crash: Crash, kind: str, log_type: type[CommitLog]) -> None:
        """Start from a crash in every way. Raises BrokenPromise."""
        number = self.kinds.total()
        self.kinds[kind] += 1
        for seed, loss in enumerate(LOSSES):
            if loss == "half" and crash.under_way is None:
                continue
            try:
                restart(crash, crash.disk(loss), log_type)
                self.restarts += 4
                if (number + seed) % 8 == 0:
                    self.restarts += crash_again(crash, loss, number, log_type)
            except (StoreError, AssertionError) as error:
                raise BrokenPromise(f"{crash.name}, loss {loss}: {error!r}") from error

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return f"{self.kinds.total()} crash points ({kinds}), {self.restarts} restarts"


def survey(
    log_type: type[CommitLog] = CommitLog,
    writer_type: type[LogWriter] = LogWriter,
    *,
    with_plain: bool = True,
) -> Survey:
    """Run the script; start again from each of its operations. Raises BrokenPromise."""
    disk = plain_disk() if with_plain else SimDisk()
    script = Script(disk, log_type, writer_type, with_plain)
    done = Survey()

    under_way: list[UnderWay] = []
    real = SimFile.pwrite

    def pwrite(file: SimFile, buffers: Sequence[Buffer], position: int) -> None:
        if file._disk.platter is script.disk.platter:
            under_way[:] = [UnderWay(file._path, b"".join(buffers), position)]
        real(file, buffers, position)

    def crash(kind: str, path: str) -> None:
        name = f"crash at {done.kinds.total()} {kind} {path}"
        write = under_way[0] if kind == "pwrite" else None
        done.start_again(replace(crash_of(script, name), under_way=write), kind, log_type)

    disk.platter.on_operation = crash
    with patch.object(SimFile, "pwrite", pwrite):
        script.run()
    crash("the end", "")
    return done


def fail_each_sync(
    log_type: type[CommitLog] = CommitLog, writer_type: type[LogWriter] = LogWriter
) -> Survey:
    """Run the script once for each of its fsyncs, which fails and drops its pages.

    The log must refuse to go on; what the page cache still shows is no promise. Raises
    BrokenPromise.
    """
    done = Survey()
    while True:
        failing = FailingSync(done.kinds.total())
        script = Script(plain_disk(), log_type, writer_type)
        failing.platter = script.disk.platter
        script.disk.platter.on_operation = failing
        try:
            script.run()
        except DiskFailed:
            done.start_again(crash_of(script, failing.name), "failed fsync", log_type)
        else:
            if not failing.name:
                return done
            raise BrokenPromise(f"{failing.name}: the log went on")


@dataclass
class FailingSync:
    """Lets one fsync fail, of a file or of a folder."""

    left: int
    name: str = ""
    platter: Platter = field(default_factory=Platter)

    def __call__(self, kind: str, path: str) -> None:
        if kind not in {"sync", "sync_dir"}:
            return
        self.left -= 1
        if self.left == -1:
            self.name = f"failed {kind} {path}"
            if kind == "sync_dir":
                raise DiskFailed(self.name)
            self.platter.sync_failures = 1


def crash_of(script: Script, name: str) -> Crash:
    platter = script.disk.platter
    hook, platter.on_operation = platter.on_operation, None
    copied = pickle.dumps(platter)
    platter.on_operation = hook
    return Crash(name, copied, tuple(script.may), script.is_running)


def restart(crash: Crash, disk: SimDisk, log_type: type[CommitLog]) -> None:
    """Start three times more: what was found stays, through power loss, and can be gone on with."""
    log = open_log(disk, log_type)
    assert crash.is_running is None or log.was_aborted == crash.is_running, "the abort marker lies"
    found = check(log, crash.may, disk)
    disk = disk.restart(loses_unsynced=True, rng=Random(crash.name))
    log = open_log(disk, log_type)
    assert log.was_aborted
    assert check(log, [found], disk) == found
    builder = EntryBuilder(log.end, max(log.end.term, found.state.term) + 1, FILE_BYTES, bytes(8))
    builder.add(b"t", 0, 0, b"after the crash")
    builder.add_membership(Membership(("n7",)), 0, 0)
    batches = builder.take()
    assert not LogWriter(log).carry_out([Append(batch) for batch in batches])
    more = tuple(piece for batch in batches for piece in split(batch))
    expected = replace(found, entries=found.entries + more, synced=log.end.index)
    disk = disk.restart(loses_unsynced=True, rng=Random(crash.name))
    log = open_log(disk, log_type)
    assert check(log, [expected], disk) == expected
    log.close()
    log = open_log(disk, log_type)
    assert not log.was_aborted, "the log was closed, and the abort marker says it was not"
    assert check(log, [expected], disk) == expected


def crash_again(
    crash: Crash, loss: int | str | None, number: int, log_type: type[CommitLog]
) -> int:
    """Crash in the middle of the start as well, at some operations; return how often."""
    disk = crash.disk(loss)
    before = disk.platter.operations
    open_log(disk, log_type)
    operations = disk.platter.operations - before
    stops = range(1 + number % 3, operations + 1, 3)
    for stop in stops:
        disk = crash.disk(loss)
        disk.platter.stop_at = before + stop
        try:
            open_log(disk, log_type)
        except PowerLoss:
            pass
        else:
            raise BrokenPromise(f"a start does not repeat itself: no operation {stop}")
        second = stop % 2 == 0
        disk = disk.restart(loses_unsynced=second, rng=Random(f"{crash.name}/{stop}"))
        check(open_log(disk, log_type), crash.may, disk)
    return 2 * len(stops)


def check(log: CommitLog, may: tuple[Promise, ...] | list[Promise], disk: SimDisk) -> Promise:
    """Compare a log just opened with what it may hold; return what it holds."""
    found = Promise(log.start, log.snapshot, tuple(entries_of(log)), log.end.index, log.state)
    kept = any(is_kept(promise, found) for promise in may)
    assert kept, f"{shown(found)} is not {list(map(shown, may))}"
    assert log.synced == log.end
    assert found.snapshot is None or found.snapshot.end == log.start
    assert log.start.index <= log.committed_index <= log.end.index
    check_spans(log, found.entries)
    check_files(log, disk)
    check_plain(log, disk)
    return found


def is_kept(promise: Promise, found: Promise) -> bool:
    return (
        (promise.start, promise.snapshot, promise.state)
        == (found.start, found.snapshot, found.state)
        and found.entries == promise.entries[: len(found.entries)]
        and found.synced >= promise.synced
    )


def shown(promise: Promise) -> str:
    return (
        f"{promise.start.index + 1}..+{len(promise.entries)}, synced {promise.synced},"
        f" {promise.state}, snapshot {promise.snapshot and promise.snapshot.state!r}"
    )


def entries_of(log: CommitLog) -> list[bytes]:
    """Read the log back, verified from its begin on."""
    found: list[bytes] = []
    while (index := log.first_index + len(found)) <= log.end.index:
        batch = log.read_entries(index, 700)
        end = verify_batch(batch, log.log_end_at(index - 1))
        assert end == log.log_end_at(batch.last_index), "the log's end is not its last entry's"
        assert batch.memberships == memberships_in(batch.data)
        found += split(batch)
    return found


def check_spans(log: CommitLog, entries: tuple[bytes, ...]) -> None:
    first = log.first_index
    terms = [_TERM_AT_16(entry)[0] for entry in entries]
    starts = [i for i, term in enumerate(terms) if i == 0 or term != terms[i - 1]]
    assert log.spans == tuple((first + i, terms[i]) for i in starts)
    channels = [_CHANNEL_AT_32(entry)[0] for entry in entries]
    brings = [first + i for i, channel in enumerate(channels) if channel == MEMBERSHIP_CHANNEL]
    assert [index for index, _ in log.memberships] == brings
    assert log.memberships == memberships_in(b"".join(entries))


def check_files(log: CommitLog, disk: SimDisk) -> None:
    """No file lies wholly outside the log; zeros stand behind the end; nothing is read there."""
    end, begin = log.end.position, log.start.position
    for start in log._data.starts:
        assert start <= end, f"a data file at {start}, the log ends at {end}"
        assert start + FILE_BYTES > begin, f"a data file at {start}, the log starts at {begin}"
        assert log._data.data_end(max(start, end)) <= max(start, end), "bytes behind the end"
    for start in log._index.starts:
        assert start + INDEX_FILE_BYTES > log.first_index * 32, f"an index file at {start}"
    first_below = begin - 1 if log.plain_log is None else -1
    for position in (first_below, end):
        try:
            log.read(position, 1)
        except OutsideLog:
            continue
        raise BrokenPromise(f"byte {position} of a log {begin}..{end} can be read")


def check_plain(log: CommitLog, disk: SimDisk) -> None:
    """While the log begins where the plain one ends, every old message can be read."""
    if log.plain_log is None:
        assert not disk.names(PLAIN), "a plain log is left"
        return
    found = [replace(message, physical_offset=0) for message, _ in log.plain_log.messages()]
    assert found == PLAIN_MESSAGES
    for message, size in log.plain_log.messages():
        assert log.read(message.physical_offset, size) == encode_message(message)


def main() -> None:
    """Print how many points were tried."""
    sys.stdout.write(f"upgraded from a plain log: {survey()}\n")
    sys.stdout.write(f"new: {survey(with_plain=False)}\n")
    sys.stdout.write(f"fsyncs that fail: {fail_each_sync()}\n")


if __name__ == "__main__":
    main()
