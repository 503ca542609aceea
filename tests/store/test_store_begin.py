"""A log that begins behind a snapshot: what it answers, and which snapshots it refuses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from store_crash_points import entries_of
from store_life import FILE_BYTES, open_log

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.commit_log import CommitLog, LogDamaged, NotContiguous, OutsideLog
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.group_events import MEMBERSHIP_CHANNEL

TWO = Membership(("n0", "n1"))
THREE = Membership(("n0", "n1", "n2"))


def log_of_three_files() -> tuple[CommitLog, SimDisk]:
    """Entries 0..8 of terms 1 and 2, three in a file; 1 and 7 bring memberships."""
    disk = SimDisk()
    log = open_log(disk, CommitLog)
    for index in range(9):
        builder = EntryBuilder(log.end, 1 if index < 4 else 2, FILE_BYTES, bytes(8))
        if index in {1, 7}:
            builder.add_membership(TWO if index == 1 else THREE, 0, 0)
        builder.add(b"t", 0, index, bytes(10 if index in {1, 7} else 160))
        for batch in builder.take():
            log.append(batch)
    log.sync()
    return log, disk


def snapshot_at(end: LogEnd, state: bytes = b"") -> Snapshot:
    return Snapshot(end, TWO, 1, state)


def test_terms_and_memberships_follow_the_begin_and_the_end():
    log, disk = log_of_three_files()
    assert log.spans == ((0, 1), (5, 2))
    assert log.memberships == ((1, TWO), (8, THREE))
    log.compact(snapshot_at(log.log_end_at(2)))
    for found in (log, open_log(disk, CommitLog)):
        assert (found.start.index, found.first_index) == (2, 3)
        assert found.spans == ((3, 1), (5, 2))
        assert found.memberships == ((8, THREE),)
        assert found.read_entries(8, 1).memberships == ((8, THREE),)
        assert found.log_end_at(2) == found.start
        assert len(entries_of(found)) == found.end.index - 2
    log = found
    log.truncate(7)
    assert (log.memberships, log.spans) == ((), ((3, 1), (5, 2)))
    log.compact(snapshot_at(log.end))
    assert (log.start, log.spans, log.committed_index) == (log.end, (), 2)
    assert open_log(disk, CommitLog).committed_index == 7


def test_nothing_in_front_of_the_begin_is_answered():
    log, _ = log_of_three_files()
    log.compact(snapshot_at(log.log_end_at(4)))
    for ask in (
        lambda: log.read_entries(4, 1000),
        lambda: log.log_end_at(3),
        lambda: log.read(log.start.position - 1, 1),
        lambda: log.truncate(3),
        lambda: log.compact(snapshot_at(LogEnd(3, 1, 700, 0))),
        lambda: log.compact(snapshot_at(replace(log.end, index=log.end.index + 1))),
    ):
        with pytest.raises(OutsideLog):
            ask()


def test_whole_files_in_front_of_the_first_entry_go_and_no_other():
    log, disk = log_of_three_files()
    files = disk.names("/store/dledger-n0/data")
    assert len(files) >= 3
    first_of_second = next(
        index for index in range(9) if log.read_entries(index, 1).position >= FILE_BYTES
    )
    log.compact(snapshot_at(log.log_end_at(first_of_second - 2)))
    assert disk.names("/store/dledger-n0/data") == files
    log.compact(snapshot_at(log.log_end_at(first_of_second - 1)))
    assert log.start.position < FILE_BYTES, "only a blank stands behind it in its file"
    assert disk.names("/store/dledger-n0/data") == files[1:]
    log = open_log(disk, CommitLog)
    assert log.start.index == first_of_second - 1
    log.truncate(log.start.index)
    builder = EntryBuilder(log.end, 3, FILE_BYTES, bytes(8))
    builder.add(b"t", 0, 0, b"")  # it may fit into the file that is gone
    for batch in builder.take():
        log.append(batch)
    log.sync()
    log = open_log(disk, CommitLog)
    assert log.end == builder.end
    assert log.spans == ((first_of_second, 3),)


def test_a_snapshot_of_another_log_changes_nothing():
    log, disk = log_of_three_files()
    log.compact(snapshot_at(log.log_end_at(4), b"kept"))
    wrong = replace(log.log_end_at(6), chain_crc=1)
    with pytest.raises(NotContiguous, match="is not of this log"):
        log.compact(snapshot_at(wrong))
    with pytest.raises(NotContiguous, match="before the start"):
        log.install(snapshot_at(LogEnd(3, 1, 700, 0)))
    for found in (log, open_log(disk, CommitLog)):
        assert found.snapshot.state == b"kept"
        assert len(entries_of(found)) == found.end.index - 4


def test_an_installed_snapshot_is_all_there_is():
    log, disk = log_of_three_files()
    log.install(snapshot_at(log.log_end_at(4), b"the leader's"))
    for found in (log, open_log(disk, CommitLog)):
        assert found.start == found.end == found.synced
        assert found.end.index == 4
        assert (found.spans, found.memberships) == ((), ())
        assert found.snapshot.state == b"the leader's"
        with pytest.raises(OutsideLog):
            found.read_entries(5, 1)


def test_a_membership_that_nobody_can_read_stops_the_node():
    """Its CRCs fit: it is not torn, and without it the group's members are not known."""
    disk = SimDisk()
    log = open_log(disk, CommitLog)
    builder = EntryBuilder(log.end, 1, FILE_BYTES, bytes(8))
    builder.add(b"t", 0, 0, b"no membership", channel=MEMBERSHIP_CHANNEL)
    for batch in builder.take():
        log.append(batch)
    log.sync()
    with pytest.raises(LogDamaged, match="entry 0: a membership entry cannot be read"):
        open_log(disk, CommitLog)
