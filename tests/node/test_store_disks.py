"""The real disk, and the volatile disk over it: same view, and SIGKILL is a power loss."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shaketable.system.node.disks.real_disk import IO_BUFFERS_MAX, RealDisk
from shaketable.system.node.disks.volatile_disk import VolatileDisk
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.disk import DiskFailed, DiskFull, read_file, replace_file

NAME = st.sampled_from(["a", "b", "c"])
STEP = st.one_of(
    st.tuples(st.just("create"), NAME, st.integers(0, 40)),
    st.tuples(st.just("write"), NAME, st.integers(0, 50), st.binary(max_size=30)),
    st.tuples(st.just("grow"), NAME, st.integers(0, 90)),
    st.tuples(st.just("sync"), NAME),
    st.tuples(st.just("rename"), NAME, NAME),
    st.tuples(st.just("unlink"), NAME),
    st.tuples(st.just("replace"), NAME, st.binary(max_size=20)),
    st.just(("sync_dir",)),
)


def take(disk, folder: str, step: tuple) -> None:
    """Do one step on a disk; steps on files that are not there do nothing."""
    kind, *rest = step
    if kind == "sync_dir":
        disk.sync_dir(folder)
        return
    path = f"{folder}/{rest[0]}"
    if kind == "create":
        disk.create(path, rest[1]).close()
    elif kind == "replace":
        replace_file(disk, path, rest[1])
    elif disk.exists(path):
        if kind == "rename":
            disk.rename(path, f"{folder}/{rest[1]}") if rest[0] != rest[1] else None
        elif kind == "unlink":
            disk.unlink(path)
        else:
            file = disk.open(path)
            if kind == "write":
                file.pwrite([rest[2][:7], rest[2][7:]], rest[1])
            elif kind == "grow":
                file.grow(rest[1])
            else:
                file.sync()
            file.close()


@contextmanager
def disk_not_waited_for():
    """Sync nothing really: what files hold is looked at, and a busy disk takes minutes for it."""
    with patch("os.fsync"), patch("os.fdatasync"):
        yield


def contents(disk, folder: str) -> dict[str, bytes]:
    return {
        name: read_file(disk, f"{folder}/{name}")
        for name in disk.names(folder)
        if not name.endswith(".named")
    }


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=14))
def test_the_volatile_disk_shows_what_the_real_disk_shows(steps):
    folder = tempfile.TemporaryDirectory
    with folder() as real, folder() as held, disk_not_waited_for():
        disk, volatile = RealDisk(), VolatileDisk(RealDisk())
        for step in steps:
            take(disk, real, step)
            take(volatile, held, step)
            assert contents(volatile, held) == contents(disk, real)
        for name, data in contents(volatile, held).items():
            file = volatile.open(f"{held}/{name}")
            for start in range(0, len(data) + 1, 9):
                rest = bytearray(data)
                for first, behind in file.data_ranges(start):
                    assert start <= first < behind
                    rest[first:behind] = bytes(len(rest[first:behind]))
                assert not any(rest[start:])
            file.sync()
            file.close()
        volatile.sync_dir(held)
        assert volatile.unsynced_bytes == 0
        assert contents(RealDisk(), held) == contents(disk, real)


@settings(max_examples=150, deadline=None)
@given(before=st.lists(STEP, max_size=8), after=st.lists(STEP, max_size=8))
def test_what_was_not_synced_is_not_on_the_real_disk(before, after):
    with tempfile.TemporaryDirectory() as folder, disk_not_waited_for():
        volatile = VolatileDisk(RealDisk())
        for step in before:
            take(volatile, folder, step)
        for name in volatile.names(folder):
            file = volatile.open(f"{folder}/{name}")
            file.sync()
            file.close()
        volatile.sync_dir(folder)
        safe = contents(RealDisk(), folder)
        assert safe == contents(volatile, folder)
        for step in after:
            if step[0] not in {"sync", "sync_dir", "replace"}:
                take(volatile, folder, step)
        assert contents(RealDisk(), folder) == safe


@contextmanager
def full_at_call(nth: int):
    """Fail the `nth` call that may need space with ENOSPC, and no other."""
    calls = count(1)

    def failing(call):
        def may_fail(*arguments, **more):
            if next(calls) == nth:
                raise OSError(errno.ENOSPC, "No space left on device")
            return call(*arguments, **more)

        return may_fail

    with ExitStack() as patches:
        for name in ("pwritev", "posix_fallocate", "replace", "unlink"):
            patches.enter_context(patch(f"os.{name}", failing(getattr(os, name))))
        yield


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEP, max_size=10), nth=st.integers(1, 9))
def test_a_real_disk_that_was_full_for_a_moment_lost_nothing(steps, nth):
    """Every step is repeated until it fits; so are the syncs at the end."""
    folder = tempfile.TemporaryDirectory
    unsynced: list[int] = []
    with folder() as real, folder() as held, disk_not_waited_for():
        disk, volatile = RealDisk(), VolatileDisk(RealDisk(), unsynced.append)
        for step in steps:
            take(disk, real, step)
        with full_at_call(nth):
            for step in (*steps, ("sync_dir",), *(("sync", name) for name in "abc")):
                with suppress(DiskFull):
                    take(volatile, held, step)
                    continue
                take(volatile, held, step)
        assert contents(volatile, held) == contents(disk, real)
        assert contents(RealDisk(), held) == contents(disk, real)
        assert volatile.unsynced_bytes == 0
        assert min(unsynced, default=0) == 0


def test_a_disk_that_stays_full_keeps_no_file_that_was_replaced(tmp_path):
    """A node writes its checkpoint anew every few seconds, however long its disk stays full."""
    volatile = VolatileDisk(RealDisk())
    full = patch("os.pwritev", side_effect=OSError(errno.ENOSPC, "No space left"))
    for number in range(20):
        with full, pytest.raises(DiskFull):
            replace_file(volatile, f"{tmp_path}/f", b"%d" % number)
    assert RealDisk().names(str(tmp_path)) == []
    with patch("os.pwritev", wraps=os.pwritev) as writes:
        replace_file(volatile, f"{tmp_path}/f", b"last")
    assert writes.call_count == 1
    assert contents(RealDisk(), str(tmp_path)) == {"f": b"last"}


APPEND_AND_DIE = """
import os, signal, sys
from shaketable.system.raft.protocol import LogEnd
from shaketable.system.store.commit_log import CommitLog
from shaketable.system.store.entry import EntryBuilder
from shaketable.system.node.disks.real_disk import RealDisk
from shaketable.system.node.disks.volatile_disk import VolatileDisk

disk = VolatileDisk(RealDisk()) if sys.argv[2] == "volatile" else RealDisk()
log = CommitLog.open(disk, sys.argv[1], "n0", 65536, 4096)
log.save_state(7, "n2")
for number in range(300):
    builder = EntryBuilder(log.end, 7, 65536, bytes(8))
    builder.add(b"topic", 0, number, b"x" * 500)
    for batch in builder.take():
        log.append(batch)
    if number == 199:
        log.sync()
assert len(log.read(0, 100)) == 100
assert log.read_entries(299, 1).last_index == 299
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("kind", "last_index"), [("volatile", 199), ("real", 299)])
def test_sigkill_is_a_power_loss_on_the_volatile_disk_alone(tmp_path, kind, last_index):
    done = subprocess.run(
        [sys.executable, "-c", APPEND_AND_DIE, str(tmp_path), kind],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (-9, b"")
    log = CommitLog.open(RealDisk(), str(tmp_path), "n0", 65536, 4096)
    assert log.end.index == last_index
    assert (log.state.term, log.state.voted_for) == (7, "n2")
    log.close()


def test_short_writes_and_many_buffers_are_written_whole(tmp_path):
    real = os.pwritev
    sizes = []

    def short(fd, buffers, position):
        sizes.append(len(buffers))
        return real(fd, [buffers[0][:3]], position)

    buffers = [b"%05d" % number for number in range(2 * IO_BUFFERS_MAX)]
    file = RealDisk().create(f"{tmp_path}/f", 0)
    with patch("os.pwritev", short):
        file.pwrite(buffers, 0)
    assert max(sizes) == IO_BUFFERS_MAX
    assert file.pread(1 << 20, 0) == b"".join(buffers)
    file.pwrite([], 0)
    file.pwrite(buffers, 7)
    assert file.pread(1 << 20, 7) == b"".join(buffers)
    file.close()


@pytest.mark.parametrize(
    ("call", "use", "number", "kind"),
    [
        ("os.pwritev", lambda file: file.pwrite([b"x"], 0), errno.EIO, DiskFailed),
        ("os.pwritev", lambda file: file.pwrite([b"x"], 0), errno.ENOSPC, DiskFull),
        ("os.fdatasync", lambda file: file.sync(), errno.EIO, DiskFailed),
        ("os.fdatasync", lambda file: file.sync(), errno.ENOSPC, DiskFailed),
        ("os.pread", lambda file: file.pread(1, 0), errno.EIO, DiskFailed),
    ],
)
def test_errors_are_typed_and_name_the_file(tmp_path, call, use, number, kind):
    file = RealDisk().create(f"{tmp_path}/file", 10)
    failing = patch(call, side_effect=OSError(number, os.strerror(number)))
    with failing, pytest.raises(kind, match=r"/file.*: ") as caught:
        use(file)
    assert "\n" not in str(caught.value)
    file.close()


def test_a_disk_too_full_for_a_file_leaves_none(tmp_path):
    full = patch("os.posix_fallocate", side_effect=OSError(errno.ENOSPC, "No space left"))
    with full, pytest.raises(DiskFull):
        RealDisk().create(f"{tmp_path}/file", 10)
    assert RealDisk().names(str(tmp_path)) == []


def test_a_file_system_that_reserves_nothing_still_gives_the_size(tmp_path):
    with patch("os.posix_fallocate", side_effect=OSError(errno.EOPNOTSUPP, "not supported")):
        file = RealDisk().create(f"{tmp_path}/file", 10)
    assert file.pread(20, 0) == bytes(10)
    file.close()


def test_a_page_that_leaves_the_cache_between_two_looks_is_no_range(tmp_path):
    """It is data for the first look and a hole for the second: nothing was written there."""
    file = RealDisk().create(f"{tmp_path}/file", 10_000)
    nothing_more = OSError(errno.ENXIO, "No such device or address")
    with patch("os.lseek", side_effect=[0, 0, 4096, 8192, nothing_more]):
        assert file.data_ranges(0) == [(4096, 8192)]
    file.close()


@pytest.mark.parametrize("sync", ["os.fdatasync", "os.fsync"])
def test_a_failed_fsync_poisons_the_log(tmp_path, sync):
    log = CommitLog.open(RealDisk(), str(tmp_path), "n0", 65536, 4096)
    with patch(sync, side_effect=OSError(errno.EIO, "I/O error")), suppress(DiskFailed):
        log.save_state(1, "n0")
    for call in (log.sync, log.advance_watermark, lambda: log.read(0, 0), lambda: log.truncate(-1)):
        with pytest.raises(DiskFailed, match="I/O error"):
            call()
    log.close()
    opened = CommitLog.open(RealDisk(), str(tmp_path), "n0", 65536, 4096)
    assert opened.end == LogEnd()
    opened.close()


def test_files_that_two_threads_sync_are_counted_each(tmp_path):
    """The log's and the checkpoint's: one that is done leaves the other in flight."""
    reports: list[int] = []
    volatile = VolatileDisk(RealDisk(), reports.append)
    files = []
    for name in ("slow", "fast"):
        replace_file(volatile, f"{tmp_path}/{name}", b"")
        files.append(volatile.open(f"{tmp_path}/{name}"))
        files[-1].pwrite([bytes(10)], 0)
    slow, fast = files
    is_in_flight, may_end = threading.Event(), threading.Event()

    def sync_slowly(_: int) -> None:
        if threading.current_thread() is thread:
            is_in_flight.set()
            may_end.wait()

    thread = threading.Thread(target=slow.sync)
    with patch("os.fdatasync", sync_slowly):
        thread.start()
        is_in_flight.wait()
        one_in_flight = reports[-1]
        fast.sync()
        one_done = reports[-1]
        fast.pwrite([bytes(7)], 0)
        one_rewritten = reports[-1]
        may_end.set()
        thread.join()
    assert (one_in_flight, one_done, one_rewritten) == (10, 0, 7)
    assert reports[-1] == volatile.unsynced_bytes == 7
    assert min(reports) == 0


@pytest.mark.parametrize("kind", [RealDisk, lambda: VolatileDisk(RealDisk())])
@pytest.mark.parametrize("is_synced", [False, True])
@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_handle_keeps_the_file_that_lost_its_name(
    tmp_path, kind, is_synced, is_published, is_replaced
):
    disk = kind()
    path = f"{tmp_path}/f"
    file = disk.create(path, 4)
    file.pwrite([b"first"], 0)
    if is_synced:
        file.sync()
    if is_published:
        disk.sync_dir(str(tmp_path))
    file.pwrite([b"more"], 6)
    if is_replaced:
        replace_file(disk, path, b"another")
    else:
        disk.unlink(path)
        disk.sync_dir(str(tmp_path))
    assert file.pread(20, 0) == b"first\0more"
    file.pwrite([b"F"], 0)
    assert file.pread(20, 0) == b"First\0more"
    file.sync()
    assert file.pread(20, 0) == b"First\0more"
    file.pwrite([b"1"], 1)
    file.close()
    assert contents(disk, str(tmp_path)) == ({"f": b"another"} if is_replaced else {})
    assert getattr(disk, "unsynced_bytes", 0) == 0


def test_a_sync_that_ends_after_its_file_was_replaced_is_not_counted(tmp_path):
    reports: list[int] = []
    volatile = VolatileDisk(RealDisk(), reports.append)
    path = f"{tmp_path}/f"
    for error in (None, OSError(errno.EIO, "I/O error")):
        replace_file(volatile, path, b"")
        file = volatile.open(path)
        file.pwrite([bytes(10)], 0)

        def replace_meanwhile(_: int, error=error) -> None:
            with patch("os.fdatasync"):
                replace_file(volatile, path, b"another")
            if error is not None:
                raise error

        with patch("os.fdatasync", replace_meanwhile), suppress(DiskFailed):
            file.sync()
        file.close()
        assert reports[-1] == volatile.unsynced_bytes == 0
    assert min(reports) == 0


class SlowNames(RealDisk):
    """A real disk whose renames take a while, so that threads meet inside of them."""

    __slots__ = ()

    def rename(self, source: str, target: str) -> None:
        time.sleep(0.001)
        super().rename(source, target)


def test_two_threads_replace_files_of_one_folder(tmp_path):
    """The node's log and its checkpoint do so, each in a thread of its own."""
    volatile = VolatileDisk(SlowNames())
    start, problems = threading.Barrier(2), []

    def replace_again_and_again(name: str) -> None:
        start.wait()
        try:
            for number in range(60):
                replace_file(volatile, f"{tmp_path}/{name}", b"%d" % number)
                if (tmp_path / name).read_bytes() != b"%d" % number:
                    problems.append(f"{name}: {number} is not on the real disk")
        except Exception as error:  # told by the thread that waits
            problems.append(f"{name}: {error!r}")

    threads = [
        threading.Thread(target=replace_again_and_again, args=(name,))
        for name in ("currterm", "appliedto")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["appliedto", "currterm"]
