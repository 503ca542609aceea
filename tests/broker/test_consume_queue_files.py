"""Consume queues on disk: RocketMQ's layout, and the same units back whatever is done."""

from __future__ import annotations

import struct
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shaketable.system.sim.disk import Platter, SimDisk
from shaketable.system.store.consume_queue_files import (
    ConsumeQueueFiles,
    DamagedUnits,
    topic_folder,
)

QUEUE = (b"orders", 3)
FOLDER = "/store/consumequeue/orders/3"
FILE_UNITS = 4


def unit(number: int) -> bytes:
    return struct.pack(">qiq", number * 100, 90, -number)


def units(first: int, behind: int) -> bytes:
    return b"".join(unit(number) for number in range(first, behind))


def files_on(disk: SimDisk, *, open_files_max: int = 2) -> ConsumeQueueFiles:
    return ConsumeQueueFiles(disk, "/store", FILE_UNITS * 20, open_files_max=open_files_max)


def raw(disk: SimDisk, name: str) -> bytes:
    file = disk.open(f"{FOLDER}/{name}")
    return file.pread(file.size, 0)


def test_bytes_and_names_are_rocketmqs() -> None:
    disk = SimDisk()
    files = files_on(disk)
    files.write_units(QUEUE, 2, units(2, 9))
    assert disk.names(FOLDER) == [
        "00000000000000000000",
        "00000000000000000080",
        "00000000000000000160",
    ]
    first = raw(disk, "00000000000000000000")
    assert first[:40] == bytes(40)
    assert first[40:60] == bytes.fromhex("00000000000000c8 0000005a fffffffffffffffe")
    assert raw(disk, "00000000000000000080") == units(4, 8)
    assert raw(disk, "00000000000000000160") == unit(8) + bytes(60)
    assert files.read_units(QUEUE, 3, 6) == units(3, 9)


def test_the_default_file_has_300_000_units() -> None:
    disk = SimDisk()
    ConsumeQueueFiles(disk, "/store").write_units(QUEUE, 300_000, unit(1))
    assert disk.names(FOLDER) == ["00000000000006000000"]
    assert disk.open(f"{FOLDER}/00000000000006000000").size == 6_000_000


def test_what_a_crash_left_behind_the_end_is_cut_and_expired_files_go() -> None:
    disk = SimDisk()
    files = files_on(disk)
    files.write_units(QUEUE, 0, units(0, 15))
    files.cut(QUEUE, 5, 9)
    files.sync()
    assert disk.names(FOLDER) == ["00000000000000000080", "00000000000000000160"]
    assert raw(disk, "00000000000000000080") == units(4, 8)
    assert raw(disk, "00000000000000000160") == unit(8) + bytes(60)
    files.write_units(QUEUE, 9, units(9, 13))
    files.delete_below(QUEUE, 7)
    assert files.read_units(QUEUE, 5, 8) == units(5, 13)
    files.delete_below(QUEUE, 8)
    assert disk.names(FOLDER) == ["00000000000000000160", "00000000000000000240"]
    files.cut(QUEUE, 13, 13)
    assert disk.names(FOLDER) == []


def test_units_that_are_not_there_are_damaged() -> None:
    disk = SimDisk()
    files = files_on(disk)
    files.write_units(QUEUE, 0, units(0, 6))
    assert files.holds(QUEUE, 0, 6)
    assert files.holds(QUEUE, 9, 9)
    with pytest.raises(DamagedUnits, match="unit of offset 6 is empty"):
        files.read_units(QUEUE, 5, 2)
    assert not files.holds(QUEUE, 0, 7)
    with pytest.raises(DamagedUnits, match="00000000000000000160: the file is missing; remove"):
        files.read_units(QUEUE, 8, 1)
    assert not files.holds(QUEUE, 0, 9)
    disk.create(f"{FOLDER}/00000000000000000160", 30)
    with pytest.raises(DamagedUnits, match="too short"):
        files_on(disk).read_units(QUEUE, 9, 1)


def test_units_and_names_are_durable_after_a_sync() -> None:
    for seed in range(20):
        disk = SimDisk()
        files = files_on(disk)
        files.write_units(QUEUE, 0, units(0, 6))
        # That process dies before it syncs; the next finds the names, perhaps only in the cache.
        disk = disk.restart(loses_unsynced=False, rng=Random(seed))
        files = files_on(disk)
        files.write_units(QUEUE, 0, units(0, 11))
        files.sync()
        disk = disk.restart(loses_unsynced=True, rng=Random(seed))
        assert files_on(disk).read_units(QUEUE, 0, 11) == units(0, 11)


def test_open_files_are_bounded_and_what_is_closed_is_not_lost() -> None:
    disk = CountingDisk()
    files = files_on(disk, open_files_max=3)
    queues = [(b"t", number) for number in range(40)]
    for queue in queues:
        files.write_units(queue, 0, units(0, 3))
    for queue in queues:
        assert files.read_units(queue, 0, 3) == units(0, 3)
    assert disk.open_count_max <= 6
    files.sync()
    disk = disk.restart(loses_unsynced=True, rng=Random(1))
    assert all(files_on(disk).holds(queue, 0, 3) for queue in queues)


def test_close_gives_all_handles_back() -> None:
    disk = CountingDisk()
    files = files_on(disk)
    files.write_units(QUEUE, 0, units(0, 9))
    files.read_units(QUEUE, 0, 9)
    files.close()
    assert disk.open_count == 0


@pytest.mark.parametrize(
    ("topic", "folder"),
    [
        (b"orders", "orders"),
        (b"%RETRY%group-1|x_Y", "%RETRY%group-1|x_Y"),
        (b"..", "=2E=2E"),
        (b"a/b", "a=2Fb"),
        (b"", "="),
        ("ä".encode(), "=C3=A4"),
    ],
)
def test_a_topics_folder(topic: bytes, folder: str) -> None:
    assert topic_folder(topic) == folder


@given(st.lists(st.binary(max_size=6) | st.binary(min_size=60, max_size=300), unique=True))
def test_no_two_topics_share_a_folder_and_none_leaves_the_store(topics: list[bytes]) -> None:
    folders = [topic_folder(topic) for topic in topics]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert folder not in {"", ".", ".."}
        assert "/" not in folder
        assert "\0" not in folder
        assert len(folder) <= 255


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2), st.integers(1, 9)),
        st.tuples(st.just("expire"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("read"), st.integers(0, 2), st.integers(1, 30)),
        st.tuples(st.just("restart"), st.integers(0, 99), st.just(0)),
    ),
    max_size=25,
)


@given(STEPS)
def test_files_are_a_list_of_units_for_each_queue(steps: list[tuple[str, int, int]]) -> None:
    disk = SimDisk()
    files = files_on(disk)
    ranges = {(b"t", number): (0, 0) for number in range(3)}
    for what, number, count in steps:
        queue = (b"t", number)
        if what == "restart":
            files.sync()
            disk = disk.restart(loses_unsynced=True, rng=Random(number))
            files = files_on(disk, open_files_max=1)
            for known, (begin, end) in ranges.items():
                assert files.holds(known, begin, end)
                files.cut(known, begin, end)
            continue
        begin, end = ranges[queue]
        if what == "write":
            files.write_units(queue, end, units(end, end + count))
            ranges[queue] = (begin, end + count)
        elif what == "expire":
            begin = min(begin + count, end)
            files.delete_below(queue, begin)
            ranges[queue] = (begin, end)
        else:
            here = min(count, end - begin)
            assert files.read_units(queue, begin, here) == units(begin, begin + here)


class CountingDisk(SimDisk):
    """Counts the handles that are open."""

    __slots__ = ("open_count", "open_count_max")

    def __init__(self, platter: Platter | None = None) -> None:
        super().__init__(platter)
        self.open_count = self.open_count_max = 0

    def create(self, path, size, *, reserve=True):
        return self.counted(super().create(path, size, reserve=reserve))

    def open(self, path):
        return self.counted(super().open(path))

    def counted(self, file):
        self.open_count += 1
        self.open_count_max = max(self.open_count_max, self.open_count)
        return CountedFile(self, file)


class CountedFile:
    def __init__(self, disk: CountingDisk, file) -> None:
        self.disk = disk
        self.file = file

    def __getattr__(self, name):
        return getattr(self.file, name)

    def close(self):
        self.disk.open_count -= 1
        self.file.close()
