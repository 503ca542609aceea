"""What a member calls durable is compared with what its disk holds: each rule has a planted bug."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from shaketable.system.invariants.durability import check_carried_out, check_sent
from shaketable.system.invariants.violated import Violated
from shaketable.system.mutants import HEALTHY
from shaketable.system.mutants.storage import FullDiskSkipsSync
from shaketable.system.node.disks.real_disk import RealDisk, RealFile
from shaketable.system.node.disks.volatile_disk import VolatileDisk
from shaketable.system.node.self_checks import SelfWatch, self_checked
from shaketable.system.raft.protocol import (
    Append,
    InvariantError,
    PushResponse,
    SaveState,
    VoteResponse,
    Write,
)
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFull
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.log_writer import AckPolicy, LogWriter
from shaketable.system.store.state_files import HardState

FILE_BYTES = 4096


class NeverSyncs(LogWriter):
    def sync(self) -> None:
        pass


class MarksWhatIsWritten(CommitLog):
    def advance_watermark(self) -> None:
        synced, self.synced = self.synced, self.end
        super().advance_watermark()
        self.synced = synced


class FullDisk(RealDisk):
    """A disk without room for another data file, while it is full."""

    is_full = False

    def create(self, path: str, size: int, *, reserve: bool = True) -> RealFile:
        if self.is_full and "/data/" in path:
            raise DiskFull(path)
        return super().create(path, size, reserve=reserve)


class Disk:
    """A volatile disk with one member's log, and its checked writer."""

    def __init__(
        self,
        folder: Path,
        writer: type[LogWriter] = LogWriter,
        log: type[CommitLog] = CommitLog,
        ack: AckPolicy = "fsync",
        real: RealDisk | None = None,
    ) -> None:
        disk = VolatileDisk(real or RealDisk())
        self.log = log.open(disk, str(folder), "n0", FILE_BYTES, FILE_BYTES)
        parts = self_checked(
            replace(HEALTHY, log_writer=writer), SelfWatch("n0", 0.0), f"{folder}/dledger-n0",
            disk.unsynced_from,
        )  # fmt: skip
        self.writer: LogWriter = parts.log_writer(self.log, ack)

    def append(self, count: int) -> Sequence[Write]:
        builder = EntryBuilder(self.log.end, 1, FILE_BYTES, bytes(8))
        for number in range(count):
            builder.add(b"topic", 1, number, bytes(500))
        return [Append(batch) for batch in builder.take()]


@pytest.mark.parametrize(
    ("writer", "found"), [(LogWriter, None), (NeverSyncs, "acknowledged-is-durable")]
)
def test_entries_are_synced_before_they_count_as_durable(
    tmp_path: Path, writer: type[LogWriter], found: str | None
) -> None:
    disk = Disk(tmp_path, writer, CommitLog, "fsync")
    if found is None:
        for _ in range(4):  # several files
            assert not disk.writer.carry_out(disk.append(5))
        disk.writer.advance_watermark()
    else:
        with pytest.raises(InvariantError, match=found):
            disk.writer.carry_out(disk.append(5))
    disk.log.close()


@pytest.mark.parametrize(
    ("log", "found"), [(CommitLog, None), (MarksWhatIsWritten, "watermark-is-durable")]
)
def test_the_watermark_stays_before_what_is_not_synced(
    tmp_path: Path, log: type[CommitLog], found: str | None
) -> None:
    disk = Disk(tmp_path, LogWriter, log, "page-cache")
    disk.writer.carry_out(disk.append(5))
    if found is None:
        disk.writer.advance_watermark()
        disk.writer.sync()
        disk.writer.advance_watermark()
    else:
        with pytest.raises(InvariantError, match=found):
            disk.writer.advance_watermark()
    disk.log.close()


@pytest.mark.parametrize("ack", ["fsync", "page-cache"])
@pytest.mark.parametrize("is_synced", [True, False])
def test_a_vote_is_synced_before_it_counts_as_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ack: AckPolicy, *, is_synced: bool
) -> None:
    disk = Disk(tmp_path, LogWriter, CommitLog, ack)
    if is_synced:
        disk.writer.carry_out([SaveState(3, "n1")])
        assert disk.log.state == HardState(3, "n1")
    else:
        monkeypatch.setattr(VolatileDisk, "sync_dir", lambda *_: None)
        with pytest.raises(InvariantError, match="vote-is-durable"):
            disk.writer.carry_out([SaveState(3, "n1")])
    disk.log.close()


def test_a_file_that_is_written_and_not_synced_is_named(tmp_path: Path) -> None:
    disk = VolatileDisk(RealDisk())
    folder = str(tmp_path)
    file = disk.create(f"{folder}/a", 10)
    assert disk.unsynced_from(folder) == {}
    file.pwrite([b"xy"], 4)
    file.pwrite([b"z"], 2)
    assert disk.unsynced_from(folder) == {f"{folder}/a": 2}
    assert disk.unsynced_from(f"{folder}/b") == {}
    file.sync()
    assert disk.unsynced_from(folder) == {f"{folder}/a": 2}, "its name is not on the disk"
    disk.sync_dir(folder)
    assert disk.unsynced_from(folder) == {}
    file.close()


def test_only_what_the_disk_has_seen_counts_as_carried_out() -> None:
    check_carried_out("n0", 7, 7)
    with pytest.raises(Violated, match="writes up to 8 count as durable"):
        check_carried_out("n0", 8, 7)


class Member:
    """What is durable of a member."""

    name = "n0"
    durable_index = 4
    state = HardState(3, "n1")


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (PushResponse(3, "n0", success=True, match_index=4, read_round=0), None),
        (
            PushResponse(3, "n0", success=True, match_index=5, read_round=0),
            "acknowledged-is-durable",
        ),
        (VoteResponse(3, "n0", granted=True, pre_vote=False), None),
        (VoteResponse(4, "n0", granted=True, pre_vote=True), None),
        (VoteResponse(4, "n0", granted=True, pre_vote=False), "vote-is-durable"),
    ],
)
def test_what_is_sent_is_durable(message: PushResponse | VoteResponse, found: str | None) -> None:
    if found is None:
        check_sent(Member(), "n1", message)
    else:
        with pytest.raises(Violated, match=found):
            check_sent(Member(), "n1", message)


def test_a_file_whose_name_found_no_room_is_named_once_there_is_some(tmp_path: Path) -> None:
    real = FullDisk()
    disk = Disk(tmp_path, real=real)
    assert not disk.writer.carry_out(disk.append(3))
    real.is_full = True
    left = disk.writer.carry_out(disk.append(4))
    assert left
    real.is_full = False
    assert not disk.writer.carry_out(left)  # the check finds nothing unsynced
    disk.log.close()


def test_what_fits_before_a_write_that_does_not_is_synced(tmp_path: Path) -> None:
    for writer in (LogWriter, FullDiskSkipsSync):
        real = FullDisk()
        disk = Disk(tmp_path / writer.__name__, writer, real=real)
        assert not disk.writer.carry_out(disk.append(1))
        real.is_full = True
        wanted = disk.append(9)
        assert len(wanted) == 2, "what fits into the first file, and the rest"
        if writer is LogWriter:
            left = disk.writer.carry_out(wanted)
            assert len(left) == 1
        else:
            with pytest.raises(InvariantError, match="acknowledged-is-durable"):
                disk.writer.carry_out(wanted)
        disk.log.close()
