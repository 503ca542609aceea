"""A full disk: what did not happen certainly did not, and all goes on once there is room."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from unittest.mock import patch

import pytest
from store_crash_points import check
from store_life import FILE_BYTES, Promise, Script, open_log, plain_disk

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import (
    Append,
    Compact,
    Install,
    SaveState,
    Snapshot,
    Truncate,
    Write,
)
from shaketable.system.sim.disk import SimDisk, SimFile
from shaketable.system.store.commit_log import CommitLog, HardState
from shaketable.system.store.disk import DiskFailed, DiskFull
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.log_writer import LogWriter

NEEDS_ROOM = frozenset({"create", "pwrite", "grow"})


class Filling:
    """Has no room for the operation number `left` that needs some, nor for `more` behind it."""

    def __init__(self, left: int, more: int) -> None:
        self.left = left
        self.more = more
        self.refused: list[str] = []

    def __call__(self, kind: str, path: str) -> None:
        if kind not in NEEDS_ROOM:
            return
        self.left -= 1
        if -1 - self.more <= self.left < 0:
            self.refused.append(f"{kind} {path}")
            raise DiskFull(f"{kind} {path}: no space left on device")


class PatientScript(Script):
    """Gives what was left undone again, after a look at what a crash would leave."""

    def carry_out(self, writes: list[Write]) -> None:
        while writes:
            log = self.log
            end, state = log.end, log.state
            left = list(self.writer.carry_out(writes))
            assert left == writes[len(writes) - len(left) :]
            if left:
                found = self.after_a_crash()
                if isinstance(left[0], Append):
                    assert log.end.index < left[0].batch.first_index, "it happened after all"
                    assert found.synced == log.end.index, "a crash leaves what did not happen"
                    assert len(left) < len(writes) or log.end == end
                if isinstance(left[0], SaveState):
                    assert log.state == found.state == state
            writes = left

    def after_a_crash(self) -> Promise:
        platter = self.disk.platter
        hook, platter.on_operation = platter.on_operation, None
        disk = SimDisk(deepcopy(platter))
        platter.on_operation = hook
        disk.platter.lose_unsynced(Random(1))
        return check(open_log(disk, CommitLog), self.may, disk)

    def open(self) -> None:
        while True:
            try:
                return super().open()
            except DiskFull:  # the node ended; its operator starts it again
                self.disk = self.disk.restart(loses_unsynced=True, rng=Random(0))

    def checkpoint(self) -> None:
        while True:
            try:
                return super().checkpoint()
            except DiskFull:
                continue

    def append(self, count: int, term: int, **options) -> None:
        super().append(count, term, **{**options, "syncs": True})


@pytest.mark.parametrize("more", [0, 1, 4])
def test_no_room_for_any_one_operation_loses_nothing_and_stops_nothing(more):
    number = 0
    while True:
        script = PatientScript(plain_disk())
        filling = script.disk.platter.on_operation = Filling(number, more)
        script.run()
        script.disk.platter.on_operation = None
        check(open_log(script.disk, CommitLog), script.may, script.disk)
        if not filling.refused:
            break
        number += 1
    assert number > 100


class ForgetsToUndo(CommitLog):
    """What was written before the room was gone stays behind the end."""

    def _undo_append(self, batch):
        pass


def short_of_room(log_type: type[CommitLog]) -> tuple[LogWriter, SimDisk]:
    """Append two batches, of which the second is written and then said to have found no room."""
    disk = SimDisk()
    writer = LogWriter(open_log(disk, log_type))
    assert not writer.carry_out([SaveState(1, "n0"), *appends(writer.log, 2)])
    real = SimFile.pwrite

    def write(self, buffers, position):
        real(self, buffers, position)
        if "/data/" in self._path:
            raise DiskFull("no space left on device")

    with patch.object(SimFile, "pwrite", write):
        todo = [*appends(writer.log, 3), SaveState(2, None)]
        assert writer.carry_out(todo) == todo
    return writer, disk


def appends(log: CommitLog, count: int) -> list[Append]:
    builder = EntryBuilder(log.end, 1, FILE_BYTES, bytes(8))
    for _ in range(count):
        builder.add(b"t", 0, 0, b"x" * 40)
    return [Append(batch) for batch in builder.take()]


def test_an_append_half_written_is_taken_back():
    writer, disk = short_of_room(CommitLog)
    assert (writer.log.end.index, writer.log.state) == (1, HardState(1, "n0"))
    copied = SimDisk(deepcopy(disk.platter))
    assert open_log(copied, CommitLog).end.index == 1
    assert not writer.carry_out([*appends(writer.log, 1), SaveState(2, None)])
    assert open_log(disk, CommitLog).end.index == 2


def test_an_append_that_is_not_taken_back_is_found_out():
    _, disk = short_of_room(ForgetsToUndo)
    assert open_log(SimDisk(deepcopy(disk.platter)), CommitLog).end.index == 4


def test_a_truncation_without_room_for_its_zeros_is_done_again():
    disk = SimDisk()
    writer = LogWriter(open_log(disk, CommitLog))
    assert not writer.carry_out(appends(writer.log, 5))
    writer.advance_watermark()
    disk.platter.on_operation = Filling(1, 0)  # the mark finds room, the zeros do not
    todo = [Truncate(1), *appends_behind(writer.log, 1)]
    assert writer.carry_out(todo) == todo
    disk.platter.on_operation = Filling(0, 0)
    writer.advance_watermark()
    disk.platter.on_operation = None
    assert not writer.carry_out(todo)
    assert writer.log.synced == writer.log.end
    assert open_log(disk, CommitLog).end == writer.log.end


def appends_behind(log: CommitLog, index: int) -> list[Append]:
    builder = EntryBuilder(log.log_end_at(index), 7, FILE_BYTES, bytes(8))
    builder.add(b"t", 0, 0, b"y")
    return [Append(batch) for batch in builder.take()]


class SmallDisk:
    """Has room for so many data files, and so for another one when one is removed."""

    def __init__(self, files_max: int) -> None:
        self.room = files_max

    def __call__(self, kind: str, path: str) -> None:
        if "/data/" not in path:
            return
        if kind == "unlink":
            self.room += 1
        if kind == "create":
            if not self.room:
                raise DiskFull(f"{kind} {path}: no space left on device")
            self.room -= 1


def test_what_frees_the_disk_does_not_wait_for_what_needs_the_room():
    disk = SimDisk()
    disk.platter.on_operation = SmallDisk(2)
    writer = LogWriter(open_log(disk, CommitLog))
    todo = [SaveState(1, "n0"), *appends(writer.log, 13)]
    left = writer.carry_out(todo)
    assert [type(write) for write in left] == [Append], "the third file finds no room"
    end = writer.log.end
    first, second = (
        Snapshot(writer.log.log_end_at(index), Membership(("n0",)), -1, b"expired")
        for index in (1, todo[1].batch.last_index)
    )
    left = [*left, Compact(first), SaveState(2, None), Compact(second)]
    assert writer.carry_out(left) == left, "what needs the room came first once more"
    assert (writer.log.start, writer.log.end, writer.log.state.term) == (second.end, end, 1)
    again = open_log(SimDisk(deepcopy(disk.platter)), CommitLog)
    assert (again.start, again.end) == (second.end, end)
    assert not writer.carry_out(left)
    assert (writer.log.start, writer.log.end.index) == (second.end, 12)
    assert writer.log.snapshot == second
    disk.platter.on_operation = None
    again = open_log(disk, CommitLog)
    assert (again.start, again.end.index, again.state) == (second.end, 12, HardState(2, None))


def test_a_compaction_behind_an_installation_waits_for_it():
    disk = SimDisk()
    writer = LogWriter(open_log(disk, CommitLog))
    assert not writer.carry_out(appends(writer.log, 4))
    here = Snapshot(writer.log.log_end_at(2), Membership(("n0",)), -1, b"")
    todo = [SaveState(1, None), Install(here), Compact(here)]
    disk.platter.on_operation = Filling(0, 0)
    assert writer.carry_out(todo) == todo
    assert writer.log.start.index == -1


def test_a_failed_disk_is_not_a_full_one():
    disk = SimDisk()
    writer = LogWriter(open_log(disk, CommitLog))
    disk.platter.sync_failures = 1
    with pytest.raises(DiskFailed):
        writer.carry_out(appends(writer.log, 1))
    with pytest.raises(DiskFailed):
        writer.carry_out([SaveState(1, None)])
    writer.log.close()
    assert disk.exists("/store/abort"), "nothing was closed in order"


@pytest.mark.parametrize(("ack", "kept"), [("fsync", 2), ("page-cache", -1)])
def test_what_a_loss_of_power_takes_under_each_policy(ack, kept):
    disk = SimDisk()
    writer = LogWriter(open_log(disk, CommitLog), ack)
    assert not writer.carry_out([SaveState(3, "n1"), *appends(writer.log, 3)])
    assert writer.log.synced.index == kept
    dead = SimDisk(deepcopy(disk.platter))
    assert open_log(dead, CommitLog).end.index == 2, "the process alone died"
    ends = set()
    for seed in range(12):
        copied = deepcopy(disk.platter)
        copied.lose_unsynced(Random(seed))
        log = open_log(SimDisk(copied), CommitLog)
        ends.add(log.end.index)
        assert log.state == HardState(3, "n1"), "a vote is synced under either policy"
    assert min(ends) == kept
    assert not writer.carry_out([Truncate(1)])
    writer.sync()
    assert writer.log.synced == writer.log.end


def test_what_comes_in_place_of_lost_entries_is_not_committed_by_an_old_checkpoint():
    disk = SimDisk()
    writer = LogWriter(open_log(disk, CommitLog), "page-cache")
    assert not writer.carry_out(appends(writer.log, 3))
    writer.log.save_checkpoint(2)
    disk = disk.restart(loses_unsynced=True, rng=Random(0))
    log = open_log(disk, CommitLog)
    assert (log.end.index, log.committed_index) == (-1, -1)
    assert not LogWriter(log).carry_out(appends(log, 2))
    again = open_log(disk.restart(loses_unsynced=True, rng=Random(0)), CommitLog)
    assert (again.end.index, again.committed_index) == (1, -1)
