"""The simulated disk: what a crash may take, and what it may not."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from shaketable.system.sim.disk import SECTOR_BYTES, Platter, PowerLoss, SimDisk
from shaketable.system.store.disk import DiskFailed, DiskFull, read_file, replace_file


def crashed(disk: SimDisk, seed: int) -> SimDisk:
    return disk.restart(loses_unsynced=True, rng=random.Random(seed))


def made(path: str = "/d/f", data: bytes = b"", size: int = 0) -> SimDisk:
    """A disk with one durable file."""
    disk = SimDisk()
    file = disk.create(path, size or len(data))
    file.pwrite([data], 0)
    file.sync()
    disk.sync_dir("/d")
    return disk


def test_files_are_zeros_until_written_and_cost_nothing():
    disk = SimDisk()
    file = disk.create("/d/f", 1 << 40)
    assert (file.size, file.pread(10, 1 << 30)) == (1 << 40, bytes(10))
    assert file.data_ranges(0) == []
    file.pwrite([b"ab", bytearray(b"cd")], 3)
    assert file.pread(8, 1) == b"\0\0abcd\0\0"
    assert file.data_ranges(2) == [(2, 7)]
    assert file.pread(10, (1 << 40) - 4) == bytes(4)


@given(st.integers(0, 10_000))
def test_what_was_synced_survives(seed):
    disk = made(data=b"durable")
    disk.open("/d/f").pwrite([b"LOST"], 0)
    after = read_file(crashed(disk, seed), "/d/f")
    assert after in (b"durable", b"LOSTble")


def test_unsynced_writes_are_lost_kept_torn_and_reordered():
    seen = Counter()
    for seed in range(300):
        disk = made(data=bytes(4 * SECTOR_BYTES))
        file = disk.open("/d/f")
        for sector in range(4):
            file.pwrite([bytes([sector + 1]) * SECTOR_BYTES], sector * SECTOR_BYTES)
        data = read_file(crashed(disk, seed), "/d/f")
        seen[tuple(data[at] for at in range(0, len(data), SECTOR_BYTES))] += 1
        assert all(len(set(data[at : at + 512])) == 1 for at in range(0, len(data), 512))
    assert {(0, 0, 0, 0), (1, 2, 3, 4)} < set(seen)
    assert any(later and not earlier for earlier, later, *_ in seen), "a later write alone"


def test_a_large_write_is_torn_by_sectors():
    seen = set()
    for seed in range(100):
        disk = made(data=bytes(1000))
        disk.open("/d/f").pwrite([b"x" * 1000], 0)
        data = read_file(crashed(disk, seed), "/d/f")
        seen.add((data[:512].strip(b"\0") != b"", data[512:].strip(b"\0") != b""))
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_names_need_their_folder_synced():
    outcomes = Counter()
    for seed in range(50):
        disk = made(data=b"old")
        disk.create("/d/g", 1).sync()
        disk.rename("/d/g", "/d/f")
        after = crashed(disk, seed)
        outcomes[tuple(after.names("/d")), read_file(after, "/d/f")] += 1
    # The journal keeps the order of names: what came first is there, or nothing of it.
    assert set(outcomes) == {(("f",), b"old"), (("f", "g"), b"old"), (("f", "g"), b"\0"),
                             (("f",), b"\0")}  # fmt: skip
    disk = made(data=b"old")
    disk.unlink("/d/f")
    disk.sync_dir("/d")
    assert not crashed(disk, 1).exists("/d/f")


@given(st.integers(0, 1000), st.integers(1, 12))
def test_replacing_a_file_leaves_the_old_or_the_new(seed, operations):
    disk = made("/d/f", b"old")
    disk.platter.stop_at = disk.platter.operations + operations
    done = True
    try:
        replace_file(disk, "/d/f", b"newer")
    except PowerLoss:
        done = False
    disk = crashed(disk, seed)
    found = read_file(disk, "/d/f")
    assert found == b"newer" if done else found in (b"old", b"newer")


def test_a_dead_incarnation_writes_no_more():
    disk = made(data=b"x")
    file = disk.open("/d/f")
    after = disk.restart(loses_unsynced=False, rng=random.Random(0))
    for act in (
        lambda: file.pwrite([b"ghost"], 0),
        file.sync,
        lambda: file.pread(1, 0),
        lambda: file.grow(9),
        lambda: disk.create("/d/g", 1),
        lambda: disk.rename("/d/f", "/d/g"),
        lambda: disk.unlink("/d/f"),
        lambda: disk.sync_dir("/d"),
        lambda: disk.exists("/d/f"),
    ):
        with pytest.raises(PowerLoss):
            act()
    assert read_file(after, "/d/f") == b"x"


def test_a_process_that_dies_leaves_the_page_cache():
    disk = made(data=b"old")
    disk.open("/d/f").pwrite([b"new"], 0)
    after = disk.restart(loses_unsynced=False, rng=random.Random(0))
    assert read_file(after, "/d/f") == b"new"
    assert {read_file(crashed(after, seed), "/d/f") for seed in range(4)} >= {b"old"}


def test_a_failed_fsync_drops_what_it_should_have_written():
    disk = made(data=b"old")
    file = disk.open("/d/f")
    file.pwrite([b"new"], 0)
    disk.platter.sync_failures = 1
    with pytest.raises(DiskFailed):
        file.sync()
    assert file.pread(3, 0) == b"new", "the page cache calls it clean"
    file.sync()
    assert all(read_file(crashed(disk, seed), "/d/f") == b"old" for seed in range(5))


def test_what_is_written_behind_a_failed_fsync_is_durable_once_synced():
    disk = made(data=b"old...")
    file = disk.open("/d/f")
    file.pwrite([b"new"], 0)
    disk.platter.sync_failures = 1
    with pytest.raises(DiskFailed):
        file.sync()
    file.pwrite([b"ABC"], 2)
    file.sync()
    assert file.pread(6, 0) == b"neABC."
    assert read_file(crashed(disk, 3), "/d/f") == b"olABC."


def test_a_failing_disk_fails_everything():
    disk = made(data=b"x")
    file = disk.open("/d/f")
    disk.platter.is_failing = True
    for act in (lambda: file.pread(1, 0), lambda: file.pwrite([b"y"], 0), file.sync,
                lambda: disk.create("/d/g", 1), lambda: disk.names("/d")):  # fmt: skip
        with pytest.raises(DiskFailed):
            act()
    disk.platter.is_failing = False
    assert file.pread(1, 0) == b"x"


def test_a_full_disk_refuses_before_anything_happens():
    disk = SimDisk(Platter(capacity_bytes=8192))
    file = disk.create("/d/f", 8192)
    assert disk.used_ratio("/d") == 1.0
    file.pwrite([b"fits"], 0)
    with pytest.raises(DiskFull):
        disk.create("/d/g", 4096)
    assert disk.names("/d") == ["f"]
    with pytest.raises(DiskFull):
        disk.create("/d/g", 1, reserve=False)
    disk.unlink("/d/f")
    small = disk.create("/d/g", 1 << 20, reserve=False)
    small.pwrite([bytes(8000)], 0)
    with pytest.raises(DiskFull):
        small.pwrite([b"x"], 9000)
    assert small.pread(1, 9000) == b"\0"


def test_bits_rot_where_they_are_durable():
    disk = made(data=b"AAAA")
    disk.platter.flip_bit("/d/f", 2, 1)
    assert read_file(disk, "/d/f") == b"AACA"
    assert read_file(crashed(disk, 1), "/d/f") == b"AACA"


def test_a_crash_at_the_kth_operation_hits_each_of_them():
    seen = []
    for stop in range(1, 20):
        disk = made(data=b"x")
        disk.platter.on_operation = lambda kind, path: seen.append((kind, path))
        disk.platter.stop_at = disk.platter.operations + stop
        seen.clear()
        try:
            replace_file(disk, "/d/f", b"y")
        except PowerLoss:
            assert len(seen) == stop
        else:
            break
    assert [kind for kind, _ in seen] == ["create", "pwrite", "sync", "rename", "sync_dir"]
    assert stop == 6


class Twin:
    """The dumb twin: whole copies of what is seen and what is durable."""

    def __init__(self) -> None:
        self.seen = self.durable = bytes(600)

    def write(self, data: bytes, at: int) -> None:
        old = self.seen.ljust(at, b"\0")
        self.seen = old[:at] + data + old[at + len(data) :]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 700), st.binary(min_size=1, max_size=90)),
            st.tuples(st.just("sync"), st.just(0), st.just(b"")),
        ),
        max_size=25,
    ),
    st.integers(0, 99),
)
def test_the_journal_agrees_with_whole_copies(steps, seed):
    disk, twin = made(data=bytes(600)), Twin()
    file = disk.open("/d/f")
    written: list[tuple[int, bytes]] = []
    for step, at, data in steps:
        if step == "write":
            file.pwrite([data], at)
            twin.write(data, at)
            written.append((at, data))
        else:
            file.sync()
            twin.durable = twin.seen
            written.clear()
        assert file.pread(2000, 0) == twin.seen
    after = read_file(crashed(disk, seed), "/d/f")
    for at, byte in enumerate(after):
        durable = twin.durable[at] if at < len(twin.durable) else 0
        possible = {durable, *(d[at - p] for p, d in written if p <= at < p + len(d))}
        assert byte in possible
    if not written:
        assert after == twin.durable
