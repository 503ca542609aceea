"""The upgrade of a plain commit log: verified, ended with a blank, and readable behind it."""

from __future__ import annotations

import struct
from copy import deepcopy
from dataclasses import replace

import pytest
from store_crash_points import entries_of
from store_life import (
    FILE_BYTES,
    INDEX_FILE_BYTES,
    PLAIN,
    PLAIN_BLANK,
    PLAIN_MESSAGES,
    ROOT,
    put_plain_log,
)

from shaketable.system.raft.membership import Membership
from shaketable.system.raft.protocol import LogEnd, Snapshot
from shaketable.system.sim.disk import SimDisk
from shaketable.system.store.commit_log import CommitLog, LogDamaged, OutsideLog
from shaketable.system.store.disk import StoreError, read_file
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.store.message import BORN_HOST_V6, STORE_HOST_V6, Message, encode_message
from shaketable.system.store.plain_log import PlainLogDamaged


def open_log(
    disk: SimDisk, plain_log: str | None = PLAIN, file_bytes: int = FILE_BYTES
) -> CommitLog:
    return CommitLog.open(disk, ROOT, "n0", file_bytes, INDEX_FILE_BYTES, plain_log)


def upgraded(messages: list[Message] = PLAIN_MESSAGES, at: int = 0) -> tuple[SimDisk, int]:
    disk = SimDisk()
    return disk, put_plain_log(disk, messages, at)


def append(log: CommitLog, count: int = 1, body_bytes: int = 0) -> None:
    builder = EntryBuilder(log.end, 1, FILE_BYTES, bytes(8))
    for number in range(count):
        builder.add(b"t", 0, number, bytes(body_bytes))
    for batch in builder.take():
        log.append(batch)
    log.sync()


def test_every_old_message_stays_readable_and_entries_start_behind_them():
    v6 = replace(
        PLAIN_MESSAGES[0],
        sys_flag=BORN_HOST_V6 | STORE_HOST_V6,
        born_host=bytes(20),
        store_host=bytes(20),
        topic=b"T" * 130,
        properties=b"TAGS\x01a\x02",
    )
    messages = [*PLAIN_MESSAGES, v6]
    disk, _ = upgraded(messages)
    written = open_log(disk)
    assert written.start == written.end == LogEnd(position=2 * FILE_BYTES)
    assert written.snapshot is None
    append(written, 5, 200)
    for log in (written, open_log(disk)):
        assert log.log_end_at(-1) == LogEnd(position=2 * FILE_BYTES)
        assert len(entries_of(log)) == 5
        assert log.read_entries(0, 1).position == 2 * FILE_BYTES
        found = list(log.plain_log.messages())
        assert [replace(message, physical_offset=0) for message, _ in found] == messages
        for message, size in found:
            assert log.read(message.physical_offset, size) == encode_message(message)
        third = found[2][0].physical_offset
        assert next(log.plain_log.messages(third))[0] == found[2][0]
    with pytest.raises(OutsideLog):
        log.read(2 * FILE_BYTES - 4, 8)  # across the two


def test_the_last_file_ends_with_rocketmqs_blank():
    disk, end = upgraded()
    open_log(disk)
    data = read_file(disk, f"{PLAIN}/{FILE_BYTES:020}")
    at = end - FILE_BYTES
    assert data[at : at + 8] == struct.pack(">i", FILE_BYTES - at) + PLAIN_BLANK
    assert not any(data[at + 8 :])


def test_a_file_already_ended_is_not_ended_twice():
    disk, end = upgraded()
    file = disk.open(f"{PLAIN}/{FILE_BYTES:020}")
    file.pwrite([struct.pack(">i", 2 * FILE_BYTES - end) + PLAIN_BLANK], end - FILE_BYTES)
    assert open_log(disk).start.position == 2 * FILE_BYTES


def test_an_empty_file_behind_the_last_one_changes_nothing():
    """RocketMQ makes the next file early: nodes with the same messages get the same positions."""
    disk, _ = upgraded()
    disk.create(f"{PLAIN}/{2 * FILE_BYTES:020}", FILE_BYTES)
    log = open_log(disk)
    assert log.start.position == 2 * FILE_BYTES
    append(log)
    assert open_log(disk).end.index == 0


@pytest.mark.parametrize("garbage", [b"\x00\x00\x00\xaa\xda\xa3\x20\xa7", b"noise" * 30])
def test_a_torn_tail_is_removed(garbage):
    disk, end = upgraded()
    disk.open(f"{PLAIN}/{FILE_BYTES:020}").pwrite([garbage], end - FILE_BYTES)
    log = open_log(disk)
    assert len(list(log.plain_log.messages())) == len(PLAIN_MESSAGES)
    data = read_file(disk, f"{PLAIN}/{FILE_BYTES:020}")
    assert not any(data[end - FILE_BYTES + 8 :])


def test_a_last_file_with_no_whole_message_counts_as_empty():
    disk, end = upgraded()
    torn = disk.create(f"{PLAIN}/{2 * FILE_BYTES:020}", FILE_BYTES)
    torn.pwrite([b"torn"], 0)
    with pytest.raises(PlainLogDamaged):
        open_log(disk)  # the file in front of it is not ended
    file = disk.open(f"{PLAIN}/{FILE_BYTES:020}")
    file.pwrite([struct.pack(">i", 2 * FILE_BYTES - end) + PLAIN_BLANK], end - FILE_BYTES)
    assert open_log(disk).start.position == 2 * FILE_BYTES
    assert not any(torn.pread(FILE_BYTES, 0))


def test_every_damage_in_front_of_the_last_message_is_one_clear_line():
    disk, end = upgraded()
    positions = []
    at = 0
    for number, message in enumerate(PLAIN_MESSAGES[:-1]):
        size = len(encode_message(message))
        if at % FILE_BYTES + size + 8 > FILE_BYTES:
            at += FILE_BYTES - at % FILE_BYTES
        # TOTALSIZE, MAGIC, BODYCRC, PHYSICALOFFSET, the body's length and its bytes, the topic's
        positions += [at + field for field in (0, 3, 6, 11, 35, 87, 90, size - 6, size - 1)]
        at += size
        assert number < 5
    for position in positions:
        damaged = SimDisk(deepcopy(disk.platter))
        start = position // FILE_BYTES * FILE_BYTES
        damaged.platter.flip_bit(f"{PLAIN}/{start:020}", position - start, 5)
        with pytest.raises(
            PlainLogDamaged, match=r"commitlog/\d{20}: byte \d+: .* repair"
        ) as caught:
            open_log(damaged)
        assert "\n" not in str(caught.value)
        assert not damaged.exists(f"{ROOT}/dledger-n0/syncedto"), "nothing was begun"
    assert end > FILE_BYTES


def test_files_of_another_size_are_one_clear_line():
    disk, _ = upgraded()
    with pytest.raises(PlainLogDamaged, match=r"1024 bytes.*mappedFileSizeCommitLog says \(2048\)"):
        open_log(disk, file_bytes=2048)


def test_a_missing_file_between_is_one_clear_line():
    disk, _ = upgraded(PLAIN_MESSAGES * 3)
    disk.unlink(f"{PLAIN}/{FILE_BYTES:020}")
    with pytest.raises(PlainLogDamaged, match=r"/0{16}1024 is missing"):
        open_log(disk)


@pytest.mark.parametrize("plain_log", [None, "/store/nowhere"])
def test_without_old_messages_the_log_starts_at_nothing(plain_log):
    disk = SimDisk()
    disk.create(f"{PLAIN}/{0:020}", FILE_BYTES)
    for folder in (plain_log, PLAIN):
        log = open_log(SimDisk(deepcopy(disk.platter)), folder)
        assert (log.start, log.plain_log) == (LogEnd(), None)


def test_expired_files_in_front_are_no_damage():
    disk, _ = upgraded(at=3 * FILE_BYTES)
    log = open_log(disk)
    assert log.start.position == 5 * FILE_BYTES
    disk.unlink(f"{PLAIN}/{3 * FILE_BYTES:020}")
    log = open_log(disk)
    assert log.plain_log.start == 4 * FILE_BYTES
    assert all(message.physical_offset >= 4 * FILE_BYTES for message, _ in log.plain_log.messages())
    with pytest.raises(OutsideLog):
        log.read(3 * FILE_BYTES, 1)


def test_a_later_start_needs_the_folder_and_its_last_file():
    disk, _ = upgraded()
    open_log(disk)
    with pytest.raises(StoreError, match="set storePathCommitLog to the folder"):
        open_log(disk, None)
    disk.unlink(f"{PLAIN}/{FILE_BYTES:020}")
    with pytest.raises(PlainLogDamaged, match="missing: messages of before the upgrade"):
        open_log(disk)


def test_a_log_made_without_it_passes_a_plain_log_over():
    disk = SimDisk()
    append(open_log(disk, None))
    put_plain_log(disk, PLAIN_MESSAGES)
    log = open_log(disk)
    assert (log.start, log.plain_log, log.end.index) == (LogEnd(), None, 0)
    assert disk.names(PLAIN)


def test_the_plain_log_goes_once_entries_have_gone():
    disk, _ = upgraded()
    log = open_log(disk)
    append(log, 6, 200)
    at_begin = Snapshot(log.start, Membership(("n0",)), -1, b"old queues")
    log.compact(at_begin)
    assert log.plain_log is not None
    assert open_log(disk).snapshot == at_begin
    log = open_log(disk)
    log.compact(replace(at_begin, end=log.log_end_at(4)))
    assert log.plain_log is None
    assert not disk.names(PLAIN)
    with pytest.raises(OutsideLog):
        log.read(0, 4)
    for plain_log in (PLAIN, None):
        assert open_log(disk, plain_log).start.index == 4


def test_a_new_member_of_an_upgraded_group_starts_behind_messages_it_never_had():
    disk = SimDisk()
    log = open_log(disk, None)
    snapshot = Snapshot(LogEnd(position=2 * FILE_BYTES), Membership(("n0",)), -1, b"old queues")
    log.install(snapshot)
    append(log, 2)
    log = open_log(disk, None)
    assert (log.start, log.snapshot, log.end.index) == (snapshot.end, snapshot, 1)
    assert log.read_entries(0, 1).position == 2 * FILE_BYTES
    with pytest.raises(OutsideLog):
        log.read(FILE_BYTES, 4)


def test_a_member_with_other_messages_from_before_the_group_gives_them_up():
    log = open_log(upgraded()[0])
    append(log, 2)
    other, _ = upgraded(PLAIN_MESSAGES, log.start.position)  # it has more than the others
    ahead = open_log(other)
    assert ahead.start.position > log.start.position
    ahead.install(Snapshot(log.start, Membership(("n0",)), -1, b"old queues"))
    ahead.append(log.read_entries(0, 1 << 20))
    ahead.sync()
    for restarted in (ahead, open_log(other)):
        assert restarted.plain_log is None
        assert restarted.read(log.start.position, 48) == log.read(log.start.position, 48)
    assert not other.names(PLAIN)


def test_a_snapshot_that_is_damaged_or_missing_stops_the_node():
    disk = SimDisk()
    log = open_log(disk, None)
    append(log, 6, 200)
    first = Snapshot(log.log_end_at(2), Membership(("n0",)), -1, b"first")
    log.compact(first)
    path = f"{ROOT}/dledger-n0/snapshot"
    old = read_file(disk, path)
    log.compact(replace(first, end=log.log_end_at(4)))
    log.close()
    for position in range(0, len(read_file(disk, path)), 7):
        rotten = SimDisk(deepcopy(disk.platter))
        rotten.platter.flip_bit(path, position)
        with pytest.raises(LogDamaged, match="snapshot cannot be read"):
            open_log(rotten, None)
    stale = SimDisk(deepcopy(disk.platter))
    stale.create(path, len(old)).pwrite([old], 0)
    with pytest.raises(LogDamaged, match="older than the log's start"):
        open_log(stale, None)
    disk.unlink(path)
    with pytest.raises(LogDamaged, match="snapshot is missing"):
        open_log(disk, None)
